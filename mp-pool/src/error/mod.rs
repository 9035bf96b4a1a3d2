//! Errors of tasks and of the pool itself.

mod attempts;
mod encode_error;
mod pool_error;
mod task_error;
mod worker_lost;

pub use attempts::{Attempts, FailureKind};
pub(crate) use encode_error::EncodeError;
pub use pool_error::BrokenPool;
pub use pool_error::PoolError;
pub use task_error::TaskError;
pub use worker_lost::TaskRaised;
pub use worker_lost::WorkerLost;
pub(crate) use worker_lost::worker_named;
