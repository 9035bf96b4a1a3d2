//! Processes of the arena.
//!
//! `membership` records members and detects their deaths. `intents` has the announcements of threads
//! before changes that take more than one access. `dirty_slabs` records the slabs in which a member may
//! hold something.

pub(crate) mod dirty_slabs;
pub(crate) mod intents;
pub(crate) mod membership;
