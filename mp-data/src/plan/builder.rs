//! Settings of a plan, and their validation.

use std::sync::Arc;

use super::assignment::{Plan, PlanData, template};
use super::error::{PlanError, no_such_rank};
use super::permutation::AliasTable;
use super::sampler::{BatchSampler, Batching, IndexSampler, Sampler, Shuffle, Uneven};
use super::state::PlanState;

/// Settings of a [`Plan`]. The defaults are batches of one sample, in order, for one rank, with seed 0.
#[derive(Clone, Debug)]
pub struct PlanBuilder {
    pub(super) len: u64,
    /// Checksum of the selected samples, if the dataset is a selection of another dataset.
    selection_checksum: Option<u64>,
    // Settings without a value were not set. `check_conflicts` rejects settings that exclude each other.
    pub(super) batch_size: Option<u64>,
    pub(super) global: Option<u64>,
    pub(super) drop_last: bool,
    pub(super) shuffle: Option<bool>,
    pub(super) by: Option<Shuffle>,
    seed: u64,
    pub(super) sampler: Option<Sampler>,
    pub(super) own_sampler: Option<Arc<dyn IndexSampler>>,
    pub(super) batching: Option<Batching>,
    pub(super) own_batching: Option<Arc<dyn BatchSampler>>,
    rank: u32,
    pub(super) world: u32,
    pub(super) uneven: Option<Uneven>,
}

pub(super) fn setting(setting: &'static str, reason: impl Into<String>) -> PlanError {
    PlanError::Setting { setting, reason: reason.into() }
}

impl PlanBuilder {
    pub(super) fn new(len: u64) -> Self {
        Self {
            len,
            selection_checksum: None,
            batch_size: None,
            global: None,
            drop_last: false,
            shuffle: None,
            by: None,
            seed: 0,
            sampler: None,
            own_sampler: None,
            batching: None,
            own_batching: None,
            rank: 0,
            world: 1,
            uneven: None,
        }
    }

    pub(crate) fn selection_checksum(mut self, selection_checksum: Option<u64>) -> Self {
        self.selection_checksum = selection_checksum;
        self
    }

    /// Sets the number of samples of a batch of one rank.
    pub fn batch_size(mut self, samples: u64) -> Self {
        self.batch_size = Some(samples);
        self
    }

    /// Sets the number of samples of a batch over all ranks, in place of `batch_size · world`. The number
    /// stays the same when `world` changes.
    pub fn global_batch_size(mut self, samples: u64) -> Self {
        self.global = Some(samples);
        self
    }

    /// Sets whether a short last batch is dropped.
    pub fn drop_last(mut self, drop: bool) -> Self {
        self.drop_last = drop;
        self
    }

