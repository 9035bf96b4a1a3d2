//! Recovery after the crash of a member.
//!
//! `membership` records members and detects their deaths. `intents` has the announcements of threads before
//! changes that take more than one access. `visit` restores what waiters need, in any number of processes at
//! once. `sweep` frees memory in one process, and finds it by `dirty_slabs`.

pub(in crate::arena) mod dirty_slabs;
pub(in crate::arena) mod intents;
pub(in crate::arena) mod membership;
pub(in crate::arena) mod sweep;
#[cfg(test)]
mod tests;
pub(in crate::arena) mod visit;
