//! `Lock` and `RLock`.

use mp::BoundedSemaphore;
use mp::sync::RawValue;
use pyo3::exceptions::{PyAssertionError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{Bound, intern};

use super::{acquire, check_process, release_error};
use crate::error::runtime;
use crate::names::{give, shown};
use crate::object::handle::Handle;
use crate::object::pickle::reduce_handle;

/// Lock between processes. Any thread or process may release it. The lock is released when the process that
/// acquired it is killed.
#[pyclass(frozen, module = "multiproc._multiproc", subclass, weakref)]
pub struct Lock {
    permit: BoundedSemaphore,
}

/// Recursive lock between processes. Only the thread that acquired the lock may release it. The lock is
/// released when its process is killed.
#[pyclass(frozen, module = "multiproc._multiproc", subclass, weakref)]
pub struct RLock {
    permit: BoundedSemaphore,
    /// Number of times that the owner has acquired the lock. Only the owner uses it.
    depth: RawValue<u32>,
}

/// Returns `true` if a live process has the lock.
fn is_locked(permit: &BoundedSemaphore) -> PyResult<bool> {
    check_process()?;
    Ok(!permit.holders().is_empty())
}

/// Returns the name of the owner, as `multiprocessing` prints it.
fn owner(py: Python<'_>, permit: &BoundedSemaphore) -> PyResult<String> {
    if check_process().is_err() {
        return Ok("unknown".to_owned());
    }
    if permit.is_kept_here() {
        let process = py.import("multiprocessing.process")?.call_method0("current_process")?;
        let thread = py.import("threading")?.call_method0("current_thread")?;
        let (process, thread) = (process.getattr(intern!(py, "name"))?, thread.getattr(intern!(py, "name"))?);
        let main = thread.eq("MainThread")?;
        return Ok(if main { process.to_string() } else { format!("{process}|{thread}") });
    }
    Ok(match permit.holders().first() {
        None => "None",
        Some(holder) if holder.pid == std::process::id() => "SomeOtherThread",
        Some(_) => "SomeOtherProcess",
    }
    .to_owned())
}

impl From<BoundedSemaphore> for Lock {
    fn from(permit: BoundedSemaphore) -> Self {
        Self { permit }
    }
}

impl From<(BoundedSemaphore, RawValue<u32>)> for RLock {
    fn from((permit, depth): (BoundedSemaphore, RawValue<u32>)) -> Self {
        Self { permit, depth }
    }
}

#[pymethods]
impl Lock {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(*, ctx=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Ok(Self { permit: BoundedSemaphore::new(1).map_err(runtime)? })
    }

    /// Checks the arguments, which a subclass may pass from its own ``__init__``.
    #[pyo3(signature = (*, ctx = None))]
    #[allow(clippy::unused_self, reason = "a method of Python")]
    fn __init__(&self, ctx: Option<Py<PyAny>>) {
        let _ = ctx;
    }

    /// Acquires the lock. Returns False if it did not become available in time.
    #[pyo3(signature = (block = true, timeout = None))]
    fn acquire(&self, py: Python<'_>, block: bool, timeout: Option<f64>) -> PyResult<bool> {
        acquire(py, block, timeout, |time| self.permit.acquire_kept(time))
    }

    /// Releases the lock, which any thread or process may do.
    fn release(&self) -> PyResult<()> {
        self.permit.release_any().map_err(release_error)
    }

    /// Returns True if a thread or process has the lock.
    fn locked(&self) -> PyResult<bool> {
        is_locked(&self.permit)
    }

    fn _is_owned(&self) -> PyResult<bool> {
        check_process()?;
        Ok(self.permit.is_kept_here())
    }

    fn _release_save(&self) -> PyResult<u32> {
        self.release().map(|()| 1)
    }

    fn _acquire_restore(&self, py: Python<'_>, saved: u32) -> PyResult<()> {
        let _ = saved;
        self.acquire(py, true, None).map(drop)
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<bool> {
        self.acquire(py, true, None)
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release()
    }

    fn _give_name(&self, name: &str) -> PyResult<()> {
        give(|| self.permit.clone().named(name))
    }

    fn _given_name(&self) -> Option<String> {
        self.permit.given_name()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        check_process()?;
        reduce_handle(py, "a lock", Handle::Lock(self.permit.clone()))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let (py, permit) = (slf.py(), &slf.get().permit);
        let name = shown(py, permit.given_name(), "", ", ")?;
        Ok(format!("<{}({name}owner={})>", slf.get_type().name()?, owner(py, permit)?))
    }
}

impl RLock {
    fn check_owned(&self) -> PyResult<()> {
        check_process()?;
        if self.permit.is_kept_here() {
            return Ok(());
        }
        Err(PyAssertionError::new_err("attempt to release recursive lock not owned by thread"))
    }
}

#[pymethods]
impl RLock {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(*, ctx=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let permit = BoundedSemaphore::new(1).map_err(runtime)?;
        Ok(Self { permit, depth: RawValue::new(0).map_err(runtime)? })
    }

    /// Checks the arguments, which a subclass may pass from its own ``__init__``.
    #[pyo3(signature = (*, ctx = None))]
    #[allow(clippy::unused_self, reason = "a method of Python")]
    fn __init__(&self, ctx: Option<Py<PyAny>>) {
        let _ = ctx;
    }

    /// Acquires the lock, also if this thread has it already. Returns False if it did not become available
    /// in time.
    #[pyo3(signature = (block = true, timeout = None))]
    fn acquire(&self, py: Python<'_>, block: bool, timeout: Option<f64>) -> PyResult<bool> {
        if self.permit.is_kept_here() {
            let deeper = self.depth.get().checked_add(1);
            let overflow = || PyOverflowError::new_err("the lock's recursion count overflows");
            self.depth.set(deeper.ok_or_else(overflow)?);
            return Ok(true);
        }
        let acquired = acquire(py, block, timeout, |time| self.permit.acquire_kept(time))?;
        if acquired {
            self.depth.set(1);
        }
        Ok(acquired)
    }

    /// Releases the lock once. The lock is free after this thread has released it as often as acquired.
    fn release(&self) -> PyResult<()> {
        self.check_owned()?;
        let depth = self.depth.get();
        if depth > 1 {
            self.depth.set(depth - 1);
            return Ok(());
        }
        self.permit.release().map_err(release_error)
    }

    /// Returns True if a thread or process has the lock.
    fn locked(&self) -> PyResult<bool> {
        is_locked(&self.permit)
    }

    fn _is_owned(&self) -> PyResult<bool> {
        check_process()?;
        Ok(self.permit.is_kept_here())
    }

    fn _release_save(&self) -> PyResult<u32> {
        self.check_owned()?;
        let depth = self.depth.get();
        self.permit.release().map_err(release_error)?;
        Ok(depth)
    }

    fn _acquire_restore(&self, py: Python<'_>, saved: u32) -> PyResult<()> {
        self.acquire(py, true, None)?;
        self.depth.set(saved);
        Ok(())
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<bool> {
        self.acquire(py, true, None)
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release()
    }

    fn _give_name(&self, name: &str) -> PyResult<()> {
        give(|| self.permit.clone().named(name))
    }

    fn _given_name(&self) -> Option<String> {
        self.permit.given_name()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        check_process()?;
        reduce_handle(py, "a lock", Handle::RLock(self.permit.clone(), self.depth.clone()))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let (class, this) = (slf.get_type().name()?, slf.get());
        let name = shown(slf.py(), this.permit.given_name(), "", ", ")?;
        let owner = owner(slf.py(), &this.permit)?;
        let count = match owner.as_str() {
            "None" => "0".to_owned(),
            "unknown" => "unknown".to_owned(),
            "SomeOtherThread" | "SomeOtherProcess" => "nonzero".to_owned(),
            _ => this.depth.get().to_string(),
        };
        Ok(format!("<{class}({name}{owner}, {count})>"))
    }
}
