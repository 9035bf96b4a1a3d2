//! Worker processes of a loader, and their tasks.
//!
//! A loader has a pool of the library ([`mp::Pool`]), or one pool of one worker for each part of a dataset
//! that can only be iterated. A worker's state is a Python object, made by
//! `multiproc._loader_worker.begin(arguments, number)` from the arguments that were sent once. A task
//! calls it, and returns what it returns. The pool knows what was lost with a dead worker, runs it again
//! elsewhere, and keeps the time limits.

use std::ffi::OsString;
use std::sync::Arc;

use mp::pool::{RunningTask, StatePool, TaskStream, WorkerLost, WorkerMetrics, WorkerState};
use mp::process::{ExitStatus, Interrupt, InterruptSignals};
use mp::{Pool, TaskError};
use mp_core::mutex::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::runtime;
use crate::object::Object;
use crate::object::pickle::{dumps, loads};
use crate::pool::dumps_functions;
use crate::process::start_method;
use crate::wait::{Attempt, limit, wait};

/// Arguments of the workers: one message, encoded again for each start, without copies of its arrays.
#[derive(Clone)]
struct Arguments(Arc<Mutex<Option<Object>>>);

impl Serialize for Arguments {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.lock().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(|object| Self(Arc::new(Mutex::new(object))))
    }
}

/// State of a worker process.
struct Worker(Py<PyAny>);

impl Drop for Worker {
    fn drop(&mut self) {
        // At the process's exit, the interpreter may have ended.
        Python::try_attach(|py| {
            _ = self.0.call_method0(py, "leave").inspect_err(|error| error.print(py));
        });
    }
}

/// Prepares the interpreter of a worker, in the worker, and makes its state.
fn begin(arguments: Arguments) -> Result<(), String> {
    let object = arguments.0.lock().take().ok_or("the worker has begun already")?;
    let number = mp::pool::current_worker().unwrap_or_default();
    Python::attach(|py| {
        let begin =
            || py.import("multiproc._loader_worker")?.getattr("begin")?.call1((loads(py, object)?, number));
        begin().map(drop).map_err(|error| error.to_string())
    })
}

/// Returns the state that [`begin`] has made.
fn state() -> Worker {
    let made =
        Python::attach(|py| py.import("multiproc._loader_worker")?.getattr("worker").map(Bound::unbind));
    Worker(made.expect("the worker has begun"))
}

/// Runs a task, in the worker.
fn run(worker: &mut Worker, task: Object) -> Result<Object, String> {
    Python::attach(|py| {
        let run = || {
            let result = worker.0.bind(py).call1((loads(py, task)?,))?;
            match dumps(&result) {
                Ok(object) => Ok(object),
                // The worker says what can't be sent.
                Err(error) => dumps(&worker.0.bind(py).call_method1("unsendable", (error.into_value(py),))?),
            }
        };
        run().map_err(|error| {
            error.print(py);
            error.to_string()
        })
    })
}

/// Stores the progress of the running task, for errors about its worker.
#[pyfunction]
#[pyo3(name = "_note")]
pub fn note(number: u64) {
    mp::pool::note(number);
}

/// Worker processes.
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
        let object = dumps_functions(arguments, has_main)?;
        let arguments_of_all = Arguments(Arc::new(Mutex::new(Some(object))));
        let pool = Pool::builder()
            .processes(processes)
            .name(name)
            .start_method(method)
            .interrupt(Interrupt::Ignore)
            .interrupt_signals(InterruptSignals::Sigint)
            .per_worker(move |_, process| process.command(command.clone()))
            .initializer(begin, arguments_of_all)
            .state(state);
        let pool = arguments.py().detach(|| pool.build()).map_err(runtime)?;
        Ok(Self(Mutex::new(Some(Arc::new(pool)))))
    }

    /// Begins tasks that are run again up to `retries` times after a death or after `timeout` seconds.
    /// Results come in the order of the tasks, or as they are done.
    #[pyo3(signature = (*, retries, timeout = None, in_order = true))]
    fn tasks(&self, retries: u32, timeout: Option<f64>, in_order: bool) -> PyResult<LoaderTasks> {
        let pool = self.pool()?;
        let mut call = pool.task(run).retry_if(retries, |error| {
            matches!(error, TaskError::WorkerLost(_) | TaskError::TimedOut { .. })
        });
        if let Some(limit) = limit(timeout.is_some(), timeout)?.filter(|limit| !limit.is_zero()) {
            call = call.timeout(limit);
        }
        let stream = call.stream();
        Ok(LoaderTasks(if in_order { stream.in_order() } else { stream }))
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

    /// Begins to end the workers.
    fn terminate(&self) {
        if let Some(pool) = &*self.0.lock() {
            pool.pool().terminate();
        }
    }

    /// Ends the workers, and waits for that.
    fn close(&self, py: Python<'_>) {
        let pool = self.0.lock().take();
        py.detach(|| drop(pool));
    }
}

/// Tasks of one epoch.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct LoaderTasks(TaskStream<Object, Object>);

#[pymethods]
impl LoaderTasks {
    /// Adds a task. Returns its number.
    fn push(&self, py: Python<'_>, task: &Bound<'_, PyAny>) -> PyResult<usize> {
        let object = dumps(task)?;
        let pushed = py.detach(|| self.0.push(object).map_err(|error| error.to_string()));
        pushed.map(|ticket| ticket.number()).map_err(runtime)
    }

    /// Waits for the next result: `(number, result, failure)`, of which one of the last two is `None`, or
    /// `None` if the time is over.
    #[pyo3(signature = (timeout = None))]
    fn next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let limit = limit(true, timeout)?;
        let outcome = wait(py, limit, (), |(), time| match self.0.next_timeout(time) {
            Ok(outcome) => Attempt::Done(outcome),
            Err(_) => Attempt::Late(()),
        })?;
        let Ok(outcome) = outcome else { return Ok(None) };
        let (ticket, result) =
            outcome.ok_or_else(|| PyRuntimeError::new_err("no task is left to wait for"))?;
        Ok(Some(match result {
            Ok(object) => (ticket.number(), loads(py, object)?, py.None()).into_pyobject(py)?,
            Err(error) => (ticket.number(), py.None(), failure(&error)).into_pyobject(py)?,
        }))
    }

    /// Returns the tasks that workers run now: number, worker, process id, progress, seconds.
    fn running(&self) -> Vec<(usize, usize, u32, Option<u64>, f64)> {
        let tuple =
            |task: RunningTask| (task.task, task.worker, task.pid, task.note, task.running_for.as_secs_f64());
        self.0.running().into_iter().map(tuple).collect()
    }
}

/// Failure of a task: kind, number of the worker, its process id, its exit code or negative signal,
/// progress of the task, text.
type Failure = (&'static str, usize, u32, i32, Option<u64>, String);

fn failure(error: &TaskError) -> Failure {
    let text = error.to_string();
    match error {
        TaskError::WorkerLost(lost) => {
            let WorkerLost { worker, pid, exit, note, .. } = &**lost;
            let code = match exit {
                ExitStatus::Code(code) => *code,
                ExitStatus::Signal { signal, .. } => -signal.number(),
                _ => 255,
            };
            ("lost", *worker, *pid, code, *note, text)
        }
        TaskError::TimedOut { worker, pid, note, .. } => ("timeout", *worker, *pid, 0, *note, text),
        _ => ("failed", 0, 0, 0, None, text),
    }
}
