//! Handles of this process to a queue, and the waits for it.
//!
//! # When a wait raises `PeerLost`
//! A `put` or `get` without a time limit raises `PeerLost` if other processes had the queue, no process and
//! no message has it any more, and this interpreter has no other thread. Another thread of the interpreter
//! might use the queue later, so while one exists, waits continue. The number of Python objects for one queue
//! in this process is irrelevant. A call with a time limit raises `Empty` or `Full` when the time limit has
//! expired, as in CPython, where programs use the time limit to check their workers.
//!
//! For this, each Python object has two handles of its queue: waits of the *mortal* handle end under the
//! conditions above, and waits of the *patient* handle don't. A wait uses the patient handle for its first
//! slice of time, and then the mortal handle while its thread is the only one.

use std::sync::OnceLock;
use std::time::Duration;

use mp::queue::{DesertedWhen, Lease as MessageLease};
use mp::{GetError, PutError, Queue as Messages};
use mp_core::sync::shared::{AtomicBool, Ordering};
use mp_core::{Message, ReadyFd};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::joinable::{Joinable, Tasks};
use crate::error::{PeerLost, empty, full, runtime, shut_down};
use crate::object::Object;
use crate::wait::{Attempt, wait};

/// Time after which a put checks again for free messages, after the program has reached its maximum number of
/// messages.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(2);

/// Handles of this process to a queue.
pub(crate) struct Handles<T: Message = Object> {
    /// Handle whose waits end when no other process has the queue.
    mortal: Messages<T>,
    /// Handle whose waits continue even if no other process has the queue.
    pub(crate) patient: Messages<T>,
    /// Tasks of a `JoinableQueue`. `None` for other queues.
    pub(crate) joinable: Option<Joinable>,
    /// `true` after `close`, so that waits that began before `close` end.
    pub(crate) closed: AtomicBool,
    /// Descriptor of `fileno`.
    pub(crate) ready: OnceLock<ReadyFd>,
}

/// Result of a wait: the value, or the exception's cause.
pub(crate) enum WaitResult<T> {
    Done(T),
    Late,
    Closed,
}

impl<T: Message + Send> Handles<T> {
    pub(crate) fn new(queue: &Messages<T>, tasks: Option<Tasks>) -> Self {
        Self {
            mortal: queue.clone().deserted_when(DesertedWhen::NoOtherProcess),
            patient: queue.clone().deserted_when(DesertedWhen::Never),
            joinable: tasks.map(Joinable::new),
            closed: AtomicBool::new(false),
            ready: OnceLock::new(),
        }
    }

    /// Repeats `attempt` until it is done or the time limit has expired. `attempt` gets the patient or the
    /// mortal handle, as the documentation of this module describes.
    pub(crate) fn wait<R: Send, S: Send>(
        &self,
        py: Python<'_>,
        limit: Option<Duration>,
        state: S,
        mut attempt: impl FnMut(&Messages<T>, S, Duration) -> Attempt<R, S> + Send,
    ) -> PyResult<WaitResult<R>> {
        let mut alone = false;
        let waited = wait(py, limit, state, |state, time| {
            let queue = if alone { &self.mortal } else { &self.patient };
            match attempt(queue, state, time) {
                Attempt::Done(done) => Attempt::Done(Some(done)),
                Attempt::Late(_) if self.closed.load(Ordering::Relaxed) => Attempt::Done(None),
                Attempt::Late(late) => {
                    if limit.is_none() && !time.is_zero() {
                        alone = Python::try_attach(is_only_thread).unwrap_or(false);
                    }
                    Attempt::Late(late)
                }
            }
        })?;
        Ok(match waited {
            Ok(Some(done)) => WaitResult::Done(done),
            Ok(None) => WaitResult::Closed,
            Err(_) => WaitResult::Late,
        })
    }

    /// Updates the descriptor of `fileno` after a `get`, so that it is not readable while the queue is empty.
    pub(crate) fn update_ready(&self) {
        if let Some(ready) = self.ready.get() {
            // A descriptor that can no longer be watched stays readable.
            _ = ready.update();
        }
    }

    /// Puts a message. `name` is the class of the queue, for errors.
    pub(crate) fn put(
        &self,
        py: Python<'_>,
        limit: Option<Duration>,
        message: T,
        name: &str,
    ) -> PyResult<()> {
        let put = self.wait(py, limit, message, |queue, message, time| {
            let result =
                if time.is_zero() { queue.try_put(message) } else { queue.put_timeout(message, time) };
            match result {
                Err(PutError::Full(message)) => Attempt::Late(message),
                Err(PutError::Failed { value, error }) if is_shortage_of_messages(&error) => {
                    // The library has no call that waits for a free message, since a consumer of any queue
                    // may free one.
                    std::thread::sleep(time.min(SHORTAGE_PAUSE));
                    Attempt::Late(value)
                }
                result => Attempt::Done(result),
            }
        })?;
        match put {
            WaitResult::Done(result) => result.map_err(|error| put_error(py, error)),
            WaitResult::Late => Err(full(py)),
            WaitResult::Closed => Err(closed_error(name)),
        }
    }

