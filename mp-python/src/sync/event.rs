//! `Event`.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::check_process;
use crate::error::runtime;
use crate::names::{give, shown};
use crate::object::handle::Handle;
use crate::object::pickle::reduce_handle;
use crate::wait::{Attempt, limit, wait};

/// Flag between processes that threads can wait for.
#[pyclass(frozen, module = "multiproc._multiproc", subclass, weakref)]
pub struct Event {
    event: mp::Event,
}

impl From<mp::Event> for Event {
    fn from(event: mp::Event) -> Self {
        Self { event }
    }
}

#[pymethods]
impl Event {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(*, ctx=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        mp::Event::new().map(Self::from).map_err(runtime)
    }

    /// Checks the arguments, which a subclass may pass from its own ``__init__``.
    #[pyo3(signature = (*, ctx = None))]
    #[allow(clippy::unused_self, reason = "a method of Python")]
    fn __init__(&self, ctx: Option<Py<PyAny>>) {
        let _ = ctx;
    }

    /// Returns True if the event is set.
    fn is_set(&self) -> PyResult<bool> {
        check_process()?;
        Ok(self.event.is_set())
    }

    /// Sets the event, and wakes all threads that wait for it.
    fn set(&self) -> PyResult<()> {
        self.event.set().map(drop).map_err(runtime)
    }

    /// Clears the event.
    fn clear(&self) -> PyResult<()> {
        self.event.clear().map(drop).map_err(runtime)
    }

    /// Waits until the event is set. Returns False if the time limit has expired.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let before = self.event.observe().map_err(runtime)?;
        let set =
            wait(py, limit(true, timeout)?, (), |(), time| match self.event.wait_since(before, time) {
                Ok(false) => Attempt::Late(()),
                result => Attempt::Done(result),
            })?;
        set.unwrap_or(Ok(false)).map_err(runtime)
    }

    fn _give_name(&self, name: &str) -> PyResult<()> {
        give(|| self.event.clone().named(name))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        check_process()?;
        reduce_handle(py, "an event", Handle::Event(self.event.clone()))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let state = slf.get().is_set().map_or("unknown", |set| if set { "set" } else { "unset" });
        let name = shown(slf.py(), slf.get().event.given_name(), " ", "")?;
        Ok(format!("<{}{name} at {:#x} {state}>", slf.get_type().qualname()?, slf.as_ptr() as usize))
    }
}
