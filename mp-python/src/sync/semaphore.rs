//! `Semaphore` and `BoundedSemaphore`.

use std::sync::OnceLock;

use mp::sync::AcquireError;
use mp_core::sync::shared::{AtomicBool, Ordering};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::{acquire, check_process, release_error};
use crate::error::runtime;
use crate::names::{give, shown};
use crate::object::handle::Handle;
use crate::object::pickle::reduce_handle;

/// Maximum number of permits to which releases increase a semaphore. If the initial number is larger, the
/// initial number is the maximum.
const LIMIT: u32 = 8192;

enum Permits {
    Growing(mp::Semaphore),
    Bounded(mp::BoundedSemaphore, u32),
}

/// Semaphore between processes. Permits that a killed process had not released return to the semaphore.
#[pyclass(frozen, module = "multiproc._multiproc", subclass, weakref)]
pub struct Semaphore {
    /// Kind of the semaphore, and its permits. `__init__` sets it.
    permits: OnceLock<Permits>,
    /// `true` if the semaphore was added to the package's list of semaphores that this process has acquired.
    known: AtomicBool,
}

/// Semaphore between processes that can't be released more often than it was acquired. Permits that an ended
/// process had not released return to the semaphore.
#[pyclass(frozen, module = "multiproc._multiproc", extends = Semaphore, subclass, weakref)]
pub struct BoundedSemaphore;

impl Semaphore {
    fn of(permits: Permits) -> Self {
        Self { permits: OnceLock::from(permits), known: AtomicBool::new(false) }
    }

    fn unset() -> Self {
        Self { permits: OnceLock::new(), known: AtomicBool::new(false) }
    }

    /// Sets the permits, unless a call has done so before.
    fn init(&self, permits: Permits) {
        _ = self.permits.set(permits);
    }

    fn permits(&self) -> PyResult<&Permits> {
        let missing = || PyRuntimeError::new_err("Semaphore.__init__() was not called by the subclass");
        self.permits.get().ok_or_else(missing)
    }

    fn value(&self) -> PyResult<usize> {
        check_process()?;
        // `holders` also releases the permits of dead processes.
        Ok(match self.permits()? {
            Permits::Growing(permits) => {
                permits.holders();
                permits.available()
            }
            Permits::Bounded(permits, _) => {
                permits.holders();
                permits.available()
            }
        })
    }
}

fn checked(value: i64) -> PyResult<u32> {
    u32::try_from(value).map_err(|_| PyValueError::new_err(format!("a semaphore can't have {value} permits")))
}

fn created<T>(made: Result<T, mp::Error>) -> PyResult<T> {
    made.map_err(|error| match error {
        mp::Error::LimitExceeded(_) | mp::Error::InvalidArgument(_) => {
            PyValueError::new_err(error.to_string())
        }
        error => runtime(error),
    })
}

/// Returns the Python object of a received semaphore.
pub(crate) fn growing(py: Python<'_>, permits: mp::Semaphore) -> PyResult<Bound<'_, PyAny>> {
    Ok(Bound::new(py, Semaphore::of(Permits::Growing(permits)))?.into_any())
}

/// Returns the Python object of a received semaphore.
pub(crate) fn bounded(
    py: Python<'_>,
    permits: mp::BoundedSemaphore,
    most: u32,
) -> PyResult<Bound<'_, PyAny>> {
    let base = Semaphore::of(Permits::Bounded(permits, most));
    Ok(Bound::new(py, PyClassInitializer::from(base).add_subclass(BoundedSemaphore))?.into_any())
}

#[pymethods]
impl Semaphore {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(value=1, *, ctx=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self::unset()
    }

    #[pyo3(signature = (value = 1, *, ctx = None))]
    fn __init__(&self, value: i64, ctx: Option<Py<PyAny>>) -> PyResult<()> {
        let _ = ctx;
        let value = checked(value)?;
        self.init(Permits::Growing(created(mp::Semaphore::with_limit(value, value.max(LIMIT)))?));
        Ok(())
    }

