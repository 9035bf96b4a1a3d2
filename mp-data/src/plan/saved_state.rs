//! Saved position of a consumer in a plan.

use serde::{Deserialize, Serialize};

use super::error::PlanError;
use super::philox::mix;
use super::sampler::Uneven;

/// Position in a plan: the next batch, and the properties that determine the order. It takes a few hundred
/// bytes in any format of serde.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanState {
    pub(super) format: u32,
    pub(super) order: String,
    pub(super) batching: String,
    pub(super) rng: String,
    pub(super) seed: u64,
    pub(super) epoch: u64,
    pub(super) next: u64,
    pub(super) len: u64,
    pub(super) batch_size: u64,
    pub(super) global_batch: u64,
    pub(super) world: u32,
    pub(super) drop_last: bool,
    pub(super) uneven: Uneven,
    pub(super) weights: Option<u64>,
    pub(super) lengths: Option<u64>,
    pub(super) subset: Option<u64>,
    /// Start of the window that has the next batch, or of an earlier window. `None` if the start is not
    /// known, or does not depend on earlier windows.
    #[serde(default)]
    pub(super) window: Option<WindowStart>,
    /// Checksum of all other fields.
    pub(super) check: u64,
}

impl PlanState {
    /// Computes the checksum of a state, and returns the complete state.
    #[doc(hidden)]
    #[must_use]
    pub fn sealed(self) -> Self {
        PlanState { check: self.content(), ..self }
    }

    fn content(&self) -> u64 {
        let PlanState { format, order, batching, rng, seed, epoch, next, len, batch_size, .. } = self;
        let PlanState { global_batch, world, drop_last, uneven, weights, lengths, subset, window, .. } = self;
        let texts =
            [order, batching, rng].into_iter().flat_map(|text| text.bytes().map(u64::from).chain([1 << 8]));
        let flags = u64::from(*drop_last) | (*uneven as u64) << 1;
        let numbers = [
            u64::from(*format),
            *seed,
            *epoch,
            *next,
            *len,
            *batch_size,
            *global_batch,
            u64::from(*world),
            flags,
        ];
        let start = window.map(|start| [start.number, start.before]);
        let hashes = [*weights, *lengths, *subset, start.map(|start| start[0]), start.map(|start| start[1])];
        let hashes =
            hashes.into_iter().flat_map(|hash| [u64::from(hash.is_some()), hash.unwrap_or_default()]);
        checksum(texts.chain(numbers).chain(hashes))
    }

    /// Returns an error if the checksum is wrong, which means that the state was changed.
    pub(super) fn check_whole(&self) -> Result<(), PlanError> {
        if self.check == self.content() {
            return Ok(());
        }
        Err(PlanError::StateChanged)
    }

    /// Returns the checksum.
    pub(crate) fn check(&self) -> u64 {
        self.check
    }

    /// Returns the epoch of the next batch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of the next batch.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Adds the start of a window to a state. The window begins at or before the next batch.
    pub(crate) fn in_window(self, window: Option<WindowStart>) -> Self {
        PlanState { window, ..self }.sealed()
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> u32 {
        self.world
    }
}

/// Returns a checksum that detects accidental changes, but not deliberate changes.
pub(crate) fn checksum(words: impl Iterator<Item = u64>) -> u64 {
    let (sum, count) =
        words.fold((0, 0u64), |(sum, count), word| (mix(mix(word).wrapping_add(sum)), count + 1));
    mix(sum ^ count)
}

pub(crate) fn same<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    state: &T,
    plan: &T,
) -> Result<(), PlanError> {
    if state == plan {
        return Ok(());
    }
    Err(PlanError::StateDiffers { what, state: format!("{state:?}"), plan: format!("{plan:?}") })
}

/// Start of a window, which depends on the windows before it. Saved in states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WindowStart {
    pub(super) number: u64,
    /// Number of batches in all earlier windows, over all ranks. Batches of earlier windows that could not be
    /// divided among all ranks belong to this window.
    pub(super) before: u64,
}

impl WindowStart {
    pub(super) const START: WindowStart = WindowStart { number: 0, before: 0 };
}
