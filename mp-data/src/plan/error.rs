//! Errors of plans, samplers and states.

use std::fmt;

/// Returns the text for a rank that is not among the ranks.
pub(crate) fn no_such_rank(rank: u32, world: u32) -> String {
    format!("rank {rank} with {world} ranks: a rank is below their number")
}

/// Error of a plan that can't be made, an order that can't continue, or a state of another plan.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A setting of the builder is invalid.
    #[allow(missing_docs)]
    Setting { setting: &'static str, reason: String },
    /// A sampler returned an index that the dataset doesn't have.
    #[allow(missing_docs)]
    IndexOutOfRange { epoch: u64, batch: u64, index: u64, len: u64 },
    /// The epoch can't be divided evenly among the ranks, with `Uneven::Error`.
    #[allow(missing_docs)]
    Uneven { epoch: u64, batch: u64, left: u64, world: u32 },
    /// A state was saved with another plan.
    #[allow(missing_docs)]
    StateDiffers { what: &'static str, state: String, plan: String },
    /// A state has a position that no loader can have reached.
    #[allow(missing_docs)]
    StateImpossible { what: &'static str },
    /// The checksum of a state is wrong.
    StateChanged,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting { setting, reason } => write!(f, "the plan's setting `{setting}`: {reason}"),
            Self::IndexOutOfRange { epoch, batch, index, len } => write!(
                f,
                "batch {batch} of epoch {epoch}: the sampler gave index {index}, the dataset has {len} \
                 samples"
            ),
            Self::Uneven { epoch, batch, left, world } => write!(
                f,
                "batch {batch} of epoch {epoch}: the last {left} can't be divided evenly among {world} \
                 ranks; choose Uneven::Pad or Uneven::Drop"
            ),
            Self::StateChanged => f.write_str(
                "the state was changed, or is incomplete: its checksum does not match what else is in it",
            ),
            Self::StateImpossible { what } => {
                write!(
                    f,
                    "the state names a place that no loader can have reached ({what}): no loader made it"
                )
            }
            Self::StateDiffers { what, state, plan } => {
                write!(
                    f,
                    "the state is of another plan: {what} is {state} in the state, {plan} in the plan"
                )?;
                if *what == "len" || *what == "order" || what.starts_with("hash of the ") {
                    f.write_str(
                        "; if the dataset was changed on purpose, resume with `allow_changed_dataset(true)` \
                         of the builder",
                    )?;
                }
                Ok(())
            }
        }
    }
}

mp_core::readable_debug!(PlanError);

impl std::error::Error for PlanError {}
