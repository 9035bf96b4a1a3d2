//! The settings of a plan, and the checks of them.

use std::sync::Arc;

use super::{
    BatchSampler, Batching, IndexSampler, Inner, Plan, PlanError, Sampler, Shuffle, Uneven,
    permutation::Alias, state,
};

/// Settings of a [`Plan`]: batches of one, in order, for one rank, seed 0, unless said otherwise.
#[derive(Clone, Debug)]
pub struct PlanBuilder {
    len: u64,
    batch_size: u64,
    global: Option<u64>,
    drop_last: bool,
    shuffle: bool,
    by: Shuffle,
    seed: u64,
    sampler: Sampler,
    batching: Option<Batching>,
    rank: u32,
    world: u32,
    uneven: Uneven,
}

fn setting(setting: &'static str, reason: impl Into<String>) -> PlanError {
    PlanError::Setting { setting, reason: reason.into() }
}

impl PlanBuilder {
    pub(super) fn new(len: u64) -> Self {
        Self {
            len,
            batch_size: 1,
            global: None,
            drop_last: false,
            shuffle: false,
            by: Shuffle::Auto,
            seed: 0,
            sampler: Sampler::Sequential,
            batching: None,
            rank: 0,
            world: 1,
            uneven: Uneven::Pad,
        }
    }

    /// Samples of a batch of one rank.
    pub fn batch_size(mut self, samples: u64) -> Self {
        self.batch_size = samples;
        self
    }

    /// Samples of a batch over all ranks, in place of `batch_size · world`: what stays the same when `world` changes.
    pub fn global_batch(mut self, samples: u64) -> Self {
        self.global = Some(samples);
        self
    }

    /// Whether a short last batch is left out.
    pub fn drop_last(mut self, drop: bool) -> Self {
        self.drop_last = drop;
        self
    }

    /// Whether each epoch has an order of its own.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// How it is shuffled. Turns `shuffle` on.
    pub fn shuffle_by(mut self, by: Shuffle) -> Self {
        self.by = by;
        self.shuffle = true;
        self
    }

    /// What the order, and the samples' random numbers, are made from.
    #[doc(alias = "generator")]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How positions become indices.
    pub fn sampler(mut self, sampler: Sampler) -> Self {
        self.sampler = sampler;
        self
    }

    /// A sampler of the user's.
    pub fn index_sampler(self, sampler: impl IndexSampler) -> Self {
        self.sampler(Sampler::Custom(Arc::new(sampler)))
    }

    /// How draws become batches.
    pub fn batching(mut self, batching: Batching) -> Self {
        self.batching = Some(batching);
        self
    }

    /// A batch sampler of the user's.
    pub fn batch_sampler(self, sampler: impl BatchSampler) -> Self {
        self.batching(Batching::Custom(Arc::new(sampler)))
    }

    /// Which of how many ranks this is.
    #[doc(alias = "DistributedSampler")]
    pub fn distributed(mut self, rank: u32, world: u32) -> Self {
        (self.rank, self.world) = (rank, world);
        self
    }

    /// What the ranks do with what can't be divided evenly.
    pub fn uneven(mut self, uneven: Uneven) -> Self {
        self.uneven = uneven;
        self
    }

    /// The plan.
    ///
    /// # Errors
    /// `Setting` names the setting that can't be met.
    pub fn build(self) -> Result<Plan, PlanError> {
        if self.world == 0 || self.rank >= self.world {
            return Err(setting(
                "distributed",
                format!("rank {} of {} ranks is none", self.rank, self.world),
            ));
        }
        let world = u64::from(self.world);
        let global = match self.global {
            Some(global) => global,
            None => self.batch_size.checked_mul(world).ok_or_else(|| setting("batch_size", "too large"))?,
        };
        if global == 0 || global % world != 0 || global >> 40 != 0 {
            let reason = format!("a global batch of {global} is not 1 to 2⁴⁰ samples in {world} equal parts");
            return Err(setting(if self.global.is_some() { "global_batch" } else { "batch_size" }, reason));
        }
        if self.len >> 48 != 0 || usize::try_from(self.len).is_err() {
            return Err(setting("len", "too many samples"));
        }
        let ordered = !matches!(self.sampler, Sampler::Sequential | Sampler::Random | Sampler::Subset(_));
        if self.shuffle && ordered {
            return Err(setting("shuffle", "the sampler chooses the order itself"));
        }
        let permuted = match &self.sampler {
            Sampler::Subset(indices) => indices.len() as u64,
            _ => self.len,
        };
        let shuffle = (self.shuffle || matches!(self.sampler, Sampler::Random)).then_some(match self.by {
            Shuffle::Auto if permuted <= 1 << 24 => Shuffle::FisherYates,
            Shuffle::Auto => Shuffle::Feistel,
            by => by,
        });
        if shuffle == Some(Shuffle::FisherYates) && permuted > u64::from(u32::MAX) {
            return Err(setting("shuffle_by", "FisherYates permutes at most 2³² − 1 samples; use Feistel"));
        }
        let mut alias = None;
        match &self.sampler {
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
                    return Err(setting("sampler", format!("weight {i} is {}", weights[i])));
                }
                let positive = weights.iter().filter(|w| **w > 0.0).count() as u64;
                if positive == 0 {
                    return Err(setting("sampler", "no weight is above 0"));
                }
                if *replacement {
                    alias = Some(Alias::new(weights));
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
        ) = &self.batching
        {
            if lengths.len() as u64 != self.len {
                return Err(setting(
                    "batching",
                    format!("{} lengths for {} samples", lengths.len(), self.len),
                ));
            }
            let samples = if matches!(self.batching, Some(Batching::MaxTokens { .. })) { 1 } else { global };
            if *window == 0 || window.checked_mul(samples).is_none_or(|w| w > u64::from(u32::MAX)) {
                return Err(setting("batching", "a window is 1 to 2³² − 1 draws"));
            }
        }
        let mut inner = Inner {
            len: self.len,
            seed: self.seed,
            batch_size: global / world,
            global,
            drop_last: self.drop_last,
            rank: self.rank,
            world: self.world,
            uneven: self.uneven,
            sampler: self.sampler,
            shuffle,
            batching: self.batching,
            alias,
            template: state::PlanState::default(),
        };
        inner.template = state::template(&inner);
        Ok(Plan { inner: Arc::new(inner) })
    }
}
