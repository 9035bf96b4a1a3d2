//! Settings of a plan, and their validation.

use std::sync::Arc;

use mp_core::user_code::catch_panic;

use super::assignment::{Plan, PlanData, template};
use super::error::{PlanError, no_such_rank};
use super::permutation::AliasTable;
use super::sampler::{BatchSampler, Batching, IndexSampler, Sampler, Shuffle, Uneven};
use super::saved_state::PlanState;

/// Methods of the builders of plans and of loaders, for the settings of a plan in the builder itself or in a
/// field of it.
macro_rules! plan_settings {
    ($($plan:ident)?) => {
        /// Sets the number of samples of a batch of one rank.
        #[doc(alias = "BatchSampler")]
        pub fn batch_size(mut self, samples: u64) -> Self {
            self$(.$plan)?.batch_size = Some(samples);
            self
        }

        /// Sets the number of samples of a batch over all ranks, which replaces `batch_size · world`. It
        /// stays the same when the number of ranks changes.
        pub fn global_batch_size(mut self, samples: u64) -> Self {
            self$(.$plan)?.global = Some(samples);
            self
        }

        /// Sets whether the last batch is dropped if it has too few samples.
        pub fn drop_last(mut self, drop: bool) -> Self {
            self$(.$plan)?.drop_last = drop;
            self
        }

        /// Sets whether each epoch has its own order, made from the seed.
        pub fn shuffle(mut self, shuffle: bool) -> Self {
            self$(.$plan)?.shuffle = Some(shuffle);
            self
        }

        /// Sets the algorithm of the shuffle. Turns `shuffle` on.
        pub fn shuffle_by(mut self, by: crate::plan::Shuffle) -> Self {
            self$(.$plan)?.by = Some(by);
            self
        }

        /// Sets the seed of the order and of the samples' random numbers, 0 by default.
        #[doc(alias = "generator")]
        pub fn seed(mut self, seed: u64) -> Self {
            self$(.$plan)?.seed = seed;
            self
        }

        /// Sets the sampler, which chooses the index at each position.
        pub fn sampler(mut self, sampler: crate::plan::Sampler) -> Self {
            self$(.$plan)?.sampler = Some(sampler);
            self
        }

        /// Sets a sampler of your own.
        pub fn index_sampler(mut self, sampler: impl crate::plan::IndexSampler) -> Self {
            self$(.$plan)?.own_sampler = Some(std::sync::Arc::new(sampler));
            self
        }

        /// Sets the rule that combines draws into batches, for example by length or by tokens.
        pub fn batching(mut self, batching: crate::plan::Batching) -> Self {
            self$(.$plan)?.batching = Some(batching);
            self
        }

        /// Sets a batch sampler of your own.
        pub fn batch_sampler(mut self, sampler: impl crate::plan::BatchSampler) -> Self {
            self$(.$plan)?.own_batching = Some(std::sync::Arc::new(sampler));
            self
        }

        /// Sets the rank and the number of ranks: each rank gets its part of every global batch.
        #[doc(alias = "DistributedSampler")]
        pub fn distributed(mut self, rank: u32, world: u32) -> Self {
            (self$(.$plan)?.rank, self$(.$plan)?.world) = (rank, world);
            self
        }

        /// Sets how draws are treated that can't be divided evenly among the ranks.
        pub fn uneven(mut self, uneven: crate::plan::Uneven) -> Self {
            self$(.$plan)?.uneven = Some(uneven);
            self
        }
    };
}
pub(crate) use plan_settings;

/// Settings of a [`Plan`]. The defaults are batches of one sample, in order, for one rank, with seed 0.
#[derive(Clone, Debug)]
pub struct PlanBuilder {
    pub(crate) len: u64,
    /// Checksum of the selected samples, if the dataset is a selection of another dataset.
    selection_checksum: Option<u64>,
    // Settings without a value were not set. `check_conflicts` rejects settings that exclude each other.
    pub(crate) batch_size: Option<u64>,
    pub(crate) global: Option<u64>,
    pub(crate) drop_last: bool,
    pub(crate) shuffle: Option<bool>,
    pub(crate) by: Option<Shuffle>,
    pub(crate) seed: u64,
    pub(crate) sampler: Option<Sampler>,
    pub(crate) own_sampler: Option<Arc<dyn IndexSampler>>,
    pub(crate) batching: Option<Batching>,
    pub(crate) own_batching: Option<Arc<dyn BatchSampler>>,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) uneven: Option<Uneven>,
}

