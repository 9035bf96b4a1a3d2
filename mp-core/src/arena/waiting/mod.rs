//! Blocking: parking words, the lock between processes, and reports of waits.

pub(crate) mod block_on;
pub(crate) mod deadlock;
#[doc(hidden)]
pub mod giving_up;
pub(crate) mod lock;
pub(in crate::arena) mod parking;
pub(crate) mod slept;
pub(crate) mod spin;
pub(crate) mod waits;
