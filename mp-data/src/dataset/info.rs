//! Descriptions of batches and workers.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::Item;

/// Batch with its description. Dereferences to the batch.
#[derive(Debug)]
#[must_use]
pub struct LoadedBatch<B> {
    /// Description of the batch.
    pub info: BatchInfo,
    batch: B,
}

impl<B> LoadedBatch<B> {
    pub(crate) fn new(info: BatchInfo, batch: B) -> Self {
        LoadedBatch { info, batch }
    }

    /// Returns the batch without its description.
    pub fn into_inner(self) -> B {
        self.batch
    }

    /// Returns the batch and its description.
    pub fn into_parts(self) -> (B, BatchInfo) {
        (self.batch, self.info)
    }
}

impl<B> Deref for LoadedBatch<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.batch
    }
}

impl<B> DerefMut for LoadedBatch<B> {
    fn deref_mut(&mut self) -> &mut B {
        &mut self.batch
    }
}

/// Description of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchInfo {
    /// Epoch of the batch.
    pub epoch: u64,
    /// Number of the batch in the epoch, from 0.
    pub number: u64,
    /// Samples of the batch, one for each row. In a stream, an index is the number of the sample in its
    /// shard.
    pub items: Vec<Item>,
    /// Shard of each sample of a stream; empty for datasets with indices.
    pub shards: Vec<usize>,
    /// Number of valid rows. Rows after these repeat samples, so that all ranks have equally many rows.
    pub valid: usize,
    /// Samples missing from the batch because they could not be made, with
    /// [`OnError::SkipSample`](crate::OnError::SkipSample).
    pub skipped: Vec<SkippedSample>,
    /// Worker that made the batch; `None` in a loader without workers.
    pub worker: Option<usize>,
    /// Id of the process that made the batch.
    pub pid: u32,
    /// Time in which the batch was made.
    pub elapsed: Duration,
}

impl BatchInfo {
    /// Returns the indices of the samples.
    #[must_use]
    pub fn indices(&self) -> Vec<usize> {
        self.items.iter().map(|item| item.index).collect()
    }
}

/// Sample missing from a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedSample {
    /// Sample that is missing.
    pub item: Item,
    /// Shard of the sample; `None` for datasets with indices.
    pub shard: Option<usize>,
    /// `true` if the shard can't be opened or read at this sample, so that all later samples of the shard are
    /// missing, too.
    pub rest_of_shard: bool,
    /// Text of the error because of which the sample is missing.
    pub why: String,
}

/// Description of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "get_worker_info")]
pub struct WorkerInfo {
    /// Number of the worker, from 0. `None` in a loader without workers.
    pub worker: Option<usize>,
    /// Number of workers.
    pub num_workers: usize,
    /// Number of threads that make the rows of a batch.
    pub threads: usize,
    /// Seed of the order. Unlike torch's `get_worker_info().seed`, the seed is the same in all workers and
    /// epochs, so a generator seeded with it returns the same numbers in each worker. Use the `rng` of a row
    /// instead.
    pub seed: u64,
}
