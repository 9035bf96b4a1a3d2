//! Saved state of an iterator of batches.

use serde::{Deserialize, Serialize};

use crate::plan::{PlanError, PlanState, checksum};

/// Saved state of an iterator, which covers the delivered batches: see
/// [`Batches::state`](crate::Batches::state). It has a few hundred bytes in any format of serde.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[doc(alias = "state_dict")]
pub struct LoaderState {
    #[serde(deserialize_with = "crate::settings::saved_state_kind::number")]
    pub(crate) format: u32,
    pub(crate) plan: PlanState,
    /// Rank that `out_of_order` belongs to.
    pub(crate) rank: u32,
    /// Numbers of batches that were delivered before an earlier batch, in ascending order.
    #[serde(rename = "beyond")]
    pub(crate) out_of_order: Vec<u64>,
    /// Checksum of all other fields.
    check: u64,
}

/// Number of the format of a state.
pub(crate) const FORMAT: u32 = 1;

impl LoaderState {
    pub(crate) fn new(plan: PlanState, rank: u32, out_of_order: Vec<u64>) -> Self {
        LoaderState { format: FORMAT, plan, rank, out_of_order, check: 0 }.sealed()
    }

    /// Computes the checksum of a state, and returns the complete state.
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

    /// Returns an error if the checksum is wrong.
    pub(crate) fn check_whole(&self) -> Result<(), PlanError> {
        if self.check == self.content() {
            return Ok(());
        }
        Err(PlanError::StateChanged)
    }

    /// Returns the epoch of the next batch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.plan.epoch()
    }

    /// Returns the number of the first batch that was not delivered.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.plan.next()
    }

    /// Returns the numbers of later batches that were delivered before batch [`next`](Self::next), in
    /// ascending order. The list is empty unless the loader was built with
    /// [`in_order(false)`](crate::DataLoaderBuilder::in_order), and has at most 1024 numbers.
    #[must_use]
    pub fn out_of_order(&self) -> &[u64] {
        &self.out_of_order
    }
}
