//! Class `JoinableQueue`.

use mp::JoinableQueue as Tasks;
use mp::queue::JoinableQueueError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::base::{Queue, byte_limit};
use super::shared::options;
use crate::error::{PeerLost, runtime};
use crate::object::Object;
use crate::wait::{Attempt, limit, wait};

/// Queue that can wait until all its tasks are done.
///
/// ``task_done`` finishes the oldest task that the calling thread took by ``get``, or else the oldest one
/// of this process. A task whose consumer dies before is not waited for: see ``join``.
#[pyclass(frozen, module = "multiproc._multiproc", extends = Queue, subclass)]
pub struct JoinableQueue;

impl JoinableQueue {
    /// Returns the Python object of a queue.
    pub(crate) fn of(tasks: Tasks<Object>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Queue::of_tasks(tasks)).add_subclass(Self)
    }
}

#[pymethods]
impl JoinableQueue {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs), text_signature = "(maxsize=0, *, bytes=None, ctx=None)")]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyClassInitializer<Self> {
        PyClassInitializer::from(Queue::unset()).add_subclass(Self)
    }

    #[pyo3(signature = (maxsize = 0, *, bytes = None, ctx = None))]
    fn __init__(
        slf: PyRef<'_, Self>,
        maxsize: i64,
        bytes: Option<i128>,
        ctx: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let _ = ctx;
        let tasks = Tasks::with_options(options(maxsize, byte_limit(bytes)?, 1)).map_err(runtime)?;
        slf.as_super().init_with(&Queue::of_tasks(tasks));
        Ok(())
    }

    /// Finishes a task that this process took by ``get``. Raises ``ValueError`` if it has none.
    fn task_done(slf: PyRef<'_, Self>) -> PyResult<()> {
        let open = slf.as_super().open()?;
        let Some(joinable) = &open.joinable else { return Ok(()) };
        let me = std::thread::current().id();
        let task = {
            let mut taken = joinable.taken.lock();
            let own = taken.iter().position(|(thread, _)| *thread == me).unwrap_or(0);
            taken.remove(own)
        };
        match task {
            Some((_, lease)) => {
                lease.ack();
                Ok(())
            }
            None => Err(PyValueError::new_err("task_done() called too many times")),
        }
    }

    /// Waits until all tasks are done.
    ///
    /// Returns ``False`` if the time is over. Raises ``PeerLost`` if no task is left to wait for, but some
    /// were lost with their consumers, which died before ``task_done``. ``dead_letter`` returns these.
    #[pyo3(signature = (timeout = None))]
    fn join(slf: PyRef<'_, Self>, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let open = slf.as_super().open()?;
        let Some(joinable) = &open.joinable else { return Ok(true) };
        let joined =
            wait(py, limit(true, timeout)?, (), |(), time| match joinable.tasks.join_timeout(time) {
                Err(JoinableQueueError::Unfinished { .. }) => Attempt::Late(()),
                result => Attempt::Done(result),
            })?;
        match joined {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error @ JoinableQueueError::Lost(_))) => Err(PeerLost::new_err(error.to_string())),
            Ok(Err(error)) => Err(runtime(error)),
            Err(()) => Ok(false),
        }
    }
}
