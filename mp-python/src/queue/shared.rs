//! State of a queue's Python object: the handles of its queue until `close`, and the operations that all
//! classes of queues have.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use mp::queue::{Lease as MessageLease, QueueOptions};
use mp::{GetError, Queue as Messages};
use mp_core::mutex::Mutex;
use mp_core::sync::shared::Ordering;
use mp_core::{Arena, ReadyFd, quantity};
use pyo3::exceptions::{PyOSError, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use super::handles::{Handles, WaitResult, closed_error, get_error};
use super::joinable::Tasks;
use crate::error::{check_process, empty, runtime, shut_down};
use crate::names::{give, shown};
use crate::object::Object;
use crate::object::handle::Handle;
use crate::object::pickle::{dumps, loads, reduce_handle};

/// Largest `maxsize` for which all slots are allocated at once.
const MOST_SLOTS: usize = 1 << 16;
/// Largest `maxsize` that has an effect: more messages than this don't fit into any arena.
const MOST_MESSAGES: usize = 1 << 24;

pub(super) enum State {
    /// State before `__init__` or `__setstate__`, which a subclass may call late.
    New,
    Open(Arc<Handles>),
    /// State after `close`. `empty` is `true` if the queue was empty when it was closed.
    Closed {
        empty: bool,
    },
}

/// State of a queue's Python object, in a lock.
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
}

impl Shared {
    /// Returns the state of an object that `init` completes.
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State::New) }
    }

    pub(super) fn of(queue: &Messages<Object>, tasks: Option<Tasks>) -> Self {
        Self { state: Mutex::new(State::Open(Arc::new(Handles::new(queue, tasks)))) }
    }

    /// Takes the state out of another object, and replaces the state of this object with it.
    pub(super) fn init(&self, other: &Self) {
        let state = std::mem::replace(&mut *other.state.lock(), State::New);
        let before = std::mem::replace(&mut *self.state.lock(), state);
        drop(before);
    }

    /// Returns a state for another Python object with the same handles of the queue.
    pub(super) fn share(&self, name: &str) -> PyResult<Self> {
        Ok(Self { state: Mutex::new(State::Open(self.open(name)?)) })
    }

    pub(super) fn open(&self, name: &str) -> PyResult<Arc<Handles>> {
        check_process()?;
        match &*self.state.lock() {
            State::Open(open) => Ok(open.clone()),
            State::New => Err(not_initialized(name)),
            State::Closed { .. } => Err(closed_error(name)),
        }
    }

    pub(super) fn put(&self, obj: &Bound<'_, PyAny>, limit: Option<Duration>, name: &str) -> PyResult<()> {
        let (py, open) = (obj.py(), self.open(name)?);
        let object = dumps(obj)?;
        open.put(py, limit, object, name)?;
        if let Some(joinable) = &open.joinable {
            joinable.tasks.add_put(1);
        }
        Ok(())
    }

    pub(super) fn get<'py>(
        &self,
        py: Python<'py>,
        limit: Option<Duration>,
        leased: bool,
        name: &str,
    ) -> PyResult<(Bound<'py, PyAny>, Option<MessageLease<()>>)> {
        let open = self.open(name)?;
        match open.take(py, limit, leased || open.joinable.is_some())? {
            WaitResult::Done(Ok(Some((object, lease)))) => {
                // A task that can't be read counts as taken, like a task whose work fails.
                let lease = match (&open.joinable, lease) {
                    (Some(joinable), Some(lease)) if !leased => {
                        joinable.add(lease);
                        None
                    }
                    (joinable, lease) => {
                        if let Some(joinable) = joinable {
                            // If tasks were done ahead, this task is one of them, but it must be
                            // acknowledged, too.
                            joinable.take_ahead();
                            joinable.tasks.add_gone();
                        }
                        lease
                    }
                };
                Ok((loads(py, object)?, lease))
            }
            WaitResult::Done(Ok(None)) => Err(shut_down(py)),
            WaitResult::Done(Err(error)) => {
                if let (Some(joinable), GetError::Failed(_)) = (&open.joinable, &error) {
                    joinable.tasks.add_undecodable();
                }
                Err(get_error(py, error))
            }
            WaitResult::Late => Err(empty(py)),
            WaitResult::Closed => Err(closed_error(name)),
        }
    }

    /// Returns the number of a descriptor that is readable while the queue has objects.
    pub(super) fn fileno(&self, name: &str) -> PyResult<i32> {
        let open = self.open(name)?;
        if open.ready.get().is_none() {
            let ready = ReadyFd::new(Arc::new(open.patient.clone())).map_err(runtime)?;
            _ = open.ready.set(ready);
        }
        Ok(open.ready.get().map_or(-1, |ready| ready.as_fd().as_raw_fd()))
    }

    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        let empty = match &*state {
            State::Open(open) => {
                open.closed.store(true, Ordering::Relaxed);
                open.patient.is_empty()
            }
            State::New => true,
            State::Closed { empty } => *empty,
        };
        let before = std::mem::replace(&mut *state, State::Closed { empty });
        drop(state);
        drop(before);
    }

    pub(super) fn is_empty(&self) -> PyResult<bool> {
        match &*self.state.lock() {
            State::Open(open) => check_process().map(|()| open.patient.is_empty()),
            State::New => Err(not_initialized("Queue")),
            State::Closed { empty: true } => Ok(true),
            State::Closed { empty: false } => Err(PyOSError::new_err("the queue is closed")),
        }
    }

    pub(super) fn reduce<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        handle: impl FnOnce(&Handles) -> Handle,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let open = self.open(name)?;
        reduce_handle(py, "a queue", handle(&open))
    }

    pub(super) fn give_name(&self, given: &str, name: &str) -> PyResult<()> {
        let open = self.open(name)?;
        give(|| open.patient.clone().named(given))
    }

    pub(super) fn describe(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        // No Python object is made under the lock: another thread may be attached to the interpreter while it
        // waits for the lock.
        let open = match &*self.state.lock() {
            State::Open(open) => open.clone(),
            State::New => return Ok(format!("<multiproc.{name}: not initialized>")),
            State::Closed { .. } => return Ok(format!("<multiproc.{name}: closed>")),
        };
        let (len, maxsize) = (open.patient.len(), open.patient.capacity());
        let given = shown(py, open.patient.given_name(), " ", "")?;
        let unlimited = Arena::current().map_or(usize::MAX, |arena| arena.most_messages() as usize);
        Ok(if maxsize < unlimited {
            format!("<multiproc.{name}{given}: {len} of {}>", quantity(maxsize, "object"))
        } else {
            format!("<multiproc.{name}{given}: {}>", quantity(len, "object"))
        })
    }
}

