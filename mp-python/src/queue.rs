//! `Queue`, `SimpleQueue`, `JoinableQueue`, and the leases of their objects.
//!
//! # When a wait raises `PeerLost`
//! A `put` or `get` without a time limit raises `PeerLost` if other processes had the queue, none of them and
//! no message has it any more, and this interpreter has no other thread. Another thread of the interpreter
//! might use the queue at any time, whatever it does at the moment, so it keeps waits going. The number of
//! Python objects of one queue in this process has no influence. A call with a time limit raises `Empty` or
//! `Full` when the time is over, as in CPython, where programs use it to look after their workers.
//!
//! Each object has two handles of its queue for that: one whose waits end like this, and one whose waits
//! don't. A wait uses the second one for its first slice of time, and the first one while its thread is
//! alone.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use mp::queue::{DesertedWhen, JoinableQueueError, Lease as MessageLease, QueueOptions};
use mp::{GetError, JoinableQueue as Tasks, PutError, Queue as Messages};
use mp_core::mutex::Mutex;
use mp_core::{Arena, ReadyFd};
use pyo3::exceptions::{PyOSError, PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};

use crate::error::{PeerLost, empty, full, runtime, shut_down};
use crate::object::Object;
use crate::object::handle::Handle;
use crate::object::pickle::{dumps, loads, reduce_handle};
use crate::wait::{Attempt, limit, wait};

/// Largest `maxsize` for which all slots are allocated at once.
const MOST_SLOTS: usize = 1 << 16;
/// Largest `maxsize`. Beyond it, a queue has no limit.
const MOST_MESSAGES: usize = 1 << 24;

/// Handles of this process to a queue.
struct Open {
    /// Handle whose waits end when no other process has the queue.
    mortal: Messages<Object>,
    /// Handle whose waits don't.
    patient: Messages<Object>,
    /// For a `JoinableQueue`.
    joinable: Option<Joinable>,
    /// `true` after `close`, for waits that have begun before it.
    closed: AtomicBool,
    /// Descriptor of `fileno`.
    ready: OnceLock<ReadyFd>,
}

/// A queue of tasks, and the tasks that this process has taken and not finished.
struct Joinable {
    tasks: Tasks<Object>,
    taken: Mutex<VecDeque<(ThreadId, MessageLease<()>)>>,
}

/// Result of a wait: the value, or the exception's cause.
enum Waited<T> {
    Done(T),
    Late,
    Closed,
}

impl Open {
    fn new(queue: &Messages<Object>, tasks: Option<Tasks<Object>>) -> Self {
        Self {
            mortal: queue.clone().deserted_when(DesertedWhen::NoOtherProcess),
            patient: queue.clone().deserted_when(DesertedWhen::Never),
            joinable: tasks.map(|tasks| Joinable { tasks, taken: Mutex::default() }),
            closed: AtomicBool::new(false),
            ready: OnceLock::new(),
        }
    }

    /// Repeats `attempt` until it is done or the time is over. See the module's description for the handle
    /// that it gets.
    fn wait<T: Send, S: Send>(
        &self,
        py: Python<'_>,
        limit: Option<Duration>,
        state: S,
        mut attempt: impl FnMut(&Messages<Object>, S, Duration) -> Attempt<T, S> + Send,
    ) -> PyResult<Waited<T>> {
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
            Ok(Some(done)) => Waited::Done(done),
            Ok(None) => Waited::Closed,
            Err(_) => Waited::Late,
        })
    }

    /// Updates the descriptor of `fileno` after a `get`.
    fn update_ready(&self) {
        if let Some(ready) = self.ready.get() {
            // If it can no longer be watched, it stays readable.
            _ = ready.update();
        }
    }

    /// Takes an object, and its lease if it is to have one.
    fn take(
        &self,
        py: Python<'_>,
        limit: Option<Duration>,
        leased: bool,
    ) -> PyResult<Waited<Result<Option<Taken>, GetError>>> {
        let taken = self.wait(py, limit, (), |queue, (), time| {
            let result = match (leased, time.is_zero()) {
                (false, true) => queue.try_get().map(|got| got.map(|object| (object, None))),
                (false, false) => queue.get_timeout(time).map(|got| got.map(|object| (object, None))),
                (true, true) => queue.try_get_lease().map(split),
                (true, false) => queue.get_lease_timeout(time).map(split),
            };
            match result {
                Err(GetError::Empty | GetError::Leased { .. }) => Attempt::Late(()),
                result => Attempt::Done(result),
            }
        });
        self.update_ready();
        taken
    }
}

