//! Algorithms on shared words, as steps of one shared access each ([`Steps`](crate::mem::Steps)).
//!
//! Each algorithm is a type named for its operation, and its module has a table of the words, the processes
//! that change them, and the effects of a death at each point. The arena runs the same steps that the models
//! check in every order, with a death after each step.
//!
//! | module | contents |
//! |---|---|
//! | [`block`] | holders of a block: its state word, its seats, its pages of seats, its child blocks |
//! | [`envelope`] | groups of envelopes, and hints of free ones |
//! | [`lock`] | lock whose holder may die, and the search for deadlocks |
//! | [`clock`] | clocks of device streams |
//! | [`device`] | order of a device's streams, and records of the use of its memory |
//! | [`recovery`] | recovery of a dead member |
//! | [`update`] | update of several words at once |
//!
//! # Stability
//! These modules are public for the models, for verification and for the other crates of this project. They
//! are not covered by semantic versioning: any release may change or remove an item.

pub mod block;
pub mod clock;
pub mod device;
pub mod envelope;
pub mod lock;
pub mod recovery;
#[cfg(test)]
mod tests;
pub mod update;

pub use block::{
    AttachRecord, BlockAt, ClaimBlock, FreeCheck, FreePages, INLINE_SEATS, JoinOutcome, JoinParent,
    LeaveOutcome, LeaveParent, LinkPage, PAGE_HEADER, PublishBlock, ReleaseOutcome, ReleaseSeat,
    SlabSnapshot, TakeOutcome, TakeSeat, UnclaimBlock, generation_of, link_of, with_link,
};
pub(crate) use block::{page_next, page_owner};
pub use envelope::{
    AdoptedGroup, EmptyGroup, EnvelopesAt, FillGroup, GroupAt, HintGroup, HintsAt, TouchedGroups,
    UnmarkGroup, adopt_group, begin_fill,
};
pub use recovery::{BeginRecovery, CheckSoleRecovery, end_recovery};
pub use update::{DeathOracle, LiveMembers, Update, UpdateAt, UpdateOutcome, UpdatePlan};
