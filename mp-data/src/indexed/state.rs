//! Saved place of a trainer.

use serde::{Deserialize, Serialize};

use crate::plan::{PlanError, PlanState, checksum};

/// Saved place of a trainer, the batches that it was given: see [`Batches::state`](crate::Batches::state). A
/// few hundred bytes in any format of serde.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[doc(alias = "state_dict")]
pub struct LoaderState {
    #[serde(deserialize_with = "crate::settings::format::number")]
    pub(crate) format: u32,
    pub(crate) plan: PlanState,
    /// Whose `out_of_order` is.
    pub(crate) rank: u32,
    /// Batches behind the next one that were given before it.
    #[serde(rename = "beyond")]
    pub(crate) out_of_order: Vec<u64>,
    /// Made of all else.
    check: u64,
}

/// The name of what is in a state.
pub(crate) const FORMAT: u32 = 1;

impl LoaderState {
    pub(crate) fn new(plan: PlanState, rank: u32, out_of_order: Vec<u64>) -> Self {
        LoaderState { format: FORMAT, plan, rank, out_of_order, check: 0 }.sealed()
    }

    /// With the checksums of what it has.
    #[doc(hidden)]
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.plan = self.plan.sealed();
        self.check = self.content();
        self
    }

    fn content(&self) -> u64 {
        let LoaderState { format, plan, rank, out_of_order, check: _ } = self;
        let numbers = [u64::from(*format), plan.check(), u64::from(*rank)];
        checksum(numbers.into_iter().chain(out_of_order.iter().copied()))
    }

    /// Checks that nothing was changed since it was made.
    pub(crate) fn check_whole(&self) -> Result<(), PlanError> {
        if self.check == self.content() {
            return Ok(());
        }
        Err(PlanError::StateChanged)
    }

    /// The epoch that it is in.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.plan.epoch()
    }

    /// The number of the first batch that was not given.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.plan.next()
    }

    /// The numbers of the batches that were given although [`next`](Self::next), which is before them, was
    /// not, in ascending order. With [`in_order`](crate::DataLoaderBuilder::in_order), as without that
    /// setting, there are none; with `in_order(false)`, 1024 at most.
    #[must_use]
    pub fn out_of_order(&self) -> &[u64] {
        &self.out_of_order
    }
}
