//! Settings of a loader of a stream.

use std::fmt;
use std::sync::Arc;

use super::dataset::IterableDataset;
use super::loader::StreamLoader;
use super::plan::StreamPlan;
use crate::BuildError;
use crate::settings::{LoaderSettings, settings};

/// Builder of a [`StreamLoader`], created by [`StreamLoader::builder`](crate::StreamLoader::builder). Without
/// settings: batches of one sample, of up to 16 lanes, made by the caller.
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

    /// Samples of a batch. The last batch of each lane can have fewer.
    pub fn batch_size(mut self, samples: u64) -> Self {
        self.plan.batch_size = samples;
        self
    }

    /// Sets whether the last batch of a lane is left out if it is short.
    pub fn drop_last(mut self, drop: bool) -> Self {
        self.plan.drop_last = drop;
        self
    }

    /// Sets the number of lanes to which the shards are dealt, and which are read side by side; 16 without
    /// this, or as many as this rank has shards, if these are fewer. Batches come from the lanes in turn. The
    /// order depends on it, and it bounds how many workers have work at the same time: so it is never made
    /// from the number of workers, and a state goes on with the lanes with which it began.
    pub fn lanes(mut self, lanes: u64) -> Self {
        self.plan.lanes = lanes;
        self
    }

    /// Sets whether each epoch has its own order of shards, made from the seed.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = Some(shuffle);
        self
    }

    /// Lets the samples of a lane change places within windows of this size; 0 is not at all. Turns `shuffle`
    /// on. A worker keeps a window of each lane that it has open, and after a death or a resume the window is
    /// read again.
    #[doc(alias = "shuffle_buffer")]
    pub fn shuffle_window(mut self, samples: u64) -> Self {
        self.window = Some(samples);
        self
    }

    /// Sets the seed of the order and of the samples' random numbers; 0 without this.
    #[doc(alias = "generator")]
    pub fn seed(mut self, seed: u64) -> Self {
        self.plan.seed = seed;
        self
    }

    /// Sets the rank and the number of ranks: shard i is of rank i mod `world`. With unequal shards,
    /// ranks have unequal numbers of batches: see [`steps`](Self::steps).
    #[doc(alias = "split_dataset_by_node")]
    pub fn distributed(mut self, rank: u32, world: u32) -> Self {
        (self.plan.rank, self.plan.world) = (rank, world);
        self
    }

    /// An epoch is exactly this many batches, on every rank: when all lanes have ended, all shards are read
    /// again, in another order if they are shuffled. So no rank waits in a collective for one that has ended.
    ///
    /// A whole pass over the shards in which each batch was [left out](crate::OnError) ends the iterator with
    /// an error.
    pub fn steps(mut self, batches: u64) -> Self {
        self.plan.steps = Some(batches);
        self
    }

    settings!();

    /// Starts the workers, a millisecond or two each; they read the dataset and call
    /// [`IterableDataset::init`] while this returns.
    ///
    /// # Errors
    /// A setting can't be met, or contradicts another; there are fewer shards than ranks, the dataset can't
    /// be encoded, or a process can't be started.
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
    /// A loader of this dataset of shards, to be set up. Example: at [`IterableDataset`].
    pub fn builder(dataset: D) -> StreamLoaderBuilder<D> {
        StreamLoaderBuilder::new(dataset)
    }
}
