//! Handles of objects of other members.
//!
//! Each kind of object has a file. `connected` contains the common part, and `relay` copies channels into the
//! shared memory of this process.

pub(crate) mod barrier;
pub(crate) mod broadcast;
pub(crate) mod connected;
pub(crate) mod event;
pub(crate) mod put_many;
pub(crate) mod queue;
mod relay;
pub(crate) mod semaphore;
pub(crate) mod watch;
