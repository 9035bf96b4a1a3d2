//! Worker processes of a loader, and their tasks.
//!
//! A loader has a pool of the library ([`mp::Pool`]), or one pool of one worker for each part of a dataset
//! that can only be iterated. `multiproc._loader_worker.begin(arguments, number)` prepares each process once.
//! The tasks of an epoch are calls of a closure that captures the epoch's setup: the dataset and the
//! functions. A worker that reads the setup makes a Python object from it by
//! `multiproc._loader_worker.make(setup, number, seed)`. The object is dropped when the epoch has ended. A
//! task calls this object, and returns its result. The pool sends the setup again to a replacement of a dead
//! worker, runs the lost task again, and keeps the time limits.

use std::ffi::OsString;
use std::sync::{Arc, OnceLock};

use mp::pool::{Call, RunningTask, StatePool, TaskStream, WorkerLost, WorkerMetrics, WorkerState};
use mp::process::{ExitStatus, Interrupt, InterruptSignals, closure};
use mp::{Pool, TaskError};
use mp_core::mutex::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::runtime;
use crate::object::Object;
use crate::object::pickle::{dumps, loads};
use crate::pool::dumps_functions_for_each;
use crate::process::start_method;
use crate::wait::{Attempt, limit, on_thread, wait};

/// Pickled object that is part of several messages. Each send encodes it again, without copying its arrays.
#[derive(Clone)]
struct Message(Arc<Mutex<Option<Object>>>);

impl Message {
    fn new(object: Object) -> Self {
        Self(Arc::new(Mutex::new(Some(object))))
    }

    /// Unpickles the object. A second call in the same process is an error.
    fn load<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let object = self.0.lock().take();
        loads(py, object.ok_or_else(|| PyRuntimeError::new_err("the message was read already"))?)
    }
}

impl Serialize for Message {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.lock().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(|object| Self(Arc::new(Mutex::new(object))))
    }
}

/// Returns a function of `multiproc._loader_worker`.
fn helper<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("multiproc._loader_worker")?.getattr(name)
}

/// Prints an exception, and returns its text.
fn print(py: Python<'_>, error: PyErr) -> String {
    error.print(py);
    error.to_string()
}

/// State of a worker process. Dropping it runs the exit functions of the interpreter.
struct Worker;

impl Drop for Worker {
    fn drop(&mut self) {
        // At the process's exit, the interpreter may have ended.
        Python::try_attach(|py| {
            let leave = helper(py, "leave").and_then(|leave| leave.call0());
            _ = leave.inspect_err(|error| error.print(py));
        });
    }
}

/// Prepares the interpreter of a worker, in the worker.
fn begin(arguments: Message) -> Result<(), String> {
    let number = mp::pool::current_worker().unwrap_or_default();
    Python::attach(|py| {
        let begun = || helper(py, "begin")?.call1((arguments.load(py)?, number));
        begun().map(drop).map_err(|error| error.to_string())
    })
}

/// Setup of an epoch. Each task of the epoch captures it.
#[derive(Serialize, Deserialize)]
#[serde(from = "SentEpoch")]
struct Epoch {
    setup: Message,
    /// Seed of the epoch.
    seed: u64,
    /// Number of the worker that iterates over this part of an iterable dataset. `None` for other datasets.
    part: Option<usize>,
    /// Object that makes the batches, or the error of making it. Set in a worker.
    #[serde(skip)]
    maker: OnceLock<Result<Py<PyAny>, String>>,
}

/// Fields of an [`Epoch`] that are sent to a worker.
#[derive(Deserialize)]
struct SentEpoch {
    setup: Message,
    seed: u64,
    part: Option<usize>,
}

impl From<SentEpoch> for Epoch {
    /// Unpickles the setup when a worker receives the epoch, before the worker takes a task. So other workers
    /// can take the tasks meanwhile.
    fn from(SentEpoch { setup, seed, part }: SentEpoch) -> Self {
        let epoch = Self { setup, seed, part, maker: OnceLock::new() };
        // An error is the outcome of each task.
        Python::attach(|py| _ = epoch.maker(py));
        epoch
    }
}

impl Epoch {
    /// Returns the object that makes the batches of this epoch in this process.
    fn maker<'py>(&self, py: Python<'py>) -> Result<&Bound<'py, PyAny>, String> {
        let make = || {
            let number = self.part.or(mp::pool::current_worker()).unwrap_or_default();
            let made = || helper(py, "make")?.call1((self.setup.load(py)?, number, self.seed));
            made().map(Bound::unbind).map_err(|error| print(py, error))
        };
        self.maker.get_or_init(make).as_ref().map(|maker| maker.bind(py)).map_err(Clone::clone)
    }
}

