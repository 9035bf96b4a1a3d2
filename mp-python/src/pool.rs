//! Workers of `Pool`: interpreters that run functions, each task once.
//!
//! A task is a chunk of items, sent as one list ([`payload`]). The worker calls the function for each item
//! and sends the results as one list. The function of a call is sent to each worker once.
//!
//! No thread of the pool holds a Python object: `multiproc.pool` keeps the pending results, and a thread
//! of Python that waits for [`Completions`] calls their callbacks.

mod payload;

use std::ffi::OsString;
use std::pin::pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use mp::message::PlainOutcome;
use mp::pool::{Call, Outcome, PoolError, PushError, StatePool, TaskError, TaskStream, note};
use mp::process::{ExitStatus, closure};
use mp_core::mutex::Mutex;
use pyo3::exceptions::{
    PyAttributeError, PyKeyboardInterrupt, PyRuntimeError, PySystemExit, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::object::Object;
use crate::object::pickle::{dumps, dumps_by, dumps_for_each, loads};
use crate::process::start_method;
use crate::wait::{Attempt, limit, on_thread, wait};
use payload::{Payload, Results};

/// Calls a function of `multiproc.pool`.
fn helper<'py>(
    py: Python<'py>,
    name: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    py.import("multiproc.pool")?.getattr(name)?.call1(arguments)
}

/// Pickles an object that may contain functions. Uses cloudpickle, if it is installed, for functions that
/// pickle can't write, and if workers have not imported the main module.
pub(crate) fn dumps_functions(object: &Bound<'_, PyAny>, has_main: bool) -> PyResult<Object> {
    write_functions(object, has_main, dumps_by)
}

/// Does the same as [`dumps_functions`] for several workers, each with its own copies of arrays.
pub(crate) fn dumps_functions_for_each(object: &Bound<'_, PyAny>, has_main: bool) -> PyResult<Object> {
    write_functions(object, has_main, dumps_for_each)
}

fn write_functions(
    object: &Bound<'_, PyAny>,
    has_main: bool,
    dumps_by: fn(&Bound<'_, PyAny>, Option<&Bound<'_, PyAny>>) -> PyResult<Object>,
) -> PyResult<Object> {
    let py = object.py();
    let pickler = || {
        let make = py.import("multiproc.reduction")?.getattr("pickler")?.call1((has_main,))?;
        PyResult::Ok(Some(make).filter(|make| !make.is_none()))
    };
    if !has_main {
        return dumps_by(object, pickler()?.as_ref());
    }
    match dumps_by(object, None) {
        Err(error) if is_unpicklable(py, &error)? => match pickler()? {
            Some(make) => dumps_by(object, Some(&make)).map_err(|_| error),
            None => Err(error),
        },
        result => result,
    }
}

/// Returns `true` for the exceptions that pickle raises for objects that it can't pickle.
fn is_unpicklable(py: Python<'_>, error: &PyErr) -> PyResult<bool> {
    static REFUSED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let refused = REFUSED.import(py, "pickle", "PicklingError")?;
    Ok(error.is_instance(py, refused)
        || error.is_instance_of::<PyAttributeError>(py)
        || error.is_instance_of::<PyTypeError>(py))
}

/// Pickled preparation data, initializer, and the initializer's arguments. Each worker gets a copy.
#[derive(Clone, Serialize, Deserialize)]
struct Start(#[serde(with = "mp_core::serde_with::shared")] Arc<Once>);

/// State of a worker. Dropping it runs the exit functions of the interpreter.
struct Worker;

/// Prepares the interpreter of a worker and calls the initializer.
fn begin(Start(object): Start) -> Result<(), String> {
    Python::attach(|py| {
        let object = object.0.lock().take().ok_or("the worker has begun already")?;
        let begun = loads(py, object)
            .and_then(|start| helper(py, "_begin", (mp::pool::current_worker().unwrap_or_default(), start)));
        begun.map(drop).map_err(|error| trace(py, &error))
    })
}

impl Drop for Worker {
    fn drop(&mut self) {
        // At the process's exit, the interpreter may have ended.
        Python::try_attach(|py| {
            if let Err(error) = helper(py, "_end", ()) {
                error.print(py);
            }
        });
    }
}

/// Returns the exception as a Python object, with its traceback.
fn exception<'py>(py: Python<'py>, error: &PyErr) -> Bound<'py, PyAny> {
    error.clone_ref(py).into_value(py).into_bound(py).into_any()
}