/// Reduces an object of a subclass as `multiprocessing` does: its class, and the result of `__getstate__`.
pub(super) fn reduce_subclass<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    static NEW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    let new = NEW.import(py, "copyreg", "__newobj__")?;
    let state = object.call_method0(intern!(py, "__getstate__"))?;
    (new, (object.get_type(),), state).into_pyobject(py)
}

fn not_initialized(name: &str) -> PyErr {
    PyRuntimeError::new_err(format!("{name}.__init__() was not called by the subclass"))
}

/// Returns an alias of a class, for type annotations.
pub(super) fn alias<'py>(
    class: &Bound<'py, PyType>,
    item: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    class.py().import("types")?.getattr("GenericAlias")?.call1((class, item))
}

/// Returns the options of a queue with these arguments.
pub(super) fn options(maxsize: i64, bytes: Option<u64>, deliveries: u32) -> QueueOptions {
    let options = QueueOptions::new().deliveries(deliveries).bytes(bytes.unwrap_or(0));
    match usize::try_from(maxsize).unwrap_or(0) {
        0 if bytes.is_some() => options.capacity(MOST_SLOTS),
        0 => options,
        maxsize if maxsize <= MOST_SLOTS || bytes.is_some() => options.capacity(maxsize),
        maxsize if maxsize <= MOST_MESSAGES => options.growing(maxsize),
        _ => options,
    }
}
