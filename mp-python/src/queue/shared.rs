//! State of a queue's Python object: the handles of its queue until `close`, and the operations that all
//! classes of queues have.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use mp::queue::{Lease as MessageLease, QueueOptions};
use mp::{JoinableQueue as Tasks, Queue as Messages};
use mp_core::mutex::Mutex;
use mp_core::sync::shared::Ordering;
use mp_core::{Arena, ReadyFd};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::handles::{Handles, WaitResult, closed_error, get_error};
use crate::error::{empty, runtime, shut_down};
use crate::object::Object;
use crate::object::handle::Handle;
use crate::object::pickle::{dumps, loads, reduce_handle};

/// Largest `maxsize` for which all slots are allocated at once.
const MOST_SLOTS: usize = 1 << 16;
/// Largest `maxsize`. Beyond it, a queue has no limit.
const MOST_MESSAGES: usize = 1 << 24;

pub(super) enum State {
    Open(Arc<Handles>),
    /// After `close`. `empty`: the queue was empty then.
    Closed {
        empty: bool,
    },
}

/// Queue of a Python object.
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Number of objects that fit, or `None` for no limit.
    maxsize: Option<usize>,
}

impl Shared {
    pub(super) fn of(queue: &Messages<Object>, tasks: Option<Tasks<Object>>) -> Self {
        let unlimited = Arena::current().map_or(usize::MAX, |arena| arena.most_messages() as usize);
        let maxsize = Some(queue.capacity()).filter(|&capacity| capacity < unlimited);
        Self { state: Mutex::new(State::Open(Arc::new(Handles::new(queue, tasks)))), maxsize }
    }

    pub(super) fn open(&self, name: &str) -> PyResult<Arc<Handles>> {
        match &*self.state.lock() {
            State::Open(open) => Ok(open.clone()),
            State::Closed { .. } => Err(closed_error(name)),
        }
    }

    pub(super) fn put(&self, obj: &Bound<'_, PyAny>, limit: Option<Duration>, name: &str) -> PyResult<()> {
        let (py, open) = (obj.py(), self.open(name)?);
        let object = dumps(obj)?;
        open.put(py, limit, object, name)
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
                // A task that can't be read is in hand, as one whose work fails.
                let lease = match (&open.joinable, lease) {
                    (Some(joinable), Some(lease)) if !leased => {
                        joinable.taken.lock().push_back((std::thread::current().id(), lease));
                        None
                    }
                    (_, lease) => lease,
                };
                Ok((loads(py, object)?, lease))
            }
            WaitResult::Done(Ok(None)) => Err(shut_down(py)),
            WaitResult::Done(Err(error)) => Err(get_error(py, error)),
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
            State::Closed { empty } => *empty,
        };
        let before = std::mem::replace(&mut *state, State::Closed { empty });
        drop(state);
        drop(before);
    }

    pub(super) fn is_empty(&self) -> PyResult<bool> {
        match &*self.state.lock() {
            State::Open(open) => Ok(open.patient.is_empty()),
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

    pub(super) fn describe(&self, name: &str) -> String {
        match &*self.state.lock() {
            State::Open(open) => {
                let len = open.patient.len();
                match self.maxsize {
                    Some(maxsize) => format!("<multiproc.{name}: {len} of {maxsize} objects>"),
                    None => format!("<multiproc.{name}: {len} objects>"),
                }
            }
            State::Closed { .. } => format!("<multiproc.{name}: closed>"),
        }
    }
}

/// Returns the options of `maxsize`, `bytes` and `deliveries`.
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