/// Returns the text of an exception with its traceback.
fn trace(py: Python<'_>, error: &PyErr) -> String {
    let text = helper(py, "_trace", (exception(py, error),)).and_then(|text| text.extract::<String>());
    text.unwrap_or_else(|_| error.to_string())
}

/// Pickled object, which a worker takes out when it reads the object.
struct Once(Mutex<Option<Object>>);

impl Once {
    fn new(object: Object) -> Self {
        Once(Mutex::new(Some(object)))
    }
}

impl Serialize for Once {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.lock().serialize(s)
    }
}

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        Ok(Once(Mutex::new(Option::deserialize(d)?)))
    }
}

/// Function that a call applies to items. Each task of the call captures it.
#[derive(Serialize, Deserialize)]
struct Function {
    pickled: Once,
    /// `true` if each item is a tuple of arguments.
    star: bool,
    /// The unpickled function, after a worker's first task of the call.
    #[serde(skip)]
    loaded: OnceLock<Py<PyAny>>,
}

impl Function {
    /// Returns the function. If unpickling it fails, each chunk raises the exception.
    fn load<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(function) = self.loaded.get() {
            return Ok(function.bind(py).clone());
        }
        let pickled = self.pickled.0.lock().take();
        let pickled = pickled.ok_or_else(|| {
            PyRuntimeError::new_err("the function could not be unpickled in an earlier task of this worker")
        })?;
        let function = loads(py, pickled)?;
        Ok(self.loaded.get_or_init(|| function.unbind()).bind(py).clone())
    }

    /// Calls the function for each item of a chunk, and returns the results. While an item is processed, its
    /// number in the chunk, from 1, is the progress of the task.
    fn call<'py>(&self, py: Python<'py>, chunk: Payload) -> PyResult<Results<'py>> {
        static MAP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static STARMAP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let function = self.load(py)?;
        let items = chunk.items(py)?;
        let map = match self.star {
            true => STARMAP.import(py, "itertools", "starmap")?,
            false => MAP.import(py, "builtins", "map")?,
        };
        let mut results = Results::new();
        note(1);
        for (index, result) in map.call1((function, items))?.try_iter()?.enumerate() {
            results.push(result?)?;
            note(index as u64 + 2);
        }
        Ok(results)
    }
}

/// Outcome of a task that the worker has finished.
#[derive(Serialize, Deserialize)]
enum Reply {
    /// Result, or list of the results of a chunk.
    Value(Payload),
    /// Exception.
    Raised(Object),
}

impl PlainOutcome for Reply {}

impl Reply {
    fn of<'py>(py: Python<'py>, run: impl FnOnce() -> PyResult<Results<'py>>) -> Reply {
        // A signal that arrived while the worker had no task is not for this task.
        if let Err(error) = py.check_signals()
            && !error.is_instance_of::<PyKeyboardInterrupt>(py)
        {
            return Reply::raised(py, &error);
        }
        match run() {
            Ok(results) => match results.payload(py) {
                Ok(payload) => Reply::Value(payload),
                Err((error, value)) => Reply::unsendable(py, &error, &value),
            },
            Err(error) if error.is_instance_of::<PySystemExit>(py) => {
                let code = helper(py, "_exit", (error.value(py),)).and_then(|code| code.extract());
                std::process::exit(code.unwrap_or(1));
            }
            Err(error) => Reply::raised(py, &error),
        }
    }

    fn raised(py: Python<'_>, error: &PyErr) -> Reply {
        let wrapped = helper(py, "_wrap", (exception(py, error),));
        match wrapped.and_then(|wrapped| dumps(&wrapped)) {
            Ok(object) => Reply::Raised(object),
            Err(failure) => Reply::unsendable(py, &failure, &exception(py, error)),
        }
    }

    /// Returns the reply for a value or exception that can't be pickled.
    fn unsendable(py: Python<'_>, error: &PyErr, value: &Bound<'_, PyAny>) -> Reply {
        let object = helper(py, "_unsendable", (error.value(py), value)).and_then(|error| dumps(&error));
        Reply::Raised(object.unwrap_or_default())
    }
}

