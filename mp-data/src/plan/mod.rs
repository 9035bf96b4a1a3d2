//! Assignment of samples to batches: a function of seed, epoch and position.
//!
//! ```
//! use mp_data::plan::Plan;
//! let plan = Plan::builder(10).batch_size(4).shuffle(true).seed(17).build()?;
//! let order = plan.epoch(0);
//! assert_eq!(order.batches(), Some(3));
//! let last = order.batch(2)?.unwrap();
//! assert_eq!(last.items.len(), 2);
//! // Another process, after a restart, goes on with batch 1.
//! let (epoch, next) = plan.next_batch(&plan.state(0, 1))?;
//! assert_eq!(plan.epoch(epoch).batch(next)?, order.batch(1)?);
//! # Ok::<(), mp_data::plan::PlanError>(())
//! ```

mod bucketing;
mod builder;
mod conflicts;
mod epoch;
mod error;
mod permutation;
mod philox;
mod sampler;
mod state;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use bucketing::WindowStart;
pub use builder::PlanBuilder;
pub use epoch::{EpochOrder, PlannedBatch};
pub use error::PlanError;
pub(crate) use error::no_such_rank;
pub use philox::SampleRng;
pub use sampler::{BatchSampler, Batching, IndexSampler, Sampler, Shuffle, Uneven};
pub use state::PlanState;
pub(crate) use state::{checksum, same};

pub(crate) use permutation::shuffle;
pub(crate) use philox::{Purpose, epoch_key, mix};

/// A draw of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Item {
    /// Index of the sample in the dataset.
    pub index: usize,
    /// The number of this draw in the epoch, from 0, over all ranks, over all ranks. What is random about a
    /// sample depends on this, on the seed, and on the epoch.
    pub position: u64,
}

/// Assignment of samples to batches, for every epoch. A clone is the same plan and costs nothing.
#[derive(Clone, Debug)]
pub struct Plan {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    len: u64,
    /// Checksum of the choice of samples that the dataset is.
    chosen: Option<u64>,
    seed: u64,
    batch_size: u64,
    global: u64,
    /// `true` if the size was set; otherwise it comes from `batch_size`.
    global_is_set: bool,
    drop_last: bool,
    rank: u32,
    world: u32,
    uneven: Uneven,
    sampler: Sampler,
    /// Algorithm that permutes positions, if one does.
    shuffle: Option<Shuffle>,
    batching: Option<Batching>,
    alias: Option<permutation::Alias>,
    template: PlanState,
}

impl Plan {
    /// A plan for a dataset of `len` samples.
    pub fn builder(len: u64) -> PlanBuilder {
        PlanBuilder::new(len)
    }

    /// The order of an epoch. Nothing is computed before a batch is asked for.
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        EpochOrder::new(self.inner.clone(), epoch)
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// The dataset's length.
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// Returns `true` if the dataset has no samples.
    pub fn is_empty(&self) -> bool {
        self.inner.len == 0
    }

    /// Returns the rank.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> u32 {
        self.inner.world
    }

    /// The random numbers of the draw at `position`.
    pub fn rng(&self, epoch: u64, position: u64) -> SampleRng {
        SampleRng::new(self.inner.seed, epoch, position)
    }
}

impl Inner {
    fn order_name(&self) -> String {
        let shuffle = match self.shuffle {
            None => "sequential/1",
            Some(Shuffle::Feistel) => "feistel/1",
            Some(_) => "fisher-yates/1",
        };
        match &self.sampler {
            Sampler::Sequential | Sampler::Random => shuffle.into(),
            Sampler::WithReplacement(draws) => format!("replace/1 {draws}"),
            Sampler::Weighted { draws, replacement: true, .. } => format!("alias/1 {draws}"),
            Sampler::Weighted { draws, .. } => format!("exponential-keys/1 {draws}"),
            Sampler::Subset(_) => format!("subset/1 {shuffle}"),
            Sampler::Custom(sampler) => sampler.name().into(),
        }
    }

    fn draws(&self, epoch: u64) -> u64 {
        match &self.sampler {
            Sampler::Sequential | Sampler::Random => self.len,
            Sampler::WithReplacement(draws) | Sampler::Weighted { draws, .. } => *draws,
            Sampler::Subset(indices) => indices.len() as u64,
            Sampler::Custom(sampler) => sampler.len(epoch),
        }
    }
}
