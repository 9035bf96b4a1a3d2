//! Descriptions of batches and workers.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::Item;

/// A batch that was loaded, with what is known of it.
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

    /// The batch alone.
    pub fn into_inner(self) -> B {
        self.batch
    }

    /// Both.
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
    /// The epoch.
    pub epoch: u64,
    /// Number of the batch in the epoch, from 0.
    pub number: u64,
    /// Samples of the batch, one a row. Of a stream, an index is the number of the sample in its shard.
    pub items: Vec<Item>,
    /// Shard of each sample of a stream; empty for datasets with indices.
    pub shards: Vec<usize>,
    /// Number of rows that count, from the first on: the others repeat samples so that ranks have equally
    /// many.
    pub valid: usize,
    /// Samples that it lacks, since they could not be made: with
    /// [`OnError::SkipSample`](crate::OnError::SkipSample).
    pub skipped: Vec<SkippedSample>,
    /// The worker that made it; `None` if the trainer did.
    pub worker: Option<usize>,
    /// The process that made it.
    pub pid: u32,
    /// Time in which the batch was made.
    pub elapsed: Duration,
}

impl BatchInfo {
    /// The indices of its samples.
    #[must_use]
    pub fn indices(&self) -> Vec<usize> {
        self.items.iter().map(|item| item.index).collect()
    }
}

/// A sample that a batch lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedSample {
    /// Sample that is missing.
    pub item: Item,
    /// Shard of the sample, of a stream.
    pub shard: Option<usize>,
    /// `true` if the stream lacks the rest of that shard from this sample on, since it can't be opened or
    /// read any further.
    pub rest_of_shard: bool,
    /// The error that its batch would have had.
    pub why: String,
}

/// Description of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "get_worker_info")]
pub struct WorkerInfo {
    /// Number of the worker, from 0. `None` in the trainer, where batches are made if there are no workers.
    pub worker: Option<usize>,
    /// Number of workers.
    pub num_workers: usize,
    /// Number of threads that make the rows of a batch.
    pub threads: usize,
    /// The seed of the order: the same in all workers and in all epochs, unlike torch's
    /// `get_worker_info().seed`. So a generator that is made from it repeats itself in each worker. What is
    /// random about a sample comes from the `rng` of its row.
    pub seed: u64,
}
