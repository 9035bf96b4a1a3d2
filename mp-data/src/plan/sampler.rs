//! Samplers, which choose the index at each position. Answers of the user's samplers are checked in
//! `epoch.rs`.

use std::fmt;
use std::sync::Arc;

/// Choice of the index at each position.
///
/// ```
/// use mp_data::plan::{Plan, Sampler};
///
/// let weights: Vec<f64> = (0..100).map(|i| if i < 10 { 9.0 } else { 1.0 }).collect();
/// let sampler = Sampler::Weighted { weights: weights.into(), draws: 500, replacement: true };
/// let plan = Plan::builder(100).sampler(sampler).batch_size(50).distributed(0, 2).build()?;
/// assert_eq!(plan.epoch(0).batches(), Some(5)); // of this rank: the draws are of all ranks together
/// # Ok::<(), mp_data::plan::PlanError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Sampler {
    /// Each sample once, in the dataset's order.
    #[default]
    #[doc(alias = "SequentialSampler")]
    Sequential,
    /// Each sample once, in an order of the epoch's own.
    #[doc(alias = "RandomSampler")]
    Random,
    /// This many draws over all ranks, each from all samples.
    #[doc(alias = "RandomSampler")]
    WithReplacement(u64),
    /// This many draws over all ranks by weight, one weight a sample.
    #[doc(alias = "WeightedRandomSampler")]
    #[allow(missing_docs)]
    Weighted { weights: Arc<[f64]>, draws: u64, replacement: bool },
    /// Only these indices; in this order, or shuffled with `shuffle(true)`.
    #[doc(alias = "SubsetRandomSampler")]
    Subset(Arc<[u64]>),
    /// The user's.
    Custom(Arc<dyn IndexSampler>),
}

/// A sampler of the user: a pure function of epoch and position.
pub trait IndexSampler: fmt::Debug + Send + Sync + 'static {
    /// Returns the name for states; another algorithm needs another name.
    fn name(&self) -> &str;
    /// Returns the number of draws in the epoch.
    fn len(&self, epoch: u64) -> u64;
    /// The index of draw `k`, below the dataset's length.
    fn index(&self, epoch: u64, k: u64) -> u64;
    /// Returns `true` if the epoch has no draws.
    fn is_empty(&self, epoch: u64) -> bool {
        self.len(epoch) == 0
    }
}

/// Algorithm of a shuffled order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shuffle {
    /// `FisherYates` up to 2²⁴ samples, `Feistel` above.
    #[default]
    Auto,
    /// A list of all indices in memory, made once an epoch. At most 2³² − 1 samples.
    FisherYates,
    /// A keyed bijection: no memory, any position at once.
    Feistel,
}

/// Treatment of draws that can't be divided evenly among the ranks.
// Saved in states, by name and by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Uneven {
    /// Repeat draws from the epoch's beginning; `PlannedBatch::valid` says how many are not repeated.
    #[default]
    Pad,
    /// Leave them out.
    Drop,
    /// An error: of the plan, where each epoch has as many draws, else of the batch at the end.
    Error,
}

/// Rule by which draws become batches, other than one after the other.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Batching {
    /// Samples of like lengths in one batch: windows of `window` global batches are sorted by length, cut,
    /// and the batches permuted.
    #[allow(missing_docs)]
    BucketByLength { lengths: Arc<[u32]>, window: u64 },
    /// Batches of at most `tokens` when each is padded to the longest; windows of `window` draws
    /// are sorted by length. A sample that is longer than `tokens` is a batch of its own.
    #[allow(missing_docs)]
    MaxTokens { lengths: Arc<[u32]>, tokens: u64, window: u64 },
    /// The user's.
    Custom(Arc<dyn BatchSampler>),
}

/// A batch sampler of the user: a pure function of epoch and number. With several ranks, rank r has batches k
/// · world + r.
pub trait BatchSampler: fmt::Debug + Send + Sync + 'static {
    /// Returns the name for states; another algorithm needs another name.
    fn name(&self) -> &str;
    /// Returns the number of batches in the epoch, over all ranks, if known. Without it each rank asks until
    /// it gets `None`, and only the sampler can give all ranks equally many.
    fn batches(&self, _epoch: u64) -> Option<u64> {
        None
    }
    /// The indices of batch `k`; none after the last. At most 2²⁴.
    fn batch(&self, epoch: u64, k: u64) -> Option<Vec<u64>>;
}
