//! Locks, semaphores, events, conditions and barriers with the names and signatures of `multiprocessing`.
//!
//! | class | built on | when its owner is killed |
//! |---|---|---|
//! | `Lock`, `RLock` | a semaphore with one permit, which names the owning process and thread | the lock is released |
//! | `Semaphore`, `BoundedSemaphore` | permits that name their holders | its permits return to the semaphore |
//! | `Event` | a flag | no effect |
//! | `Condition` (in Python) | [`waiters::Waiters`] and a lock | its waiting threads are removed, and other threads get their notifications |
//! | `Barrier` (in Python) | [`barrier::BarrierState`] | the barrier breaks |
//!
//! A lock may be released by another thread or process than the one that acquired it, as in
//! `multiprocessing`. So the library's `Lock`, which belongs to a thread, can't be used here.

pub mod barrier;
pub mod event;
pub mod lock;
pub mod semaphore;
pub mod waiters;

use mp::sync::AcquireError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::time::Duration;

use crate::error::{check_process, runtime};
use crate::wait::{Attempt, limit, wait};

/// Takes a permit. Returns `false` if the time limit has expired.
fn acquire(
    py: Python<'_>,
    block: bool,
    timeout: Option<f64>,
    attempt: impl Fn(Duration) -> Result<bool, AcquireError> + Sync + Send,
) -> PyResult<bool> {
    let acquired = wait(py, limit(block, timeout)?, (), |(), time| match attempt(time) {
        Ok(false) => Attempt::Late(()),
        result => Attempt::Done(result),
    })?;
    acquired.unwrap_or(Ok(false)).map_err(runtime)
}

/// Returns the exception for a permit that could not be released.
fn release_error(error: AcquireError) -> PyErr {
    match error {
        AcquireError::NotKept | AcquireError::TooMany { .. } => {
            PyValueError::new_err("semaphore or lock released too many times")
        }
        error => runtime(error),
    }
}