    /// Sets whether each epoch has its own order.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = Some(shuffle);
        self
    }

    /// Sets the algorithm of the shuffle. Turns `shuffle` on.
    pub fn shuffle_by(mut self, by: Shuffle) -> Self {
        self.by = Some(by);
        self
    }

    /// Sets the seed of the order and of the samples' random numbers.
    #[doc(alias = "generator")]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the sampler, which chooses the index at each position.
    pub fn sampler(mut self, sampler: Sampler) -> Self {
        self.sampler = Some(sampler);
        self
    }

    /// Sets a sampler of the user.
    pub fn index_sampler(self, sampler: impl IndexSampler) -> Self {
        self.own_sampler(Arc::new(sampler))
    }

    pub(crate) fn own_sampler(mut self, sampler: Arc<dyn IndexSampler>) -> Self {
        self.own_sampler = Some(sampler);
        self
    }

    /// Sets the rule by which draws become batches.
    pub fn batching(mut self, batching: Batching) -> Self {
        self.batching = Some(batching);
        self
    }

    /// Sets a batch sampler of the user.
    pub fn batch_sampler(self, sampler: impl BatchSampler) -> Self {
        self.own_batching(Arc::new(sampler))
    }

    pub(crate) fn own_batching(mut self, sampler: Arc<dyn BatchSampler>) -> Self {
        self.own_batching = Some(sampler);
        self
    }

    /// Sets the rank and the number of ranks.
    #[doc(alias = "DistributedSampler")]
    pub fn distributed(mut self, rank: u32, world: u32) -> Self {
        (self.rank, self.world) = (rank, world);
        self
    }

    /// Sets the treatment of draws that can't be divided evenly among the ranks.
    pub fn uneven(mut self, uneven: Uneven) -> Self {
        self.uneven = Some(uneven);
        self
    }

    /// Builds the plan.
    ///
    /// # Errors
    /// `Setting` names a setting that is invalid, or that excludes another one. `Uneven` is returned with
    /// `Uneven::Error` if the draws of every epoch can't be divided evenly.
    pub fn build(self) -> Result<Plan, PlanError> {
        if self.world == 0 || self.rank >= self.world {
            return Err(setting("distributed", no_such_rank(self.rank, self.world)));
        }
        self.check_conflicts()?;
        let world = u64::from(self.world);
        let size = self.batch_size.unwrap_or(1);
        let too_many = |size| {
            let reason = format!("{size} samples on each of {world} ranks: 1 to 2⁴⁰ in all are possible");
            setting("batch_size", reason)
        };
        let global = match self.global {
            Some(global) => global,
            None => size.checked_mul(world).ok_or_else(|| too_many(size))?,
        };
        if global == 0 || global % world != 0 || global >> 40 != 0 {
            return Err(match self.global {
                Some(_) => setting(
                    "global_batch_size",
                    format!(
                        "{global} samples: a multiple of the number of ranks ({world}) from 1 to 2⁴⁰ is \
                         possible"
                    ),
                ),
                None => too_many(size),
            });
        }
        if self.len >> 48 != 0 || usize::try_from(self.len).is_err() {
            let reason = format!("it has {} samples; at most 2⁴⁸ − 1 are possible", self.len);
            return Err(setting("dataset", reason));
        }
        let sampler = self.own_sampler.map(Sampler::Custom).or(self.sampler).unwrap_or_default();
        let batching = self.own_batching.map(Batching::Custom).or(self.batching);
        let shuffled = self.shuffle.unwrap_or(self.by.is_some()) || matches!(sampler, Sampler::Random);
        let permuted = match &sampler {
            Sampler::Subset(indices) => indices.len() as u64,
            _ => self.len,
        };
        let shuffle = shuffled.then_some(match self.by.unwrap_or_default() {
            Shuffle::Auto if permuted <= 1 << 24 => Shuffle::FisherYates,
            Shuffle::Auto => Shuffle::Feistel,
            by => by,
        });
        if shuffle == Some(Shuffle::FisherYates) && permuted > u64::from(u32::MAX) {
            return Err(setting("shuffle_by", "FisherYates permutes at most 2³² − 1 samples; use Feistel"));
        }
        let mut alias = None;
        match &sampler {
            Sampler::WithReplacement(draws) if *draws > 0 && self.len == 0 => {
                return Err(setting("sampler", "draws from a dataset without samples"));
            }
            Sampler::Weighted { weights, draws, replacement } => {
                if weights.len() as u64 != self.len || weights.len() > u32::MAX as usize {
                    let reason =
                        format!("{} weights for {} samples (at most 2³² − 1)", weights.len(), self.len);
                    return Err(setting("sampler", reason));
                }
                if let Some(i) = weights.iter().position(|w| !w.is_finite() || *w < 0.0) {
                    return Err(setting(
                        "sampler",
                        format!("weight {i} is {}: weights are finite, and 0 or more", weights[i]),
                    ));
                }
                let positive = weights.iter().filter(|w| **w > 0.0).count() as u64;
                if positive == 0 {
                    return Err(setting("sampler", "no weight is above 0"));
                }
                if *replacement {
                    alias = Some(AliasTable::new(weights));
                } else if *draws > positive {
                    let reason = format!("{draws} draws without replacement, {positive} weights above 0");
                    return Err(setting("sampler", reason));
                }
            }
            Sampler::Subset(indices) => {
                if let Some(i) = indices.iter().find(|i| **i >= self.len) {
                    return Err(setting(
                        "sampler",
                        format!("the subset has index {i} of {} samples", self.len),
                    ));
                }
            }
            _ => {}
        }
        if let Some(
            Batching::BucketByLength { lengths, window } | Batching::MaxTokens { lengths, window, .. },
        ) = &batching
        {
            if lengths.len() as u64 != self.len {
                return Err(setting(
                    "batching",
                    format!("{} lengths for {} samples", lengths.len(), self.len),
                ));
            }
            let samples = if matches!(batching, Some(Batching::MaxTokens { .. })) { 1 } else { global };
            if *window == 0 || window.checked_mul(samples).is_none_or(|w| w > u64::from(u32::MAX)) {
                return Err(setting("batching", "a window is 1 to 2³² − 1 draws"));
            }
        }
        let mut inner = PlanData {
            len: self.len,
            selection_checksum: self.selection_checksum,
            seed: self.seed,
            batch_size: global / world,
            global,
            global_is_set: self.global.is_some(),
            drop_last: self.drop_last,
            rank: self.rank,
            world: self.world,
            uneven: self.uneven.unwrap_or_default(),
            sampler,
            shuffle,
            batching,
            alias,
            template: PlanState::default(),
        };
        inner.template = template(&inner);
        let plan = Plan { inner: Arc::new(inner) };
        if plan.inner.uneven == Uneven::Error {
            plan.epoch(0).check_divided()?;
        }
        Ok(plan)
    }
}

impl Plan {
    /// Returns a builder of a plan for a dataset of `len` samples.
    pub fn builder(len: u64) -> PlanBuilder {
        PlanBuilder::new(len)
    }
}