/// Runs a task of `apply`: a function, its arguments and its keyword arguments.
fn apply(target: Payload) -> Reply {
    Python::attach(|py| {
        Reply::of(py, || {
            let target = target.read(py)?;
            helper(py, "_apply", (target,)).map(Results::One)
        })
    })
}

/// Runs a task of any other call: a chunk of items.
fn chunk(function: &Function, items: Payload) -> Reply {
    Python::attach(|py| Reply::of(py, || function.call(py, items)))
}

fn pool_error(error: PoolError) -> PyErr {
    match error {
        PoolError::Settings(why) => PyValueError::new_err(why),
        PoolError::Start(error) => crate::error::os_error(error.to_string()),
        error => crate::error::runtime(error),
    }
}

/// Workers and their tasks.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct Pool {
    /// `None` while the value is dropped.
    pool: Option<StatePool<Worker>>,
    apply: Call<Payload, Reply>,
}

impl Pool {
    fn workers(&self) -> PyResult<&mp::Pool> {
        let pool = self.pool.as_ref().ok_or_else(|| PyValueError::new_err("Pool not running"))?;
        Ok(pool.pool())
    }
}

#[pymethods]
impl Pool {
    /// Starts `processes` workers. `start` is a tuple of the preparation, the initializer and its
    /// arguments.
    #[new]
    #[pyo3(signature = (
        processes, start, *, command, method, max_tasks = 0, max_waiting = None, start_timeout = None,
        name = None, has_main = true
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        processes: usize,
        start: &Bound<'_, PyAny>,
        command: Vec<OsString>,
        method: &str,
        max_tasks: u64,
        max_waiting: Option<usize>,
        start_timeout: Option<f64>,
        name: Option<String>,
        has_main: bool,
    ) -> PyResult<Self> {
        let (py, method) = (start.py(), start_method(method)?);
        let start = Start(Arc::new(Once::new(dumps_functions_for_each(start, has_main)?)));
        let mut builder = mp::Pool::builder()
            .processes(processes)
            .max_tasks_per_child(max_tasks)
            .start_method(method)
            .per_worker(move |_, process| process.command(command.clone()));
        if let Some(tasks) = max_waiting {
            builder = builder.max_waiting(tasks);
        }
        if let Some(time) = seconds(start_timeout)? {
            builder = builder.start_timeout(time);
        }
        if let Some(name) = name {
            builder = builder.name(name);
        }
        let build = || builder.initializer(begin, start).state(|| Worker).build();
        let pool = on_thread(py, build, drop)?.map_err(pool_error)?;
        let apply = pool.pool().task(apply);
        Ok(Self { pool: Some(pool), apply })
    }

    /// Creates the task stream of a call. A worker applies `function` to each item of each pushed chunk. If
    /// `function` is `None`, each pushed object contains its own function and arguments. With `results`, a
    /// list, each result is stored at the index of its item. All tasks but the last have `chunksize` items.
    #[pyo3(signature = (
        function = None, *, star = false, has_main = true, timeout = None, retries = 0, in_order = false,
        results = None, chunksize = 1
    ))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of a call in Python")]
    fn tasks(
        &self,
        function: Option<&Bound<'_, PyAny>>,
        star: bool,
        has_main: bool,
        timeout: Option<f64>,
        retries: u32,
        in_order: bool,
        results: Option<Py<PyList>>,
        chunksize: usize,
    ) -> PyResult<Tasks> {
        let pool = self.workers()?;
        let mut call = match function {
            None => self.apply.clone(),
            Some(function) => {
                let pickled = Once::new(dumps_functions_for_each(function, has_main)?);
                let function = Function { pickled, star, loaded: OnceLock::new() };
                pool.task_closure(closure!([function] |items: Payload| chunk(function, items)))
            }
        };
        if let Some(time) = seconds(timeout)? {
            call = call.timeout(time);
        }
        if retries > 0 {
            call = call.retries(retries);
        }
        let stream = if in_order { call.stream().in_order() } else { call.stream() };
        Ok(Tasks { stream, untaken: Mutex::new(None), results, chunksize })
    }

    /// Process ids of the workers, by their number. 0 for a worker that is being replaced.
    fn pids(&self) -> PyResult<Vec<u32>> {
        Ok(self.workers()?.pids())
    }

    /// Closes the pool for new tasks. Workers end after all submitted tasks.
    fn close(&self) -> PyResult<()> {
        self.workers()?.close();
        Ok(())
    }

    /// Drops the tasks that have not begun, and ends the workers. Returns at once.
    fn terminate(&self) -> PyResult<()> {
        self.workers()?.terminate();
        Ok(())
    }

    /// Waits until the workers have ended. Returns `False` if the time limit has expired.
    #[pyo3(signature = (timeout = None))]
    fn join(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let pool = self.workers()?;
        let ended = wait(py, limit(true, timeout)?, (), |(), time| match pool.join_timeout(time) {
            Ok(false) => Attempt::Late(()),
            ended => Attempt::Done(ended),
        })?;
        match ended {
            Ok(ended) => ended.map_err(pool_error),
            Err(()) => Ok(false),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let pool = self.pool.take();
        // Waits for the end of the workers. The interpreter may be ending, or have ended.
        let mut pool = Some(pool);
        Python::try_attach(|py| py.detach(|| drop(pool.take())));
        drop(pool);
    }
}

