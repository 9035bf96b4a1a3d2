//! Errors of plans, samplers and states.

/// Returns the text of the error that `rank` is not below `world`.
pub(crate) fn no_such_rank(rank: u32, world: u32) -> String {
    format!("rank {rank} with {world} ranks: a rank is below their number")
}

/// Error returned when a plan can't be made, a batch can't be planned, or a saved state doesn't fit the plan.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A setting of the builder is invalid.
    #[error("the plan's setting `{setting}`: {reason}")]
    #[allow(missing_docs)]
    Setting { setting: &'static str, reason: String },
    /// A sampler returned an index that the dataset doesn't have.
    #[error("batch {batch} of epoch {epoch}: the sampler gave index {index}, the dataset has {len} samples")]
    #[allow(missing_docs)]
    IndexOutOfRange { epoch: u64, batch: u64, index: u64, len: u64 },
    /// The epoch can't be divided evenly among the ranks, with `Uneven::Error`.
    #[error(
        "batch {batch} of epoch {epoch}: the last {left} can't be divided evenly among {world} ranks; \
         choose Uneven::Pad or Uneven::Drop"
    )]
    #[allow(missing_docs)]
    Uneven { epoch: u64, batch: u64, left: u64, world: u32 },
    /// A state was saved with another plan.
    #[error(
        "the state is of another plan: {what} is {state} in the state, {plan} in the plan{}",
        hint_of(what)
    )]
    #[allow(missing_docs)]
    StateDiffers { what: &'static str, state: String, plan: String },
    /// A saved state has a position that no loader can have reached.
    #[error("the state names a place that no loader can have reached ({what}): no loader made it")]
    #[allow(missing_docs)]
    StateImpossible { what: &'static str },
    /// The checksum of a state is wrong.
    #[error("the state was changed, or is incomplete: its checksum does not match its contents")]
    StateChanged,
}

mp_core::readable_debug!(PlanError);

/// Returns a hint for a state of another plan, if the difference comes from the dataset.
fn hint_of(what: &str) -> &'static str {
    if what == "len" || what == "order" || what.starts_with("hash of the ") {
        "; if the dataset was changed on purpose, resume with `allow_changed_dataset(true)` of the builder"
    } else {
        ""
    }
}
