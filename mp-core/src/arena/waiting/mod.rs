//! Words that processes sleep on: parking words, and the lock between processes.

pub(crate) mod block_on;
pub(crate) mod lock;
pub(in crate::arena) mod parking;
