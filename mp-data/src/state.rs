//! Where a trainer is, in a form that can be kept.

use serde::{Deserialize, Serialize};

use crate::plan::PlanState;

/// Which batches a trainer was given: see [`Batches::state`](crate::Batches::state). A few hundred bytes in any format of serde.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[doc(alias = "state_dict")]
pub struct LoaderState {
    pub(crate) format: u32,
    pub(crate) plan: PlanState,
    /// Whose `beyond` is.
    pub(crate) rank: u32,
    /// Batches behind the next one that were given before it.
    pub(crate) beyond: Vec<u64>,
}

/// The name of what is in a state.
pub(crate) const FORMAT: u32 = 1;

impl LoaderState {
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

    /// The numbers of batches behind it that were given: some only if batches come [in the order in which they are
    /// made](crate::DataLoaderBuilder::in_order).
    #[must_use]
    pub fn beyond(&self) -> &[u64] {
        &self.beyond
    }
}