    /// Acquires the semaphore. Returns False if it did not become available in time.
    #[pyo3(signature = (block = true, timeout = None))]
    fn acquire(slf: &Bound<'_, Self>, block: bool, timeout: Option<f64>) -> PyResult<bool> {
        let this = slf.get();
        let permits = this.permits()?;
        if matches!(permits, Permits::Growing(_)) && !this.known.swap(true, Ordering::Relaxed) {
            let module = slf.py().import("multiproc.synchronize")?;
            module.getattr("_semaphores")?.call_method1("add", (slf,))?;
        }
        acquire(slf.py(), block, timeout, |time| match permits {
            Permits::Growing(permits) => permits.acquire_kept(time),
            Permits::Bounded(permits, _) => permits.acquire_kept(time),
        })
    }

    /// Removes the permits that this process holds, before the process exits. They count as used, and do not
    /// return to the semaphore.
    fn _forget(&self) {
        if let Some(Permits::Growing(permits)) = self.permits.get() {
            permits.forget_kept();
        }
    }

    /// Releases the semaphore, which any thread or process may do. Raises ``ValueError`` at the limit: the
    /// initial value, or for a ``Semaphore`` 8192 if that is larger.
    fn release(&self) -> PyResult<()> {
        match self.permits()? {
            Permits::Growing(permits) => permits.release_any().map_err(|error| match error {
                AcquireError::TooMany { limit } => PyValueError::new_err(format!(
                    "the semaphore is at its limit of {}",
                    mp_core::quantity(limit, "permit")
                )),
                error => release_error(error),
            }),
            Permits::Bounded(permits, _) => permits.release_any().map_err(release_error),
        }
    }

    /// Returns the number of times that the semaphore can be acquired without blocking.
    fn get_value(&self) -> PyResult<usize> {
        self.value()
    }

    /// Returns True if the semaphore can't be acquired without blocking.
    fn locked(&self) -> PyResult<bool> {
        Ok(self.value()? == 0)
    }

    /// Returns this object. Classes of the standard library that use this package's context, such as
    /// `concurrent.futures.ProcessPoolExecutor`, access the underlying semaphore by this name.
    #[getter]
    fn _semlock<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    /// The same as `locked`.
    fn _is_zero(&self) -> PyResult<bool> {
        self.locked()
    }

    /// The same as `get_value`.
    fn _get_value(&self) -> PyResult<usize> {
        self.value()
    }

    fn __enter__(slf: &Bound<'_, Self>) -> PyResult<bool> {
        Self::acquire(slf, true, None)
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release()
    }

    fn _give_name(&self, name: &str) -> PyResult<()> {
        let permits = self.permits()?;
        give(|| match permits {
            Permits::Growing(permits) => drop(permits.clone().named(name)),
            Permits::Bounded(permits, _) => drop(permits.clone().named(name)),
        })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        check_process()?;
        let handle = match self.permits()? {
            Permits::Growing(permits) => Handle::Semaphore(permits.clone()),
            Permits::Bounded(permits, most) => Handle::BoundedSemaphore(permits.clone(), *most),
        };
        reduce_handle(py, "a semaphore", handle)
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let class = slf.get_type().name()?;
        let value = slf.get().value().map_or_else(|_| "unknown".to_owned(), |value| value.to_string());
        let (name, most) = match slf.get().permits.get() {
            None => (None, String::new()),
            Some(Permits::Growing(permits)) => (permits.given_name(), String::new()),
            Some(Permits::Bounded(permits, most)) => (permits.given_name(), format!(", maxvalue={most}")),
        };
        Ok(format!("<{class}({}value={value}{most})>", shown(slf.py(), name, "", ", ")?))
    }
}

#[pymethods]
impl BoundedSemaphore {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(value=1, *, ctx=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Semaphore::unset()).add_subclass(Self)
    }

    #[pyo3(signature = (value = 1, *, ctx = None))]
    fn __init__(slf: PyRef<'_, Self>, value: i64, ctx: Option<Py<PyAny>>) -> PyResult<()> {
        let _ = ctx;
        let value = checked(value)?;
        slf.as_super().init(Permits::Bounded(created(mp::BoundedSemaphore::new(value))?, value));
        Ok(())
    }
}
