//! Threads that wait at a `Condition`.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::check_process;
use crate::error::runtime;
use crate::names::give;
use crate::object::handle::Handle;
use crate::object::pickle::reduce_handle;
use crate::wait::{Attempt, limit, wait};

/// Waiting threads of a condition, without its lock. If a process is killed, its waiting threads are removed,
/// and a notification that they have not handled goes to another thread.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct Waiters {
    condition: mp::Condition,
}

impl From<mp::Condition> for Waiters {
    fn from(condition: mp::Condition) -> Self {
        Self { condition }
    }
}

#[pymethods]
impl Waiters {
    #[new]
    fn new() -> PyResult<Self> {
        mp::Condition::new().map(Self::from).map_err(runtime)
    }

    /// Releases the lock, waits for a notification, and acquires the lock again. Returns False if the time
    /// limit has expired.
    fn wait(&self, lock: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<bool> {
        let (py, limit) = (lock.py(), limit(true, timeout)?);
        let waiter = self.condition.enlist().map_err(runtime)?;
        let saved = lock.call_method0("_release_save")?;
        let waited = wait(py, limit, waiter, |mut waiter, time| {
            if waiter.wait_timeout(time) { Attempt::Done(waiter) } else { Attempt::Late(waiter) }
        });
        // A waiter that a signal has interrupted is dropped, and its notification goes to another waiter.
        let notified = waited.map(|waited| match waited {
            Ok(_) => true,
            Err(waiter) => waiter.leave(),
        });
        let restored = lock.call_method1("_acquire_restore", (saved,));
        let notified = notified?;
        restored.map(|_| notified)
    }

    /// Notifies up to `n` waiting threads. Returns their number.
    fn notify(&self, n: usize) -> PyResult<usize> {
        self.condition.notify(n).map_err(runtime)
    }

    fn __len__(&self) -> PyResult<usize> {
        check_process()?;
        Ok(self.condition.waiting())
    }

    fn _give_name(&self, name: &str) -> PyResult<()> {
        give(|| self.condition.clone().named(name))
    }

    fn _given_name(&self) -> Option<String> {
        self.condition.given_name()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        check_process()?;
        reduce_handle(py, "a condition", Handle::Waiters(self.condition.clone()))
    }
}
