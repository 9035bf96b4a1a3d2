//! Samplers, which choose the index at each position. Results of the user's samplers are checked in
//! `order.rs`.

use std::fmt;
use std::sync::Arc;

/// Rule that chooses the index at each position.
///
/// ```
/// use mp_data::plan::{Plan, Sampler};
///
/// let weights: Vec<f64> = (0..100).map(|i| if i < 10 { 9.0 } else { 1.0 }).collect();
/// let sampler = Sampler::Weighted { weights: weights.into(), draws: 500, replacement: true };
/// let plan = Plan::builder(100).sampler(sampler).batch_size(50).distributed(0, 2).build()?;
/// assert_eq!(plan.epoch(0).batches(), Some(5)); // 500 draws are 250 for each of two ranks
/// # Ok::<(), mp_data::plan::PlanError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Sampler {
    /// Each sample once, in the dataset's order.
    #[default]
    #[doc(alias = "SequentialSampler")]
    Sequential,
    /// Each sample once, in a random order that differs between epochs.
    #[doc(alias = "RandomSampler")]
    Random,
    /// This number of draws over all ranks. Each draw chooses from all samples.
    #[doc(alias = "RandomSampler")]
    WithReplacement(u64),
    /// Draws by weight: `draws` is their number over all ranks, and `weights` has one weight for each sample.
    #[doc(alias = "WeightedRandomSampler")]
    #[allow(missing_docs)]
    Weighted { weights: Arc<[f64]>, draws: u64, replacement: bool },
    /// Only these indices, in this order. With `shuffle(true)` they are shuffled.
    #[doc(alias = "SubsetRandomSampler")]
    Subset(Arc<[u64]>),
    /// A sampler of the user.
    Custom(Arc<dyn IndexSampler>),
}

/// Sampler of the user: a pure function of epoch and position.
pub trait IndexSampler: fmt::Debug + Send + Sync + 'static {
    /// Returns the name of the algorithm, which is stored in saved states. If the algorithm changes, the name
    /// must change.
    fn name(&self) -> &str;
    /// Returns the number of draws in the epoch.
    fn len(&self, epoch: u64) -> u64;
    /// Returns the index of draw `k`, below the dataset's length.
    fn index(&self, epoch: u64, k: u64) -> u64;
    /// Returns `true` if the epoch has no draws.
    fn is_empty(&self, epoch: u64) -> bool {
        self.len(epoch) == 0
    }
}

/// Algorithm of a shuffled order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shuffle {
    /// `FisherYates` for up to 2²⁴ samples, and `Feistel` for more.
    #[default]
    Auto,
    /// Table of all indices in memory, which is made once for each epoch. For at most 2³² − 1 samples.
    FisherYates,
    /// Keyed bijection: needs no memory and computes any position directly.
    Feistel,
}

/// Treatment of draws that can't be divided evenly among the ranks.
// Saved in states, by name and by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Uneven {
    /// Repeats draws from the epoch's beginning. `PlannedBatch::valid` is the number of draws that are not
    /// repeated.
    #[default]
    Pad,
    /// Drops the draws that can't be divided evenly.
    Drop,
    /// Returns an error. `build` returns it if all epochs have equally many draws. Otherwise the error
    /// replaces the last batch.
    Error,
}

/// Rule that combines draws into batches. Without a rule, a batch has consecutive draws.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Batching {
    /// Samples of similar lengths in one batch: windows of `window` global batches are sorted by length and
    /// divided into batches, which are permuted.
    #[allow(missing_docs)]
    BucketByLength { lengths: Arc<[u32]>, window: u64 },
    /// Batches of at most `tokens` tokens, counted as if each sample were padded to the length of the longest
    /// one. Windows of `window` draws are sorted by length. A sample longer than `tokens` is a batch of its
    /// own.
    #[allow(missing_docs)]
    MaxTokens { lengths: Arc<[u32]>, tokens: u64, window: u64 },
    /// A batch sampler of the user.
    Custom(Arc<dyn BatchSampler>),
}

/// Batch sampler of the user: a pure function of epoch and number. With several ranks, rank r has batches k ·
/// world + r.
pub trait BatchSampler: fmt::Debug + Send + Sync + 'static {
    /// Returns the name of the algorithm, which is stored in saved states. If the algorithm changes, the name
    /// must change.
    fn name(&self) -> &str;
    /// Returns the number of batches in the epoch, over all ranks, if known. Otherwise each rank calls
    /// `batch` until it returns `None`, and the sampler must give all ranks equally many batches.
    fn batches(&self, _epoch: u64) -> Option<u64> {
        None
    }
    /// Returns the indices of batch `k`, at most 2²⁴. Returns `None` after the last batch.
    fn batch(&self, epoch: u64, k: u64) -> Option<Vec<u64>>;
}