impl Drop for Epoch {
    /// Drops the object with the interpreter's lock held, which closes files and iterators of the epoch at
    /// once. Without the lock, the drop would be deferred.
    fn drop(&mut self) {
        let Some(Ok(maker)) = self.maker.take() else { return };
        Python::try_attach(|py| {
            _ = maker.call_method0(py, "close").inspect_err(|error| error.print(py));
            drop(maker);
        });
    }
}

/// Runs a task, in the worker.
fn run(epoch: &Epoch, task: Object) -> Result<Object, String> {
    Python::attach(|py| {
        let maker = epoch.maker(py)?;
        let run = || {
            let result = maker.call1((loads(py, task)?,))?;
            match dumps(&result) {
                Ok(object) => Ok(object),
                // The maker's exception names the value that can't be sent.
                Err(error) => dumps(&maker.call_method1("unsendable", (error.into_value(py),))?),
            }
        };
        run().map_err(|error| print(py, error))
    })
}

/// Stores the progress of the running task. Errors about the worker report it.
#[pyfunction]
#[pyo3(name = "_note")]
pub fn note(number: u64) {
    mp::pool::note(number);
}

/// Pool of worker processes of a loader. `None` after `close`.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct LoaderWorkers(Mutex<Option<Arc<StatePool<Worker>>>>);

impl LoaderWorkers {
    fn pool(&self) -> PyResult<Arc<StatePool<Worker>>> {
        self.0.lock().clone().ok_or_else(|| PyRuntimeError::new_err("the workers of the loader have ended"))
    }
}

#[pymethods]
impl LoaderWorkers {
    /// Starts `processes` workers by `command`.
    #[new]
    #[pyo3(signature = (arguments, processes, *, command, method, name, has_main))]
    fn new(
        arguments: &Bound<'_, PyAny>,
        processes: usize,
        command: Vec<OsString>,
        method: &str,
        name: String,
        has_main: bool,
    ) -> PyResult<Self> {
        let method = start_method(method)?;
        let arguments_of_all = Message::new(dumps_functions_for_each(arguments, has_main)?);
        let pool = Pool::builder()
            .processes(processes)
            .name(name)
            .start_method(method)
            .interrupt(Interrupt::Ignore)
            .interrupt_signals(InterruptSignals::Sigint)
            .per_worker(move |_, process| process.command(command.clone()))
            .initializer(begin, arguments_of_all)
            .state(|| Worker);
        let pool = on_thread(arguments.py(), || pool.build(), drop)?.map_err(runtime)?;
        Ok(Self(Mutex::new(Some(Arc::new(pool)))))
    }

    /// Begins an epoch. Each worker makes its own dataset from the setup. If this pool serves one part of an
    /// iterable dataset, ``part`` is the number of that part.
    #[pyo3(signature = (setup, seed, part = None))]
    fn epoch(&self, setup: &LoaderSetup, seed: u64, part: Option<usize>) -> PyResult<LoaderEpoch> {
        let epoch = Epoch { setup: setup.0.clone(), seed, part, maker: OnceLock::new() };
        let call = self.pool()?.pool().task_closure(closure!([epoch] |task: Object| run(epoch, task)));
        Ok(LoaderEpoch(call))
    }

    /// Number of workers that are ready for tasks.
    fn ready(&self) -> PyResult<usize> {
        let is_ready =
            |worker: &&WorkerMetrics| !matches!(worker.state, WorkerState::Absent | WorkerState::Starting);
        Ok(self.pool()?.pool().metrics().workers.iter().filter(is_ready).count())
    }

    /// Process ids of the workers.
    fn pids(&self) -> PyResult<Vec<u32>> {
        Ok(self.pool()?.pool().pids())
    }

    /// Number of workers that were replaced.
    fn restarts(&self) -> PyResult<u64> {
        Ok(self.pool()?.pool().metrics().restarts)
    }

    /// Starts the termination of the workers. Does not block.
    fn terminate(&self) {
        if let Some(pool) = &*self.0.lock() {
            pool.pool().terminate();
        }
    }

    /// Ends the workers, and blocks until they have ended.
    fn close(&self, py: Python<'_>) {
        let pool = self.0.lock().take();
        py.detach(|| drop(pool));
    }
}

/// Setup of epochs: dataset and functions, pickled once. Its arrays are in shared memory once for all
/// workers.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct LoaderSetup(Message);

#[pymethods]
impl LoaderSetup {
    #[new]
    fn new(setup: &Bound<'_, PyAny>, has_main: bool) -> PyResult<Self> {
        Ok(Self(Message::new(dumps_functions_for_each(setup, has_main)?)))
    }
}

