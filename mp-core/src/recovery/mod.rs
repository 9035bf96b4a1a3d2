//! Recovery after the crash of a member.
//!
//! `recover` restores what waiters need, in any number of processes at once. `reclaim` frees memory in one
//! process.

pub(crate) mod reclaim;
mod reclaim_events;
pub(crate) mod recover;
#[cfg(test)]
mod tests;

use crate::arena::{Arena, view};

view! {
    /// Recovery of an arena after the death of members: unblocks living members that wait for dead members,
    /// and frees memory.
    pub struct Recovery;
}
