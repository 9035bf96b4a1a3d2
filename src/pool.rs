//! Pools of worker processes that run tasks, each task once.
//!
//! ```
//! use mp::{Pool, TaskError};
//!
//! let pool = Pool::new(2)?;
//! assert_eq!(pool.map(|x: u64| x * x, [1, 2, 3])?, [1, 4, 9]);
//! let later = pool.apply_async(|x: u64| if x < 10 { Ok(x) } else { Err("too large") }, 11);
//! assert!(matches!(later.get(), Err(TaskError::Raised(_)))); // the error or panic of the task
//! pool.join()?;
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! Start with three types: [`Pool`] owns the workers. [`AsyncResult`] is a pending result. [`TaskError`] is
//! the error of a task, and its documentation has a table of the causes. [`Pool::task`] returns a [`Call`]
//! with options: chunks, time-outs, retries.

#[doc(no_inline)]
pub use crate::{AsyncResult, Pool, TaskError};
#[cfg(feature = "net")]
#[cfg_attr(docsrs, doc(cfg(feature = "net")))]
pub use mp_pool::ServedPool;
pub use mp_pool::{
    AsCompleted, Attempts, Backoff, BrokenPool, Call, FailedStarts, FailureKind, Imap, Latencies, MapResult,
    Multiple, Outcome, PendingError, PoolBuilder, PoolError, PoolMetrics, Progress, PushError, ResultKind,
    RunningTask, Single, StatePool, StatePoolBuilder, TaskRaised, TaskStream, Ticket, TryApplyError, TupleFn,
    TupleStateFn, WorkerLost, WorkerMetrics, WorkerState, as_completed, current_worker, note,
};
