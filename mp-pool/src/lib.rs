//! Pools of worker processes.
//!
//! ```
//! use mp_tensor::{FrozenTensor, Tensor};
//! use mp_pool::Pool;
//!
//! fn mean(column: FrozenTensor<f32>) -> f32 {
//!     column.iter().sum::<f32>() / column.len() as f32
//! }
//!
//! let table = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 9.0], &[3, 2])?.freeze();
//! let columns = [table.select(1, 0)?, table.select(1, 1)?]; // views: nothing is copied
//! let pool = Pool::new(2)?;
//! assert_eq!(pool.map(mean, columns)?, [3.0, 5.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The three main types: [`Pool`], the workers; [`AsyncResult`], a pending result; and [`TaskError`], the
//! error of a task.
//!
//! | items | purpose |
//! |---|---|
//! | [`Pool`], [`PoolBuilder`] | the workers and their start |
//! | [`StatePool`] | workers that keep a state between tasks |
//! | [`Pool::apply`], [`Pool::map`], [`Pool::imap`], … | calls of a function in the workers |
//! | [`Pool::task`], [`Call`] | the same with options: chunks, time-outs, retries ([`Backoff`]) |
//! | [`AsyncResult`], [`MapResult`], [`Imap`] | pending results: block, poll, await or set a callback |
//! | [`TaskStream`] | open-ended call: tasks are pushed, and results taken, one by one |
//! | [`Pool::resize`], [`Pool::recycle`] | more workers, fewer workers or new workers at run time |
//! | [`Pool::metrics`], [`PoolMetrics`] | statistics: tasks, times, workers |
//! | [`Pool::running`], [`note`](note()) | running tasks and the progress that they report |
//! | [`TaskError`], [`PoolError`] | errors, with a table of all failures |
//!
//! # Guarantees
//! - **When a worker dies, only its running task is lost** (for a rare exception see [`TaskError`]). The
//!   worker is replaced.
//! - **Each task has an outcome**, even if its worker dies, or the pool breaks, is terminated or is dropped.
//!   A worker that is stopped (SIGSTOP, a debugger) keeps the task that it has begun until the worker resumes
//!   or the time limit ([`Call::timeout`]) has expired.
//! - **User code may panic** anywhere: a panic affects at most its own task.
//! - **Tensors are not copied**, neither in arguments nor in results.
//! - **Tasks and results travel through queues**, which need no system call while both sides are awake.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
mod child;
mod dispatcher;
mod error;
#[cfg(feature = "net")]
mod forward;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
#[doc(hidden)]
pub mod fuzz;
mod metrics;
mod slots;
#[doc(hidden)]
pub mod steps;
mod tasks;

pub use api::as_completed::{AsCompleted, as_completed};
pub use api::builder::PoolBuilder;
pub use api::call::{Call, TryApplyError};
pub use api::imap::Imap;
pub use api::pool::Pool;
pub use api::result::{AsyncResult, MapResult, Multiple, ResultKind, Single};
#[cfg(feature = "net")]
pub use api::served::ServedPool;
pub use api::state_pool::{StatePool, StatePoolBuilder};
pub use api::stream::{Outcome, PendingError, PushError, TaskStream, Ticket};
pub use api::tuple_fn::{TupleFn, TupleStateFn};
pub use child::main_loop::current_worker;
pub use child::main_loop::note;
pub use error::{Attempts, BrokenPool, FailureKind, PoolError, TaskError, TaskRaised, WorkerLost};
pub use metrics::running::RunningTask;
pub use metrics::snapshot::{FailedStarts, Latencies, PoolMetrics, WorkerMetrics, WorkerState};
pub use mp_core::message::IntoOutcome;
pub use mp_spawn::Backoff;
pub use tasks::call_outcomes::Progress;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
