//! Handles of objects of other members.
//!
//! A file for each kind of object. `connected` is the part that all of them have, and `relay` the copies of
//! channels in the shared memory of this process.

pub(crate) mod barrier;
pub(crate) mod broadcast;
pub(crate) mod connected;
pub(crate) mod event;
pub(crate) mod queue;
mod relay;
pub(crate) mod semaphore;
pub(crate) mod watch;
