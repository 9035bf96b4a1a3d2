//! `Queue`.

use std::sync::Arc;

use mp::{GetError, PutError};
use mp_core::mutex::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::{PeerLost, empty, full, runtime, shut_down};
use crate::object::Object;
use crate::object::handle::Handle;
use crate::object::pickle::{dumps, loads, reduce_handle};
use crate::wait::{Attempt, limit, wait};

/// Queue of Python objects between processes.
#[pyclass(frozen, module = "multiproc._multiproc", subclass)]
pub struct Queue {
    /// `None` after `close`.
    queue: Mutex<Option<Arc<mp::Queue<Object>>>>,
    maxsize: usize,
}

impl From<mp::Queue<Object>> for Queue {
    fn from(queue: mp::Queue<Object>) -> Self {
        let maxsize = queue.capacity();
        Self { queue: Mutex::new(Some(Arc::new(queue))), maxsize }
    }
}

impl Queue {
    fn open(&self) -> PyResult<Arc<mp::Queue<Object>>> {
        self.queue.lock().clone().ok_or_else(|| PyValueError::new_err("Queue is closed"))
    }
}

/// Returns the exception for a message that was not put.
fn put_error(py: Python<'_>, error: PutError<Object>) -> PyErr {
    match error {
        PutError::Full(_) => full(py),
        PutError::Closed(_) => shut_down(py),
        error @ (PutError::Deserted { .. } | PutError::Disconnected(_)) => {
            PeerLost::new_err(error.forget().to_string())
        }
        error => runtime(error.forget()),
    }
}

/// Returns the exception for a wait that got no message.
fn get_error(py: Python<'_>, error: GetError) -> PyErr {
    match error {
        GetError::Empty => empty(py),
        error @ (GetError::Deserted { .. } | GetError::Disconnected) => PeerLost::new_err(error.to_string()),
        error => runtime(error),
    }
}

#[pymethods]
impl Queue {
    #[new]
    #[pyo3(signature = (maxsize = 0, *, ctx = None))]
    fn new(maxsize: i64, ctx: Option<Py<PyAny>>) -> PyResult<Self> {
        let _ = ctx;
        let queue = match usize::try_from(maxsize).unwrap_or(0) {
            0 => mp::Queue::unbounded(),
            maxsize => mp::Queue::bounded(maxsize),
        };
        queue.map(Self::from).map_err(runtime)
    }

    /// Puts an object into the queue.
    #[pyo3(signature = (obj, block = true, timeout = None))]
    fn put(&self, obj: &Bound<'_, PyAny>, block: bool, timeout: Option<f64>) -> PyResult<()> {
        let py = obj.py();
        let queue = self.open()?;
        let object = dumps(obj)?;
        let put = wait(py, limit(block, timeout)?, object, |object, time| {
            let result = if time.is_zero() { queue.try_put(object) } else { queue.put_timeout(object, time) };
            match result {
                Err(PutError::Full(object)) => Attempt::Late(object),
                result => Attempt::Done(result),
            }
        })?;
        match put {
            Ok(result) => result.map_err(|error| put_error(py, error)),
            Err(_) => Err(full(py)),
        }
    }

    /// Takes the first object out of the queue.
    #[pyo3(signature = (block = true, timeout = None))]
    fn get<'py>(&self, py: Python<'py>, block: bool, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.open()?;
        let got = wait(py, limit(block, timeout)?, (), |(), time| {
            let result = if time.is_zero() { queue.try_get() } else { queue.get_timeout(time) };
            match result {
                Err(GetError::Empty) => Attempt::Late(()),
                result => Attempt::Done(result),
            }
        })?;
        match got {
            Ok(Ok(Some(object))) => loads(py, object),
            Ok(Ok(None)) => Err(shut_down(py)),
            Ok(Err(error)) => Err(get_error(py, error)),
            Err(()) => Err(empty(py)),
        }
    }

    /// The same as `put(obj, False)`.
    fn put_nowait(&self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(obj, false, None)
    }

    /// The same as `get(False)`.
    fn get_nowait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.get(py, false, None)
    }

    /// Number of objects in the queue.
    fn qsize(&self) -> PyResult<usize> {
        Ok(self.open()?.len())
    }

    /// Whether the queue has no object.
    fn empty(&self) -> PyResult<bool> {
        Ok(self.open()?.is_empty())
    }

    /// Whether the queue has as many objects as it can have.
    fn full(&self) -> PyResult<bool> {
        Ok(self.open()?.is_full())
    }

    /// Ends the use of the queue in this process. Objects in it stay.
    fn close(&self) {
        *self.queue.lock() = None;
    }

    /// Does nothing: objects are in the queue when `put` returns, and no thread has them.
    fn join_thread(&self) {}

    /// Does nothing, as `join_thread`.
    fn cancel_join_thread(&self) {}

    /// Ends the use of the queue in all processes. Further puts raise `ShutDown`, and so do further gets when
    /// it is empty.
    fn shutdown(&self) -> PyResult<()> {
        self.open()?.close();
        Ok(())
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let queue = (*self.open()?).clone();
        reduce_handle(py, "a queue", Handle::Queue(queue))
    }

    fn __repr__(&self) -> String {
        match &*self.queue.lock() {
            Some(queue) => format!("<multiproc.Queue {} of {}>", queue.len(), self.maxsize),
            None => "<multiproc.Queue closed>".to_string(),
        }
    }
}
