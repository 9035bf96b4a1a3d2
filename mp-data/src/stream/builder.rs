//! Settings of a loader of a stream.

use std::fmt;
use std::sync::Arc;

use super::dataset::IterableDataset;
use super::loader::StreamLoader;
use super::plan::StreamPlan;
use crate::BuildError;
use crate::settings::{LoaderSettings, settings};

/// Builder of a [`StreamLoader`], created by [`StreamLoader::builder`](crate::StreamLoader::builder). By
/// default a batch has one sample, there are up to 16 lanes, and the caller makes the batches.
#[must_use = "options do nothing until `build` is called"]
pub struct StreamLoaderBuilder<D> {
    dataset: D,
    plan: StreamPlan,
    shuffle: Option<bool>,
    window: Option<u64>,
    settings: LoaderSettings,
}

impl<D> fmt::Debug for StreamLoaderBuilder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, settings, shuffle, window, .. } = self;
        f.debug_struct("StreamLoaderBuilder")
            .field("plan", plan)
            .field("shuffle", shuffle)
            .field("shuffle_window", window)
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}

impl<D: IterableDataset> StreamLoaderBuilder<D> {
    pub(super) fn new(dataset: D) -> Self {
        let (plan, settings) = (StreamPlan::new(), LoaderSettings::new());
        StreamLoaderBuilder { dataset, plan, shuffle: None, window: None, settings }
    }

    /// Sets the number of samples of a batch. The last batch of each lane can have fewer.
    pub fn batch_size(mut self, samples: u64) -> Self {
        self.plan.batch_size = samples;
        self
    }

    /// Sets whether the last batch of a lane is dropped if it is short.
    pub fn drop_last(mut self, drop: bool) -> Self {
        self.plan.drop_last = drop;
        self
    }

    /// Sets the number of lanes, which divide the shards and are read concurrently. The default is 16, or the
    /// number of shards of this rank if that is less. Batches are taken from the lanes in turn. The order
    /// depends on the number of lanes, which states contain, and never on the number of workers. At most one
    /// worker for each lane is busy at the same time.
    pub fn lanes(mut self, lanes: u64) -> Self {
        self.plan.lanes = lanes;
        self
    }

    /// Sets whether each epoch has its own order of shards, made from the seed.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = Some(shuffle);
        self
    }

    /// Shuffles the samples of a lane within windows of this size; 0 disables it. Turns `shuffle` on. A
    /// worker keeps one window of each open lane in memory. After the death of the worker, or a resume, the
    /// window is read again.
    #[doc(alias = "shuffle_buffer")]
    pub fn shuffle_window(mut self, samples: u64) -> Self {
        self.window = Some(samples);
        self
    }

    /// Sets the seed of the order and of the samples' random numbers, 0 by default.
    #[doc(alias = "generator")]
    pub fn seed(mut self, seed: u64) -> Self {
        self.plan.seed = seed;
        self
    }

    /// Sets the rank and the number of ranks: shard i belongs to rank i mod `world`. With unequal shards,
    /// ranks have unequal numbers of batches: see [`steps`](Self::steps).
    #[doc(alias = "split_dataset_by_node")]
    pub fn distributed(mut self, rank: u32, world: u32) -> Self {
        (self.plan.rank, self.plan.world) = (rank, world);
        self
    }

    /// Sets the exact number of batches of an epoch on every rank. When all lanes have ended, all shards are
    /// read again, in another order if they are shuffled. So no rank waits in a collective operation for a
    /// rank that has run out of batches.
    ///
    /// If each batch of a whole pass over the shards is [skipped](crate::OnError), the iterator ends with an
    /// error.
    pub fn steps(mut self, batches: u64) -> Self {
        self.plan.steps = Some(batches);
        self
    }

    settings!();

    /// Starts the workers, in one or two milliseconds each. Workers decode the dataset and call
    /// [`IterableDataset::init`] after this function has returned.
    ///
    /// # Errors
    /// A setting is invalid or contradicts another one. The dataset has fewer shards than ranks, it can't be
    /// encoded, or a process can't be started.
    pub fn build(mut self) -> Result<StreamLoader<D>, BuildError> {
        self.settings.check_name()?;
        self.plan.window = self.window.unwrap_or_default();
        self.plan.shuffle = self.shuffle.unwrap_or(self.window.is_some());
        if self.plan.window > 0 && !self.plan.shuffle {
            let reason = "it is false, and `shuffle_window` is set: leave one of them out".into();
            return Err(BuildError::Setting { setting: "shuffle", reason });
        }
        StreamLoader::start(Arc::new(self.dataset), self.plan, self.settings)
    }
}

impl<D: IterableDataset> StreamLoader<D> {
    /// Returns a builder for a loader of this dataset of shards. [`IterableDataset`] has an example.
    pub fn builder(dataset: D) -> StreamLoaderBuilder<D> {
        StreamLoaderBuilder::new(dataset)
    }
}