/// Converts seconds to a duration. `None` and values too large for a `Duration` mean no limit.
fn seconds(time: Option<f64>) -> PyResult<Option<Duration>> {
    match time {
        None => Ok(None),
        Some(_) => limit(true, time),
    }
}

/// Returns a `TimeoutError` of `multiprocessing`.
fn timeout_error(py: Python<'_>) -> PyErr {
    static TIMEOUT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    match TIMEOUT.import(py, "multiprocessing", "TimeoutError").and_then(|class| class.call0()) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Tasks of one call.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct Tasks {
    stream: TaskStream<Payload, Reply>,
    /// Outcome that an interrupted call of `next` has taken. The following call returns it.
    untaken: Mutex<Option<Outcome<Reply>>>,
    /// List into which the results are stored, if there is one.
    results: Option<Py<PyList>>,
    /// Number of items of each task but the last one.
    chunksize: usize,
}

impl Tasks {
    /// Returns the task's number, `True` for success, and the value or exception (also one of unpickling).
    fn outcome<'py>(
        &self,
        py: Python<'py>,
        (ticket, result): Outcome<Reply>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let (success, value) = match result {
            Ok(Reply::Value(items)) if let Some(results) = &self.results => {
                let stored = items.store(results.bind(py), ticket.number() * self.chunksize);
                (true, stored.map(|()| py.None().into_bound(py)))
            }
            Ok(Reply::Value(value)) => (true, value.read(py)),
            Ok(Reply::Raised(object)) => (false, loads(py, object)),
            Err(error) => (false, task_error(py, error)),
        };
        let (success, value) = match value {
            Ok(value) => (success, value),
            Err(error) => (false, exception(py, &error)),
        };
        (ticket.number(), success, value).into_pyobject(py)
    }
}

#[pymethods]
impl Tasks {
    /// Pushes a task. The task is `target` itself, or its items from `begin` to `end`. Waits for room in a
    /// bounded pool. Returns the number of the task, or `None` if the stream is closed.
    #[pyo3(signature = (has_main, target, begin = None, end = 0))]
    fn push(
        &self,
        has_main: bool,
        target: &Bound<'_, PyAny>,
        begin: Option<usize>,
        end: usize,
    ) -> PyResult<Option<usize>> {
        let part = begin.map(|begin| begin..end);
        let object = Payload::of(target, part, |target| dumps_functions(target, has_main))?;
        let pushed = wait(target.py(), None, object, |object, time| {
            let pushed = match time.is_zero() {
                true => self.stream.try_push(object),
                false => self.stream.push_timeout(object, time),
            };
            match pushed {
                Ok(ticket) => Attempt::Done(Some(ticket.number())),
                Err(PushError::Closed(_)) => Attempt::Done(None),
                Err(PushError::Full(object)) => Attempt::Late(object),
            }
        })?;
        Ok(pushed.ok().flatten())
    }