type Taken = (Object, Option<MessageLease<()>>);

fn split(lease: Option<MessageLease<Object>>) -> Option<Taken> {
    lease.map(MessageLease::split).map(|(object, lease)| (object, Some(lease)))
}

/// Returns `true` if no other thread of the interpreter exists.
fn is_only_thread(py: Python<'_>) -> bool {
    static FRAMES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let frames = FRAMES.import(py, "sys", "_current_frames").and_then(|frames| frames.call0());
    frames.and_then(|frames| frames.len()).is_ok_and(|threads| threads == 1)
}

/// Returns the exception for a message that was not put.
fn put_error(py: Python<'_>, error: PutError<Object>) -> PyErr {
    match error {
        PutError::Full(_) => full(py),
        PutError::Closed(_) => shut_down(py),
        error @ (PutError::Deserted { .. } | PutError::Disconnected(_)) => {
            PeerLost::new_err(error.forget().to_string())
        }
        error @ PutError::TooLarge { .. } => PyValueError::new_err(error.forget().to_string()),
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

enum State {
    Open(Arc<Open>),
    /// After `close`. `empty`: the queue was empty then.
    Closed {
        empty: bool,
    },
}

/// The queue of a Python object.
struct Shared {
    state: Mutex<State>,
    /// Number of objects that fit, or `None` for no limit.
    maxsize: Option<usize>,
}

impl Shared {
    fn of(queue: &Messages<Object>, tasks: Option<Tasks<Object>>) -> Self {
        let unlimited = Arena::current().map_or(usize::MAX, |arena| arena.most_messages() as usize);
        let maxsize = Some(queue.capacity()).filter(|&capacity| capacity < unlimited);
        Self { state: Mutex::new(State::Open(Arc::new(Open::new(queue, tasks)))), maxsize }
    }

    fn open(&self, name: &str) -> PyResult<Arc<Open>> {
        match &*self.state.lock() {
            State::Open(open) => Ok(open.clone()),
            State::Closed { .. } => Err(closed_error(name)),
        }
    }

    fn put(&self, obj: &Bound<'_, PyAny>, limit: Option<Duration>, name: &str) -> PyResult<()> {
        let py = obj.py();
        let open = self.open(name)?;
        let object = dumps(obj)?;
        let put = open.wait(py, limit, object, |queue, object, time| {
            let result = if time.is_zero() { queue.try_put(object) } else { queue.put_timeout(object, time) };
            match result {
                Err(PutError::Full(object)) => Attempt::Late(object),
                result => Attempt::Done(result),
            }
        })?;
        match put {
            Waited::Done(result) => result.map_err(|error| put_error(py, error)),
            Waited::Late => Err(full(py)),
            Waited::Closed => Err(closed_error(name)),
        }
    }

    fn get<'py>(
        &self,
        py: Python<'py>,
        limit: Option<Duration>,
        leased: bool,
        name: &str,
    ) -> PyResult<(Bound<'py, PyAny>, Option<MessageLease<()>>)> {
        let open = self.open(name)?;
        match open.take(py, limit, leased || open.joinable.is_some())? {
            Waited::Done(Ok(Some((object, lease)))) => {
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
            Waited::Done(Ok(None)) => Err(shut_down(py)),
            Waited::Done(Err(error)) => Err(get_error(py, error)),
            Waited::Late => Err(empty(py)),
            Waited::Closed => Err(closed_error(name)),
        }
    }

    fn close(&self) {
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

    fn is_empty(&self) -> PyResult<bool> {
        match &*self.state.lock() {
            State::Open(open) => Ok(open.patient.is_empty()),
            State::Closed { empty: true } => Ok(true),
            State::Closed { empty: false } => Err(PyOSError::new_err("the queue is closed")),
        }
    }

    fn reduce<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        handle: impl FnOnce(&Open) -> Handle,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let open = self.open(name)?;
        reduce_handle(py, "a queue", handle(&open))
    }

    fn describe(&self, name: &str) -> String {
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

fn closed_error(name: &str) -> PyErr {
    let text = format!("{name} is closed in this process");
    if name == "SimpleQueue" { PyOSError::new_err(text) } else { PyValueError::new_err(text) }
}

/// Returns the options of `maxsize`, `bytes` and `deliveries`.
fn options(maxsize: i64, bytes: Option<u64>, deliveries: u32) -> QueueOptions {
    let options = QueueOptions::new().deliveries(deliveries).bytes(bytes.unwrap_or(0));
    match usize::try_from(maxsize).unwrap_or(0) {
        0 if bytes.is_some() => options.capacity(MOST_SLOTS),
        0 => options,
        maxsize if maxsize <= MOST_SLOTS || bytes.is_some() => options.capacity(maxsize),
        maxsize if maxsize <= MOST_MESSAGES => options.growing(maxsize),
        _ => options,
    }
}

/// Queue of Python objects between processes.
///
/// ``bytes`` bounds the bytes in the queue in addition to the number of objects. ``deliveries`` is the number
/// of times that ``get_ack`` delivers an object whose consumers die; 0 stands for no limit.
#[pyclass(frozen, module = "multiproc._multiproc", subclass)]
pub struct Queue(Shared);

impl From<Messages<Object>> for Queue {
    fn from(queue: Messages<Object>) -> Self {
        Self(Shared::of(&queue, None))
    }
}

impl Queue {
    fn name(&self) -> &'static str {
        let joinable = matches!(&*self.0.state.lock(), State::Open(open) if open.joinable.is_some());
        if joinable { "JoinableQueue" } else { "Queue" }
    }

    fn open(&self) -> PyResult<Arc<Open>> {
        self.0.open(self.name())
    }
}

#[pymethods]
impl Queue {
    #[new]
    #[pyo3(signature = (maxsize = 0, *, bytes = None, deliveries = 5, ctx = None))]
    fn new(maxsize: i64, bytes: Option<u64>, deliveries: u32, ctx: Option<Py<PyAny>>) -> PyResult<Self> {
        let _ = ctx;
        options(maxsize, bytes, deliveries).create().map(Self::from).map_err(runtime)
    }

    /// Puts an object into the queue.
    ///
    /// Waits while the queue is full, at most ``timeout`` seconds, and raises ``Full`` then. The object is in
    /// the queue when the call returns, also if this process ends at once.
    #[pyo3(signature = (obj, block = true, timeout = None))]
    fn put(&self, obj: &Bound<'_, PyAny>, block: bool, timeout: Option<f64>) -> PyResult<()> {
        self.0.put(obj, limit(block, timeout)?, self.name())
    }

    /// Takes the first object out of the queue.
    ///
    /// Waits while the queue is empty, at most ``timeout`` seconds, and raises ``Empty`` then. Raises
    /// ``PeerLost`` if it would wait for ever, since no other process or thread could put.
    #[pyo3(signature = (block = true, timeout = None))]
    fn get<'py>(&self, py: Python<'py>, block: bool, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        self.0.get(py, limit(block, timeout)?, false, self.name()).map(|(object, _)| object)
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
        let (open, limit) = (self.open()?, limit(block, timeout)?);
        let objects: PyResult<VecDeque<Object>> = objs.try_iter()?.map(|obj| dumps(&obj?)).collect();
        let objects = objects?;
        let (all, mut put) = (objects.len(), 0);
        let count = &mut put;
        let ended = open.wait(py, limit, objects, move |queue, objects, time| {
            let result = if time.is_zero() {
                queue.try_put_many(objects)
            } else {
                queue.put_many_timeout(objects, time)
            };
            let Err(error) = result else { return Attempt::Done(Ok(())) };
            *count += error.put;
            match error.error {
                PutError::Full(object) => Attempt::Late(std::iter::once(object).chain(error.rest).collect()),
                error => Attempt::Done(Err(error)),
            }
        });
        let error = match ended {
            Ok(Waited::Done(Ok(()))) => return Ok(all),
            Ok(Waited::Done(Err(error))) => put_error(py, error),
            Ok(Waited::Late) => full(py),
            Ok(Waited::Closed) => closed_error(self.name()),
            Err(error) => error,
        };
        error.value(py).setattr("put", put)?;
        Err(error)
    }

    /// Takes up to ``max`` objects out of the queue, and returns them as a list.
    ///
    /// Waits for the first one as ``get`` does, and takes the others without waiting. If one can't be
    /// unpickled, the attribute ``objects`` of its exception is the list of the others.
    #[pyo3(signature = (max, timeout = None))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        max: usize,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (list, limit) = (PyList::empty(py), limit(true, timeout)?);
        if max == 0 {
            return Ok(list);
        }
        let open = self.open()?;
        if open.joinable.is_some() {
            // Each task is taken with its lease.
            list.append(self.get(py, limit != Some(Duration::ZERO), timeout)?)?;
            while list.len() < max {
                match self.get(py, false, None) {
                    Ok(object) => list.append(object)?,
                    Err(_) => break,
                }
            }
            return Ok(list);
        }
        let taken = open.wait(py, limit, (), |queue, (), time| {
            let mut into = Vec::new();
            let result = if time.is_zero() {
                queue.try_get_many(&mut into, max)
            } else {
                queue.get_many_timeout(&mut into, max, time)
            };
            match result {
                Err(GetError::Empty) if into.is_empty() => Attempt::Late(()),
                Err(error) if into.is_empty() => Attempt::Done(Err(error)),
                _ => Attempt::Done(Ok(into)),
            }
        });
        open.update_ready();
        let objects = match taken? {
            Waited::Done(Ok(objects)) if objects.is_empty() => return Err(shut_down(py)),
            Waited::Done(Ok(objects)) => objects,
            Waited::Done(Err(error)) => return Err(get_error(py, error)),
            Waited::Late => return Err(empty(py)),
            Waited::Closed => return Err(closed_error(self.name())),
        };
        let mut failed = None;
        for object in objects {
            match loads(py, object) {
                Ok(object) => list.append(object)?,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => Ok(list),
            Some(error) => {
                // An exception without attributes is raised as it is.
                _ = error.value(py).setattr("objects", list);
                Err(error)
            }
        }
    }

    /// Takes the first object, which stays in the queue until it is acknowledged. Returns its ``Lease``.
    ///
    /// If the process dies before, or the block of ``with queue.get_ack() as obj:`` raises, the object is
    /// delivered again, to this or another consumer.
    #[pyo3(signature = (block = true, timeout = None))]
    fn get_ack(&self, py: Python<'_>, block: bool, timeout: Option<f64>) -> PyResult<Lease> {
        let (object, lease) = self.0.get(py, limit(block, timeout)?, true, self.name())?;
        Ok(Lease {
            value: object.unbind(),
            deliveries: lease.as_ref().map_or(1, MessageLease::deliveries),
            lease: Mutex::new(lease),
        })
    }

    /// Takes an object that was delivered as often as the queue allows, and never acknowledged. Raises
    /// ``Empty`` if there is none.
    ///
    /// For a ``JoinableQueue``, these are the tasks whose consumers died before ``task_done``.
    fn dead_letter<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.open()?.patient.dead_letter() {
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
    /// Another process may be faster: use ``get_nowait`` after it, which also makes it unreadable again.
    fn fileno(&self) -> PyResult<i32> {
        let open = self.open()?;
        if open.ready.get().is_none() {
            let ready = ReadyFd::new(Arc::new(open.patient.clone())).map_err(runtime)?;
            _ = open.ready.set(ready);
        }
        Ok(open.ready.get().map_or(-1, |ready| ready.as_fd().as_raw_fd()))
    }

    /// Ends the use of the queue in this process. Objects in it stay.
    fn close(&self) {
        self.0.close();
    }

    /// Does nothing: objects are in the queue when ``put`` returns, and no thread has them.
    #[allow(clippy::unused_self, reason = "the interface of multiprocessing.Queue")]
    fn join_thread(&self) {}

    /// Does nothing, as ``join_thread``.
    #[allow(clippy::unused_self, reason = "the interface of multiprocessing.Queue")]
    fn cancel_join_thread(&self) {}

    /// Ends the use of the queue in all processes.
    ///
    /// Further calls of ``put`` raise ``ShutDown``, and so does ``get`` when the queue is empty. With
    /// ``immediate``, the objects in the queue are dropped.
    #[pyo3(signature = (immediate = false))]
    fn shutdown(&self, py: Python<'_>, immediate: bool) -> PyResult<()> {
        let open = self.open()?;
        open.patient.close();
        while immediate {
            match open.take(py, Some(Duration::ZERO), open.joinable.is_some())? {
                Waited::Done(Ok(Some((_, Some(lease))))) => lease.ack(),
                Waited::Done(Ok(Some(_)) | Err(GetError::Failed(_))) => {}
                _ => break,
            }
        }
        open.update_ready();
        Ok(())
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

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.0.reduce(py, self.name(), |open| match &open.joinable {
            Some(joinable) => Handle::JoinableQueue(joinable.tasks.clone()),
            None => Handle::Queue(open.patient.clone()),
        })
    }

    fn __repr__(&self) -> String {
        self.0.describe(self.name())
    }
}

/// Queue that can wait until all its tasks are done.
///
/// ``task_done`` finishes the oldest task that the calling thread took by ``get``, or else the oldest one of
/// this process. A task whose consumer dies before is not waited for: see ``join``.
#[pyclass(frozen, module = "multiproc._multiproc", extends = Queue, subclass)]
pub struct JoinableQueue;

impl JoinableQueue {
    /// Returns the Python object of a queue.
    pub(crate) fn of(tasks: Tasks<Object>) -> PyClassInitializer<Self> {
        let shared = Shared::of(tasks.queue(), Some(tasks.clone()));
        PyClassInitializer::from(Queue(shared)).add_subclass(Self)
    }
}

#[pymethods]
impl JoinableQueue {
    #[new]
    #[pyo3(signature = (maxsize = 0, *, bytes = None, ctx = None))]
    fn new(maxsize: i64, bytes: Option<u64>, ctx: Option<Py<PyAny>>) -> PyResult<PyClassInitializer<Self>> {
        let _ = ctx;
        Tasks::with_options(options(maxsize, bytes, 1)).map(Self::of).map_err(runtime)
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
    #[pyo3(signature = (*, ctx = None))]
    fn new(ctx: Option<Py<PyAny>>) -> PyResult<Self> {
        let _ = ctx;
        Messages::unbounded().map(Self::from).map_err(runtime)
    }

    /// Puts an object into the queue.
    fn put(&self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.put(obj, None, Self::NAME)
    }

    /// Takes the first object out of the queue, and waits while there is none.
    fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.get(py, None, false, Self::NAME).map(|(object, _)| object)
    }

    /// Returns ``True`` if the queue has no objects.
    fn empty(&self) -> PyResult<bool> {
        Ok(self.0.open(Self::NAME)?.patient.is_empty())
    }

    /// Ends the use of the queue in this process. Objects in it stay.
    fn close(&self) {
        self.0.close();
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.0.reduce(py, Self::NAME, |open| Handle::SimpleQueue(open.patient.clone()))
    }

    fn __repr__(&self) -> String {
        self.0.describe(Self::NAME)
    }
}

/// An object taken by ``get_ack``. As a context manager, it gives the object, and acknowledges it if the
/// block ends without an exception.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct Lease {
    value: Py<PyAny>,
    deliveries: u32,
    lease: Mutex<Option<MessageLease<()>>>,
}

#[pymethods]
impl Lease {
    /// The object.
    #[getter]
    fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.value.clone_ref(py)
    }

    /// Number of times that the object was delivered: 1 for the first time.
    #[getter]
    fn deliveries(&self) -> u32 {
        self.deliveries
    }

    /// Removes the object from the queue. Raises ``ValueError`` if it was acknowledged or given back before.
    fn ack(&self) -> PyResult<()> {
        match self.lease.lock().take() {
            Some(lease) => {
                lease.ack();
                Ok(())
            }
            None => Err(PyValueError::new_err("the lease has ended")),
        }
    }

    /// Gives the object back to the queue, to be delivered again.
    fn give_back(&self) {
        let lease = self.lease.lock().take();
        drop(lease);
    }

    fn __enter__(&self, py: Python<'_>) -> Py<PyAny> {
        self.value(py)
    }

    fn __exit__(
        &self,
        class: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let lease = self.lease.lock().take();
        // A block may have ended the lease itself.
        if let (Some(lease), true) = (lease, class.is_none()) {
            lease.ack();
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        let state = if self.lease.lock().is_some() { "held" } else { "ended" };
        format!("<multiproc.Lease: {state}, delivered {} times>", self.deliveries)
    }
}
