//! Blocking: the loop of all blocking calls, the lock between processes, and reports of waits.

pub(crate) mod block_on;
pub(crate) mod deadlock;
pub(crate) mod lock;
pub(crate) mod reports;
pub(crate) mod wait_limit;