    /// Closes the stream: no more tasks are pushed.
    fn close(&self) {
        self.stream.close();
    }

    /// Returns `True` if all tasks that were pushed have an outcome.
    fn done(&self) -> bool {
        let progress = self.stream.progress();
        progress.done == progress.total
    }

    /// Waits for the next outcome and returns it: the number of the task, ``True`` if it has succeeded, and
    /// its value or exception. Returns ``None`` if all outcomes were returned.
    #[pyo3(signature = (timeout = None))]
    fn next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let next = wait(py, limit(true, timeout)?, (), |(), time| {
            let untaken = self.untaken.lock().take().map(Some);
            let take = || match time.is_zero() {
                true => self.stream.try_next(),
                false => self.stream.next_timeout(time),
            };
            let next = untaken.map_or_else(take, Ok);
            next.map_or(Attempt::Late(()), Attempt::Done)
        })?;
        let next = next.map_err(|()| timeout_error(py))?;
        // Ctrl-C interrupts the workers, too. An exception while their outcome is unpickled would replace it.
        if let Err(interrupt) = py.check_signals() {
            *self.untaken.lock() = next;
            return Err(interrupt);
        }
        next.map(|outcome| self.outcome(py, outcome)).transpose()
    }

    /// Returns the next outcome like ``next``, without waiting. If no outcome is ready, raises
    /// ``TimeoutError``, and adds ``key`` to ``completions`` as soon as an outcome is ready.
    fn poll<'py>(
        &self,
        py: Python<'py>,
        completions: &Completions,
        key: usize,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let sender = completions.sender.clone();
        let waker = Waker::from(Arc::new(Notice { key, sender }));
        match pin!(self.stream.next_async()).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => Err(timeout_error(py)),
            Poll::Ready(next) => next.map(|outcome| self.outcome(py, outcome)).transpose(),
        }
    }
}

/// Waker that sends the key of a call to [`Completions`].
struct Notice {
    key: usize,
    sender: Sender<Option<usize>>,
}

impl Wake for Notice {
    fn wake(self: Arc<Self>) {
        _ = self.sender.send(Some(self.key));
    }
}

/// Keys of calls that have new outcomes.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct Completions {
    sender: Sender<Option<usize>>,
    receiver: Mutex<Receiver<Option<usize>>>,
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver: Mutex::new(receiver) }
    }

    /// Adds a key. ``None`` ends the wait of ``next``.
    #[pyo3(signature = (key))]
    fn put(&self, key: Option<usize>) {
        _ = self.sender.send(key);
    }

    /// Waits for the next key. Returns ``None`` after ``put(None)``.
    fn next(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        let next = wait(py, None, (), |(), time| match self.receiver.lock().recv_timeout(time) {
            Ok(key) => Attempt::Done(key),
            Err(RecvTimeoutError::Timeout) => Attempt::Late(()),
            Err(RecvTimeoutError::Disconnected) => Attempt::Done(None),
        })?;
        Ok(next.ok().flatten())
    }
}

/// Creates the exception for a task without a result.
fn task_error(py: Python<'_>, error: TaskError) -> PyResult<Bound<'_, PyAny>> {
    let attempts = error.attempts().count().max(1);
    match error {
        TaskError::WorkerLost(lost) => {
            let code = match lost.exit {
                ExitStatus::Code(code) => Some(code),
                ExitStatus::Signal { signal, .. } => Some(-signal.number()),
                _ => None,
            };
            let text = format!("worker {} (pid {}) {}", lost.worker, lost.pid, lost.exit);
            helper(py, "_worker_lost", (text, lost.pid, code, lost.note, attempts))
        }
        TaskError::TimedOut { worker, pid, timeout, note, .. } => {
            let text = format!(
                "the task took more than {timeout:?}, and its worker {worker} (pid {pid}) was killed"
            );
            helper(py, "_task_timeout", (text, pid, note, attempts))
        }
        error @ (TaskError::Arguments { .. } | TaskError::Value { .. }) => {
            helper(py, "_not_encoded", (error.to_string(),))
        }
        error => helper(py, "_no_worker", (error.to_string(),)),
    }
}
