//! Handles of this package's objects in messages.
//!
//! # Safety
//! This file duplicates a descriptor that Python code names by its number, as `os.dup` does.
#![allow(unsafe_code)]

use mp::sync::RawValue;
use mp::{Connection, Fd, Queue};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde::{Deserialize, Serialize};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

use super::Object;
use super::pickle::reduce_handle;
use crate::queue::Tasks;
use crate::sync::barrier::BarrierState;
use crate::sync::event::Event;
use crate::sync::lock::{Lock, RLock};
use crate::sync::semaphore;
use crate::sync::waiters::Waiters;
use crate::typed::{self, Record};
use crate::{connection, queue};

/// Handle of an object that several processes use.
#[derive(Serialize, Deserialize, Debug)]
pub enum Handle {
    /// Handle of a `Queue`.
    Queue(Queue<Object>),
    /// Handle of a `JoinableQueue`.
    JoinableQueue(Tasks),
    /// Handle of a `SimpleQueue`.
    SimpleQueue(Queue<Object>),
    /// End of a pipe, for a `Connection`.
    Connection(Box<Connection>),
    /// Handle of a `TypedQueue`.
    TypedQueue(Queue<Record>),
    /// File descriptor, which is duplicated for the receiver.
    Fd(Fd<OwnedFd>),
    /// Handle of a `Lock`.
    Lock(mp::BoundedSemaphore),
    /// Handle of an `RLock`, and the number of times that its owner has acquired it.
    RLock(mp::BoundedSemaphore, RawValue<u32>),
    /// Handle of a `Semaphore`.
    Semaphore(mp::Semaphore),
    /// Handle of a `BoundedSemaphore`, and its initial number of permits.
    BoundedSemaphore(mp::BoundedSemaphore, u32),
    /// Handle of an `Event`.
    Event(mp::Event),
    /// Handle of a `Condition`, without its lock.
    Waiters(mp::Condition),
    /// Handle of a `Barrier`.
    Barrier(mp::Barrier),
}

/// Returns the Python object of a handle.
///
/// # Errors
/// Exceptions of the constructor.
pub fn to_python(py: Python<'_>, handle: Handle) -> PyResult<Bound<'_, PyAny>> {
    match handle {
        Handle::Queue(queue) => Ok(Bound::new(py, queue::Queue::from(queue))?.into_any()),
        Handle::JoinableQueue(tasks) => Ok(Bound::new(py, queue::JoinableQueue::of(tasks))?.into_any()),
        Handle::Connection(end) => Ok(Bound::new(py, connection::Connection::of(*end, None))?.into_any()),
        Handle::SimpleQueue(queue) => Ok(Bound::new(py, queue::SimpleQueue::from(queue))?.into_any()),
        Handle::TypedQueue(queue) => typed::received(py, queue),
        Handle::Fd(fd) => Ok(fd.0.into_raw_fd().into_pyobject(py)?.into_any()),
        Handle::Lock(lock) => Ok(Bound::new(py, Lock::from(lock))?.into_any()),
        Handle::RLock(lock, depth) => Ok(Bound::new(py, RLock::from((lock, depth)))?.into_any()),
        Handle::Semaphore(permits) => semaphore::growing(py, permits),
        Handle::BoundedSemaphore(permits, most) => semaphore::bounded(py, permits, most),
        Handle::Event(event) => Ok(Bound::new(py, Event::from(event))?.into_any()),
        Handle::Waiters(condition) => Ok(Bound::new(py, Waiters::from(condition))?.into_any()),
        Handle::Barrier(barrier) => Ok(Bound::new(py, BarrierState::received(barrier))?.into_any()),
    }
}

/// A descriptor in a message. Pickling it sends a duplicate. Unpickling it returns the number of the
/// receiver's duplicate.
#[pyclass(frozen, name = "Fd", module = "multiproc._multiproc")]
pub struct PyFd(i32);

#[pymethods]
impl PyFd {
    #[new]
    fn new(fd: i32) -> Self {
        Self(fd)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        // SAFETY: the system refuses a number that is not an open descriptor of this process.
        let fd = unsafe { BorrowedFd::borrow_raw(self.0) }.try_clone_to_owned()?;
        reduce_handle(py, "a descriptor", Handle::Fd(Fd(fd)))
    }
}
