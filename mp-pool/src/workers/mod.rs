//! State of the workers: their tasks, and the transfer of tasks between them.

mod backpressure;
mod choice;
mod resize;
pub(crate) mod retry_queue;
pub(crate) mod start_backoff;
pub(crate) mod state;
mod work_stealing;
pub(crate) mod worker;
