//! Class `SimpleQueue`.

use std::time::Duration;

use mp::Queue as Messages;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};

use super::shared::{Shared, alias, reduce_subclass};
use crate::error::{empty, runtime};
use crate::object::Object;
use crate::object::handle::Handle;

/// Queue without a limit, and with few methods.
#[pyclass(frozen, module = "multiproc._multiproc", subclass)]
pub struct SimpleQueue(Shared);

impl From<Messages<Object>> for SimpleQueue {
    fn from(queue: Messages<Object>) -> Self {
        Self(Shared::of(&queue, None))
    }
}

impl SimpleQueue {
    const NAME: &'static str = "SimpleQueue";
}

#[pymethods]
impl SimpleQueue {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(*, ctx=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self(Shared::new())
    }

    #[pyo3(signature = (*, ctx = None))]
    fn __init__(&self, ctx: Option<Py<PyAny>>) -> PyResult<()> {
        let _ = ctx;
        self.0.init(&Shared::of(&Messages::unbounded().map_err(runtime)?, None));
        Ok(())
    }

    /// Puts an object into the queue.
    fn put(&self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.put(obj, None, Self::NAME)
    }

    /// Returns an alias of the class, for type annotations.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        item: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        alias(class, item)
    }

    /// Takes the first object out of the queue, and waits while there is none.
    fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.get(py, None, false, Self::NAME).map(|(object, _)| object)
    }

    /// Returns this object, which `concurrent.futures.ProcessPoolExecutor` waits for and reads like a
    /// connection.
    #[getter]
    fn _reader<'py>(slf: &Bound<'py, Self>) -> Bound<'py, Self> {
        slf.clone()
    }

    /// Returns the descriptor that is readable while the queue has objects.
    fn fileno(&self) -> PyResult<i32> {
        self.0.fileno(Self::NAME)
    }

    /// Takes the first object without waiting. Returns ``None`` if there is none: the descriptor may be
    /// readable although the queue is empty.
    fn recv<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.0.get(py, Some(Duration::ZERO), false, Self::NAME) {
            Ok((object, _)) => Ok(Some(object)),
            Err(error) if error.is_instance(py, &empty(py).get_type(py)) => {
                self.0.open(Self::NAME)?.update_ready();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns ``True`` if the queue has no objects.
    fn empty(&self) -> PyResult<bool> {
        Ok(self.0.open(Self::NAME)?.patient.is_empty())
    }

    /// Ends the use of the queue in this process. Objects in it stay.
    fn close(&self) {
        self.0.close();
    }

    fn _give_name(&self, name: &str) -> PyResult<()> {
        self.0.give_name(name, Self::NAME)
    }

    /// Returns the state that a subclass sends: the queue, without attributes of the subclass.
    fn __getstate__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, [Bound::new(py, Self(self.0.share(Self::NAME)?))?])
    }

    fn __setstate__(&self, state: (Bound<'_, Self>,)) -> PyResult<()> {
        self.0.init(&state.0.get().0.share(Self::NAME)?);
        Ok(())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let py = slf.py();
        if !slf.get_type().is(py.get_type::<Self>()) {
            return reduce_subclass(slf);
        }
        slf.get().0.reduce(py, Self::NAME, |open| Handle::SimpleQueue(open.patient.clone()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.0.describe(py, Self::NAME)
    }
}