fn setting(setting: &'static str, reason: impl Into<String>) -> PlanError {
    PlanError::Setting { setting, reason: reason.into() }
}

/// Returns an error that names the setting, if `holds` is `false`.
fn check(holds: bool, name: &'static str, reason: impl FnOnce() -> String) -> Result<(), PlanError> {
    if holds { Ok(()) } else { Err(setting(name, reason())) }
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

    /// Sets the dataset: its length, and the checksum of its samples if it is a selection.
    pub(crate) fn for_dataset(mut self, len: u64, selection_checksum: Option<u64>) -> Self {
        (self.len, self.selection_checksum) = (len, selection_checksum);
        self
    }

    plan_settings!();

    /// Builds the plan.
    ///
    /// # Errors
    /// `Setting` names a setting that is invalid, or that excludes another one. `Uneven` is returned with
    /// `Uneven::Error` if the draws of every epoch can't be divided evenly.
    pub fn build(self) -> Result<Plan, PlanError> {
        let (rank, world) = (self.rank, u64::from(self.world));
        check(u64::from(rank) < world, "distributed", || no_such_rank(rank, self.world))?;
        self.check_conflicts()?;
        let size = self.batch_size.unwrap_or(1);
        let global = self.global.or(size.checked_mul(world)).unwrap_or(0);
        let is_possible = global > 0 && global.is_multiple_of(world) && global >> 40 == 0;
        check(is_possible || self.global.is_some(), "batch_size", || {
            format!("{size} samples on each of {world} ranks: 1 to 2⁴⁰ in all are possible")
        })?;
        check(is_possible, "global_batch_size", || {
            format!("{global} samples: a multiple of the number of ranks ({world}) from 1 to 2⁴⁰ is possible")
        })?;
        let len = self.len;
        check(len >> 48 == 0 && usize::try_from(len).is_ok(), "dataset", || {
            format!("it has {len} samples; at most 2⁴⁸ − 1 are possible")
        })?;
        let sampler = self.own_sampler.map(Sampler::Custom).or(self.sampler).unwrap_or_default();
        let batching = self.own_batching.map(Batching::Custom).or(self.batching);
        let shuffled = self.shuffle.unwrap_or(self.by.is_some()) || matches!(sampler, Sampler::Random);
        let permuted = match &sampler {
            Sampler::Subset(indices) => indices.len() as u64,
            _ => len,
        };
        let shuffle = shuffled.then_some(match self.by.unwrap_or_default() {
            Shuffle::Auto if permuted <= 1 << 24 => Shuffle::FisherYates,
            Shuffle::Auto => Shuffle::Feistel,
            by => by,
        });
        let has_table = shuffle == Some(Shuffle::FisherYates);
        check(!has_table || permuted <= u64::from(u32::MAX), "shuffle_by", || {
            "FisherYates permutes at most 2³² − 1 samples; use Feistel".into()
        })?;
        let mut alias = None;
        match &sampler {
            Sampler::WithReplacement(draws) => {
                check(*draws == 0 || len > 0, "sampler", || "draws from a dataset without samples".into())?
            }
            Sampler::Weighted { weights, draws, replacement } => {
                let count = weights.len();
                check(count as u64 == len && count <= u32::MAX as usize, "sampler", || {
                    format!("{count} weights for {len} samples (at most 2³² − 1)")
                })?;
                let wrong = weights.iter().position(|w| !w.is_finite() || *w < 0.0);
                check(wrong.is_none(), "sampler", || {
                    let wrong = wrong.unwrap_or_default();
                    format!("weight {wrong} is {}: weights are finite, and 0 or more", weights[wrong])
                })?;
                let positive = weights.iter().filter(|w| **w > 0.0).count() as u64;
                check(positive > 0, "sampler", || "no weight is above 0".into())?;
                check(*replacement || *draws <= positive, "sampler", || {
                    format!("{draws} draws without replacement, {positive} weights above 0")
                })?;
                alias = replacement.then(|| AliasTable::new(weights));
            }
            Sampler::Subset(indices) => {
                let outside = indices.iter().find(|i| **i >= len);
                check(outside.is_none(), "sampler", || {
                    format!("the subset has index {} of {len} samples", outside.copied().unwrap_or_default())
                })?;
            }
            _ => {}
        }
        if let Some(
            Batching::BucketByLength { lengths, window } | Batching::MaxTokens { lengths, window, .. },
        ) = &batching
        {
            check(lengths.len() as u64 == len, "batching", || {
                format!("{} lengths for {len} samples", lengths.len())
            })?;
            let samples = if matches!(batching, Some(Batching::MaxTokens { .. })) { 1 } else { global };
            let draws = window.checked_mul(samples).filter(|draws| *draws <= u64::from(u32::MAX));
            check(*window > 0 && draws.is_some(), "batching", || "a window is 1 to 2³² − 1 draws".into())?;
        }
        let mut inner = PlanData {
            len,
            selection_checksum: self.selection_checksum,
            seed: self.seed,
            batch_size: global / world,
            global,
            global_is_set: self.global.is_some(),
            drop_last: self.drop_last,
            rank,
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

impl PlanBuilder {
    /// Returns an error that names both settings, if a setting has no effect together with another one.
    pub(super) fn check_conflicts(&self) -> Result<(), PlanError> {
        let is_set = [
            ("batch_size", self.batch_size.is_some()),
            ("global_batch_size", self.global.is_some()),
            ("drop_last", self.drop_last),
            ("shuffle", self.shuffle == Some(true)),
            ("shuffle_by", self.by.is_some()),
            ("sampler", self.sampler.is_some()),
            ("index_sampler", self.own_sampler.is_some()),
            ("batching", self.batching.is_some()),
            ("batch_sampler", self.own_batching.is_some()),
        ];
        // Checks that none of `others` is set together with this setting.
        let excludes = |name: &str, others: &[&str], why: &str| {
            let other = is_set.iter().find(|(other, set)| *set && others.contains(other));
            let refused = |(other, _): &(&'static str, bool)| {
                setting(other, format!("`{name}` {why}: leave one of them out"))
            };
            other.map_or(Ok(()), |other| Err(refused(other)))
        };
        if self.global.is_some() {
            excludes("global_batch_size", &["batch_size"], "says already how large batches are")?;
        }
        if self.own_batching.is_some() {
            excludes("batch_sampler", &["batching"], "says already how draws become batches")?;
        }
        let batching = if self.own_batching.is_some() { "batch_sampler" } else { "batching" };
        let own = match &self.batching {
            Some(Batching::Custom(sampler)) => Some(sampler),
            _ => self.own_batching.as_ref(),
        };
        if let Some(sampler) = own {
            let sizes = ["batch_size", "global_batch_size", "drop_last"];
            excludes(batching, &sizes, "makes batches itself, of any size")?;
            let order = ["shuffle", "shuffle_by", "sampler", "index_sampler"];
            excludes(batching, &order, "makes batches itself, in any order")?;
            let unknown = || catch_panic(|| sampler.batches(0)) == Some(None);
            if self.uneven.is_some() && self.world > 1 && unknown() {
                let why = format!(
                    "the sampler of `{batching}` doesn't say how many batches there are: give it \
                     `BatchSampler::batches`, or leave `uneven` out"
                );
                return Err(setting("uneven", why));
            }
        }
        if let Some(Batching::MaxTokens { .. }) = self.batching {
            let sizes = ["batch_size", "global_batch_size", "drop_last"];
            excludes("batching", &sizes, "makes batches of as many samples as `MaxTokens` says")?;
        }
        if self.own_sampler.is_some() {
            excludes("index_sampler", &["sampler"], "chooses the samples itself")?;
            excludes("index_sampler", &["shuffle", "shuffle_by"], "chooses the order itself")?;
        }
        match &self.sampler {
            Some(Sampler::Random) if self.shuffle == Some(false) => {
                return Err(setting(
                    "shuffle",
                    "`sampler` is `Random`, which shuffles: leave one of them out",
                ));
            }
            None | Some(Sampler::Random | Sampler::Subset(_)) => {}
            Some(_) => excludes("sampler", &["shuffle", "shuffle_by"], "chooses the order itself")?,
        }
        if self.shuffle == Some(false) && self.by.is_some() {
            return Err(setting(
                "shuffle",
                "it is false, and `shuffle_by` says how to: leave one of them out",
            ));
        }
        Ok(())
    }
}