    /// Takes a message by `get`, which is called with the longest time that it may wait.
    pub(crate) fn take_by<R: Send>(
        &self,
        py: Python<'_>,
        limit: Option<Duration>,
        mut get: impl FnMut(&Messages<T>, Duration) -> Result<R, GetError> + Send,
    ) -> PyResult<WaitResult<Result<R, GetError>>> {
        let taken = self.wait(py, limit, (), |queue, (), time| match get(queue, time) {
            Err(GetError::Empty | GetError::Leased { .. }) => Attempt::Late(()),
            result => Attempt::Done(result),
        });
        self.update_ready();
        taken
    }
}

impl Handles {
    /// Takes an object, with its lease if `leased` is set.
    pub(crate) fn take(
        &self,
        py: Python<'_>,
        limit: Option<Duration>,
        leased: bool,
    ) -> PyResult<WaitResult<Result<Option<Delivery>, GetError>>> {
        self.take_by(py, limit, |queue, time| match (leased, time.is_zero()) {
            (false, true) => queue.try_get().map(|got| got.map(|object| (object, None))),
            (false, false) => queue.get_timeout(time).map(|got| got.map(|object| (object, None))),
            (true, true) => self.end_at_shutdown(queue.try_get_lease()).map(split),
            (true, false) => self.end_at_shutdown(queue.get_lease_timeout(time)).map(split),
        })
    }

    /// Converts the error that a shut-down `JoinableQueue` returns while its last tasks are in progress to
    /// the end of the queue: these tasks are not delivered again.
    fn end_at_shutdown<R>(&self, got: Result<Option<R>, GetError>) -> Result<Option<R>, GetError> {
        match got {
            Err(GetError::Leased { .. }) if self.joinable.is_some() => Ok(None),
            got => got,
        }
    }
}

pub(crate) type Delivery = (Object, Option<MessageLease<()>>);

fn split(lease: Option<MessageLease<Object>>) -> Option<Delivery> {
    lease.map(MessageLease::split).map(|(object, lease)| (object, Some(lease)))
}

/// Returns `true` if the program has reached its maximum number of messages in flight.
fn is_shortage_of_messages(error: &mp_reduce::Error) -> bool {
    matches!(error, mp_reduce::Error::Memory(mp_core::Error::TooManyMessages(_)))
}

/// Returns the exception for the use of a queue that this process has closed.
pub(crate) fn closed_error(name: &str) -> PyErr {
    let text = format!("{name} is closed in this process");
    if name == "SimpleQueue" { PyOSError::new_err(text) } else { PyValueError::new_err(text) }
}

/// Returns `true` if no other thread of the interpreter exists.
fn is_only_thread(py: Python<'_>) -> bool {
    static FRAMES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let frames = FRAMES.import(py, "sys", "_current_frames").and_then(|frames| frames.call0());
    frames.and_then(|frames| frames.len()).is_ok_and(|threads| threads == 1)
}

/// Returns the exception for a message that was not put.
pub(crate) fn put_error<T>(py: Python<'_>, error: PutError<T>) -> PyErr {
    // An interrupt of the whole program ends other processes too, and is the cause.
    if let Err(interrupt) = py.check_signals() {
        return interrupt;
    }
    match error {
        PutError::Full(_) => full(py),
        PutError::Closed(_) => shut_down(py),
        error @ (PutError::Deserted { .. } | PutError::Disconnected(_)) => {
            PeerLost::new_err(error.forget().to_string())
        }
        error @ PutError::TooLarge { .. } => {
            PyValueError::new_err(error.forget().to_string().replace("(QueueOptions::bytes)", "(bytes=)"))
        }
        error => runtime(error.forget()),
    }
}

/// Returns the exception for a wait that got no message.
pub(crate) fn get_error(py: Python<'_>, error: GetError) -> PyErr {
    // An interrupt of the whole program ends other processes too, and is the cause.
    if let Err(interrupt) = py.check_signals() {
        return interrupt;
    }
    match error {
        GetError::Empty => empty(py),
        error @ (GetError::Deserted { .. } | GetError::Disconnected) => PeerLost::new_err(error.to_string()),
        error => runtime(error),
    }
}
