//! Plan of a loader: settings that determine the samples of each batch.

use std::sync::Arc;

use super::permutation::AliasTable;
use super::philox::SampleRng;
use super::sampler::{Batching, Sampler, Shuffle, Uneven};
use super::saved_state::{PlanState, checksum};

/// Assignment of samples to batches, for every epoch. Clones are cheap and share the plan.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) inner: Arc<PlanData>,
}

#[derive(Debug)]
pub(super) struct PlanData {
    pub(super) len: u64,
    /// Checksum of the selected samples, if the dataset is a selection of another dataset.
    pub(super) selection_checksum: Option<u64>,
    pub(super) seed: u64,
    pub(super) batch_size: u64,
    pub(super) global: u64,
    /// `true` if the global batch size was set; otherwise it is computed from `batch_size`.
    pub(super) global_is_set: bool,
    pub(super) drop_last: bool,
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) uneven: Uneven,
    pub(super) sampler: Sampler,
    /// Algorithm that permutes positions, if the order is shuffled.
    pub(super) shuffle: Option<Shuffle>,
    pub(super) batching: Option<Batching>,
    pub(super) alias: Option<AliasTable>,
    pub(super) template: PlanState,
}

impl Plan {
    /// Returns the seed.
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// Returns the length of the dataset.
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

    /// Returns the random number generator of the draw at `position`.
    pub fn rng(&self, epoch: u64, position: u64) -> SampleRng {
        SampleRng::new(self.inner.seed, epoch, position)
    }
}

impl PlanData {
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

    pub(super) fn draws(&self, epoch: u64) -> u64 {
        match &self.sampler {
            Sampler::Sequential | Sampler::Random => self.len,
            Sampler::WithReplacement(draws) | Sampler::Weighted { draws, .. } => *draws,
            Sampler::Subset(indices) => indices.len() as u64,
            Sampler::Custom(sampler) => sampler.len(epoch),
        }
    }
}

/// Returns the fields of a state that are the same for all batches of the plan.
pub(super) fn template(plan: &PlanData) -> PlanState {
    PlanState {
        format: 1,
        order: plan.order_name(),
        batching: match &plan.batching {
            None => "plain/1".into(),
            Some(Batching::BucketByLength { window, .. }) => format!("bucket/1 window {window}"),
            Some(Batching::MaxTokens { tokens, window, .. }) => {
                format!("max-tokens/1 {tokens} window {window}")
            }
            Some(Batching::Custom(sampler)) => sampler.name().into(),
        },
        rng: "philox/1".into(),
        seed: plan.seed,
        epoch: 0,
        next: 0,
        len: plan.len,
        batch_size: plan.batch_size,
        global_batch: plan.global,
        world: plan.world,
        drop_last: plan.drop_last,
        uneven: plan.uneven,
        weights: match &plan.sampler {
            Sampler::Weighted { weights, .. } => Some(checksum(weights.iter().map(|w| w.to_bits()))),
            _ => None,
        },
        lengths: match &plan.batching {
            Some(Batching::BucketByLength { lengths, .. } | Batching::MaxTokens { lengths, .. }) => {
                Some(checksum(lengths.iter().map(|&l| u64::from(l))))
            }
            _ => None,
        },
        subset: match (&plan.sampler, plan.selection_checksum) {
            (Sampler::Subset(indices), None) => Some(checksum(indices.iter().copied())),
            (Sampler::Subset(indices), Some(selection_checksum)) => {
                Some(checksum(indices.iter().copied().chain([selection_checksum])))
            }
            (_, selection_checksum) => selection_checksum,
        },
        window: None,
        check: 0,
    }
}

impl PlanData {
    pub(super) fn state(&self, epoch: u64, next: u64) -> PlanState {
        PlanState { epoch, next, ..self.template.clone() }.sealed()
    }
}
