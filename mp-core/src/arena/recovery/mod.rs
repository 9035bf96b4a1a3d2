//! What a crashed member leaves, and who gives it up.
//!
//! `membership` says which process is a member and which is dead, `intents` is what its threads announce before a change that
//! takes more than one access. `visit` does what waiters need after a crash, in any number of processes at once; `sweep` frees
//! memory, in one process, and finds it by `dirty_slabs`.

pub(in crate::arena) mod dirty_slabs;
pub(in crate::arena) mod intents;
pub(in crate::arena) mod membership;
pub(in crate::arena) mod sweep;
#[cfg(test)]
mod tests;
pub(in crate::arena) mod visit;
