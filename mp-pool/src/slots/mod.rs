//! Slots of the workers, in the process that owns the pool: their processes, their tasks, and the transfer of
//! tasks between them. [`child`](crate::child) is the code that runs in a worker process.

mod backpressure;
pub(crate) mod pending;
mod resize;
pub(crate) mod slot;
pub(crate) mod start_backoff;
pub(crate) mod state;
mod work_stealing;
