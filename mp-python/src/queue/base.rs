//! Class `Queue`, which is also the base of `JoinableQueue`.

use std::sync::Arc;
use std::time::Duration;

use mp::queue::Lease as MessageLease;
use mp::{GetError, Queue as Messages};
use pyo3::exceptions::{PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use super::handles::{Handles, WaitResult, get_error};
use super::joinable::{JoinableQueue, Tasks};
use super::lease::Lease;
use super::many;
use super::shared::{Shared, State, alias, options, reduce_subclass};
use crate::error::{empty, runtime, shut_down};
use crate::object::Object;
use crate::object::handle::Handle;
use crate::object::pickle::loads;
use crate::wait::limit;

/// Queue of Python objects between processes.
///
/// ``bytes`` bounds the bytes in the queue in addition to the number of objects. ``deliveries`` is the number
/// of times that ``get_ack`` delivers an object whose consumers die; 0 means no limit.
#[pyclass(frozen, module = "multiproc._multiproc", subclass)]
pub struct Queue(Shared);

impl From<Messages<Object>> for Queue {
    fn from(queue: Messages<Object>) -> Self {
        Self(Shared::of(&queue, None))
    }
}

impl Queue {
    /// Returns an object without a queue, which `__init__` sets later.
    pub(super) fn unset() -> Self {
        Self(Shared::new())
    }

    pub(super) fn init_with(&self, other: &Self) {
        self.0.init(&other.0);
    }

    /// Returns the Python object of a queue of tasks.
    pub(super) fn of_tasks(tasks: Tasks) -> Self {
        Self(Shared::of(&tasks.queue.queue().clone(), Some(tasks)))
    }

    fn name(&self) -> &'static str {
        let joinable = matches!(&*self.0.state.lock(), State::Open(open) if open.joinable.is_some());
        if joinable { "JoinableQueue" } else { "Queue" }
    }

    pub(super) fn open(&self) -> PyResult<Arc<Handles>> {
        self.0.open(self.name())
    }
}

/// Checks the argument `bytes` of a queue's constructor, and converts it.
pub(super) fn byte_limit(bytes: Option<i128>) -> PyResult<Option<u64>> {
    let Some(bytes) = bytes else { return Ok(None) };
    if bytes < 0 {
        return Err(PyValueError::new_err("bytes must not be negative"));
    }
    Ok(Some(u64::try_from(bytes)?))
}