/// Epoch of a loader. When this object is dropped, the workers drop their copies of the dataset.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct LoaderEpoch(Call<Object, Object>);

#[pymethods]
impl LoaderEpoch {
    /// Creates the task stream of the epoch. A task is run again after a death or after ``timeout`` seconds,
    /// up to ``retries`` times. With ``in_order``, results are returned in the order of the tasks, otherwise
    /// as soon as they are ready. Before the tasks, ``prepare`` workers read the setup without a time limit.
    #[pyo3(signature = (*, retries, timeout = None, in_order = true, prepare = 0))]
    fn tasks(
        &self,
        py: Python<'_>,
        retries: u32,
        timeout: Option<f64>,
        in_order: bool,
        prepare: usize,
    ) -> PyResult<LoaderTasks> {
        let preparation = (prepare > 0).then(|| self.0.clone().stream());
        if let Some(stream) = &preparation {
            for _ in 0..prepare {
                push(stream, &py.None().into_bound(py))?;
            }
        }
        let mut call = self.0.clone().retry_if(retries, |error| {
            matches!(error, TaskError::WorkerLost(_) | TaskError::TimedOut { .. })
        });
        if let Some(limit) = limit(timeout.is_some(), timeout)?.filter(|limit| !limit.is_zero()) {
            call = call.timeout(limit);
        }
        let stream = call.stream();
        let stream = if in_order { stream.in_order() } else { stream };
        Ok(LoaderTasks { stream, _preparation: preparation })
    }
}

/// Adds a task. Returns its number.
fn push(stream: &TaskStream<Object, Object>, task: &Bound<'_, PyAny>) -> PyResult<usize> {
    let object = dumps(task)?;
    let pushed = task.py().detach(|| stream.push(object).map_err(|error| error.to_string()));
    pushed.map(|ticket| ticket.number()).map_err(runtime)
}

/// Tasks of one epoch.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct LoaderTasks {
    stream: TaskStream<Object, Object>,
    /// Tasks that make workers read the setup before the first batch. Their results are not used.
    _preparation: Option<TaskStream<Object, Object>>,
}

#[pymethods]
impl LoaderTasks {
    /// Adds a task. Returns its number.
    fn push(&self, task: &Bound<'_, PyAny>) -> PyResult<usize> {
        push(&self.stream, task)
    }

    /// Waits for the next result: `(number, result, failure)`, where either result or failure is `None`.
    /// Returns `None` if the time limit has expired.
    #[pyo3(signature = (timeout = None))]
    fn next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let limit = limit(true, timeout)?;
        let outcome = wait(py, limit, (), |(), time| match self.stream.next_timeout(time) {
            Ok(outcome) => Attempt::Done(outcome),
            Err(_) => Attempt::Late(()),
        })?;
        let Ok(outcome) = outcome else { return Ok(None) };
        let (ticket, result) =
            outcome.ok_or_else(|| PyRuntimeError::new_err("no task is left to wait for"))?;
        Ok(Some(match result {
            Ok(object) => (ticket.number(), loads(py, object)?, py.None()).into_pyobject(py)?,
            Err(error) => (ticket.number(), py.None(), failure(error)).into_pyobject(py)?,
        }))
    }

    /// Returns the tasks that workers run now: number, worker, process id, progress, seconds.
    fn running(&self) -> Vec<(usize, usize, u32, Option<u64>, f64)> {
        let tuple =
            |task: RunningTask| (task.task, task.worker, task.pid, task.note, task.running_for.as_secs_f64());
        self.stream.running().into_iter().map(tuple).collect()
    }
}

/// Failure of a task: kind, number of the worker, its process id, its exit code or negative signal,
/// progress of the task, text.
type Failure = (&'static str, usize, u32, i32, Option<u64>, String);

fn failure(mut error: TaskError) -> Failure {
    // The exception names the sample instead.
    let note = match &mut error {
        TaskError::WorkerLost(lost) => lost.note.take(),
        TaskError::TimedOut { note, .. } => note.take(),
        _ => None,
    };
    let text = error.to_string();
    match &error {
        TaskError::WorkerLost(lost) => {
            let WorkerLost { worker, pid, exit, .. } = &**lost;
            let code = match exit {
                ExitStatus::Code(code) => *code,
                ExitStatus::Signal { signal, .. } => -signal.number(),
                _ => 255,
            };
            ("lost", *worker, *pid, code, note, text)
        }
        TaskError::TimedOut { worker, pid, .. } => ("timeout", *worker, *pid, 0, note, text),
        _ => ("failed", 0, 0, 0, None, text),
    }
}
