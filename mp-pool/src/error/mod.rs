//! Errors of tasks and of the pool itself.

mod attempts;
mod broken_pool;
mod encode_error;
mod pool_error;
mod task_error;
mod task_raised;
mod worker_lost;

pub use attempts::{Attempts, FailureKind};
pub use broken_pool::BrokenPool;
pub(crate) use encode_error::EncodeError;
pub use pool_error::PoolError;
pub use task_error::TaskError;
pub use task_raised::TaskRaised;
pub(crate) use task_raised::worker_named;
pub use worker_lost::WorkerLost;