#[pymethods]
impl Queue {
    #[new]
    #[pyo3(
        signature = (*_args, **_kwargs),
        text_signature = "(maxsize=0, *, bytes=None, deliveries=5, ctx=None)"
    )]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self::unset()
    }

    #[pyo3(signature = (maxsize = 0, *, bytes = None, deliveries = 5, ctx = None))]
    fn __init__(
        &self,
        maxsize: i64,
        bytes: Option<i128>,
        deliveries: u32,
        ctx: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let _ = ctx;
        self.init_with(
            &options(maxsize, byte_limit(bytes)?, deliveries).create().map(Self::from).map_err(runtime)?,
        );
        Ok(())
    }

    /// Puts an object into the queue.
    ///
    /// Waits while the queue is full. Raises ``Full`` if it is still full after ``timeout`` seconds. When the
    /// call returns, the object is in the queue, and stays in it even if this process ends.
    #[pyo3(signature = (obj, block = true, timeout = None))]
    fn put(&self, obj: &Bound<'_, PyAny>, block: bool, timeout: Option<f64>) -> PyResult<()> {
        self.0.put(obj, limit(block, timeout)?, self.name())
    }

    /// Takes the first object out of the queue.
    ///
    /// Waits while the queue is empty. Raises ``Empty`` if it is still empty after ``timeout`` seconds.
    /// Raises ``PeerLost`` if the wait could not end, because no other process or thread could put an object.
    #[pyo3(signature = (block = true, timeout = None))]
    fn get<'py>(&self, py: Python<'py>, block: bool, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        self.0.get(py, limit(block, timeout)?, false, self.name()).map(|(object, _)| object)
    }

    /// Returns an alias of the class, for type annotations.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        item: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        alias(class, item)
    }

    /// Equivalent to ``put(obj, False)``.
    fn put_nowait(&self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(obj, false, None)
    }

    /// Equivalent to ``get(False)``.
    fn get_nowait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.get(py, false, None)
    }

    /// Puts all objects into the queue, in their order, and returns their number.
    ///
    /// All are pickled before the first one is put. If an exception is raised after that, its attribute
    /// ``put`` is the number of objects that were put.
    #[pyo3(signature = (objs, block = true, timeout = None))]
    fn put_many(
        &self,
        py: Python<'_>,
        objs: &Bound<'_, PyAny>,
        block: bool,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        many::put_many(py, &self.0, objs, limit(block, timeout)?, self.name())
    }

    /// Takes up to ``max`` objects out of the queue, and returns them as a list.
    ///
    /// Waits for the first object as ``get`` does, and takes more objects without waiting. If an object can't
    /// be unpickled, the exception has the list of the other objects as its attribute ``objects``.
    #[pyo3(signature = (max, timeout = None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        max: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        many::get_many(py, &self.0, max, limit(true, timeout)?, self.name())
    }

    /// Takes the first object, which stays in the queue until it is acknowledged. Returns its ``Lease``.
    ///
    /// If the process dies before the acknowledgement, or the block of ``with queue.get_ack() as obj:``
    /// raises, the object is delivered again, to this or another consumer.
    #[pyo3(signature = (block = true, timeout = None))]
    fn get_ack(&self, py: Python<'_>, block: bool, timeout: Option<f64>) -> PyResult<Lease> {
        let (object, lease) = self.0.get(py, limit(block, timeout)?, true, self.name())?;
        Ok(Lease::new(object.unbind(), lease))
    }

    /// Takes an object that was delivered ``deliveries`` times without an acknowledgement. Raises ``Empty``
    /// if there is none.
    ///
    /// For a ``JoinableQueue``, these are the tasks whose consumers died before ``task_done``.
    fn dead_letter<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open()?;
        let letter = match &open.joinable {
            Some(joinable) => joinable.tasks.dead_letter(),
            None => open.patient.dead_letter(),
        };
        match letter {
            Ok(Some(object)) => loads(py, object),
            Ok(None) => Err(empty(py)),
            Err(error) => Err(get_error(py, error)),
        }
    }

    /// Returns the number of objects in the queue.
    fn qsize(&self) -> PyResult<usize> {
        Ok(self.open()?.patient.len())
    }

    /// Returns ``True`` if the queue has no objects.
    fn empty(&self) -> PyResult<bool> {
        self.0.is_empty()
    }

    /// Returns ``True`` if the queue has as many objects as fit.
    fn full(&self) -> PyResult<bool> {
        Ok(self.open()?.patient.is_full())
    }

    /// Returns a descriptor that is readable while the queue has objects or is shut down, for ``select``,
    /// ``multiprocessing.connection.wait`` and event loops.
    ///
    /// Another process may take the object first: call ``get_nowait`` after the wait. That call also makes
    /// the descriptor unreadable again if the queue is empty.
    fn fileno(&self) -> PyResult<i32> {
        self.0.fileno("Queue")
    }

    /// Ends the use of the queue in this process. Objects in it stay.
    fn close(&self) {
        self.0.close();
    }

    /// Does nothing: an object is in the queue when ``put`` returns. This queue has no feeder thread.
    #[allow(clippy::unused_self, reason = "the interface of multiprocessing.Queue")]
    fn join_thread(&self) {}

    /// Does nothing, because this queue has no feeder thread.
    #[allow(clippy::unused_self, reason = "the interface of multiprocessing.Queue")]
    fn cancel_join_thread(&self) {}

    /// Shuts the queue down for all processes.
    ///
    /// Further calls of ``put`` raise ``ShutDown``. Further calls of ``get`` raise ``ShutDown`` when the
    /// queue is empty. With ``immediate``, the objects in the queue are dropped.
    #[pyo3(signature = (immediate = false))]
    fn shutdown(&self, py: Python<'_>, immediate: bool) -> PyResult<()> {
        let open = self.open()?;
        open.patient.close();
        if immediate {
            loop {
                match open.take(py, Some(Duration::ZERO), open.joinable.is_some())? {
                    WaitResult::Done(Ok(Some((_, lease)))) => match (&open.joinable, lease) {
                        (Some(joinable), Some(lease)) => joinable.tasks.remove(lease),
                        (_, lease) => drop(lease.map(MessageLease::ack)),
                    },
                    WaitResult::Done(Err(GetError::Failed(_))) => {
                        _ = open.joinable.as_ref().map(|joinable| joinable.tasks.add_undecodable());
                    }
                    _ => break,
                }
            }
        }
        open.update_ready();
        Ok(())
    }

    fn _give_name(&self, name: &str) -> PyResult<()> {
        self.0.give_name(name, self.name())
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Takes the next object, until the queue is shut down.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.get(py, true, None).map_err(|error| {
            let ended = shut_down(py).get_type(py);
            if error.is_instance(py, &ended) { PyStopIteration::new_err(()) } else { error }
        })
    }

    /// Returns the state that a subclass sends: the queue, without attributes of the subclass.
    fn __getstate__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let name = self.name();
        let base = Self(self.0.share(name)?);
        let queue = if name == "Queue" {
            Bound::new(py, base)?
        } else {
            Bound::new(py, PyClassInitializer::from(base).add_subclass(JoinableQueue))?.into_super()
        };
        PyTuple::new(py, [queue])
    }

    fn __setstate__(&self, state: (Bound<'_, Self>,)) -> PyResult<()> {
        let other = state.0.get();
        self.0.init(&other.0.share(other.name())?);
        Ok(())
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let (py, this, class) = (slf.py(), slf.get(), slf.get_type());
        if !class.is(py.get_type::<Self>()) && !class.is(py.get_type::<JoinableQueue>()) {
            return reduce_subclass(slf);
        }
        this.0.reduce(py, this.name(), |open| match &open.joinable {
            Some(joinable) => Handle::JoinableQueue(joinable.tasks.clone()),
            None => Handle::Queue(open.patient.clone()),
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.0.describe(py, self.name())
    }
}
