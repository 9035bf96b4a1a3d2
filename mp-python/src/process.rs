//! Child processes: start and control by the parent.
//!
//! A child is the interpreter, started by a command that imports this package and calls [`child_main`].
//! The fork server is such a process too: it imports modules once, and copies itself for each child.
//!
//! # Safety
//! This file calls the interpreter's functions around a fork. Sound, because they are called by the thread
//! that is copied, which holds the interpreter: before the copy, and in both processes after it. The other
//! functions of the interpreter called here need a thread that is attached, and are called by one, or may be
//! called by any thread.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mp::process::{ExitStatus, Process, SpawnError, StartMethod};
use mp_core::mutex::Mutex;
use mp_core::{Error, ReadyFd};
use pyo3::exceptions::{PyImportError, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::runtime;
use crate::object::Object;
use crate::object::pickle::loads;
use crate::pool::dumps_functions;
use crate::wait::{Attempt, limit, on_thread, wait};

/// Time limit for the start of an interpreter. The first start from a network file system can take many
/// seconds.
const START: Duration = Duration::from_secs(120);

mp::process::export_child_main!(multiproc_child_main);

/// Becomes a worker if this process was started as a worker, and then does not return. Returns 1 in a worker
/// of another copy of the library.
#[pyfunction]
#[allow(clippy::redundant_closure, reason = "it is a function of C")]
pub fn child_main(py: Python<'_>) -> i32 {
    mp::process::set_fork_hook(around_fork);
    py.detach(|| multiproc_child_main())
}

/// Calls `copy`, which forks this process, between the calls that the interpreter requires before and after a
/// fork.
fn around_fork(copy: &mut dyn FnMut() -> bool) {
    Python::attach(|_| {
        // SAFETY: this thread holds the interpreter.
        unsafe { ffi::PyOS_BeforeFork() };
        if copy() {
            // SAFETY: this thread is the copy of the thread that holds the interpreter.
            unsafe { ffi::PyOS_AfterFork_Child() };
        } else {
            // SAFETY: this thread holds the interpreter.
            unsafe { ffi::PyOS_AfterFork_Parent() };
        }
    });
}

/// Runs in the fork server before it copies itself for the first time.
fn preload() {
    let done = Python::attach(|py| {
        py.import("multiproc._child")?
            .getattr("preload")?
            .call0()
            .map(drop)
            .inspect_err(|error| error.print(py))
    });
    assert!(done.is_ok(), "the modules to preload can't be imported");
}

/// Runs a child: calls `multiproc._child.run` with the received object, and ends the process with the result
/// as its exit code.
fn run(object: Object) -> Result<(), String> {
    Python::attach(|py| {
        let call = |object| -> PyResult<i32> {
            let run = py.import("multiproc._child")?.getattr("run")?;
            let code = run.call1((loads(py, object)?,))?;
            // The interpreter does the same with a number that C can't represent.
            Ok(code.extract::<i64>().unwrap_or(-1) as i32)
        };
        let code = call(object).map_err(|error| {
            let text = error.to_string();
            error.print(py);
            text
        })?;
        // The process ends without the interpreter's finalization. This thread keeps the interpreter, so
        // that no daemon thread runs Python code while the process's exit handlers run.
        // SAFETY: this thread is attached to the interpreter.
        unsafe { ffi::PyGILState_Ensure() };
        match code {
            0 => Ok(()),
            code => std::process::exit(code),
        }
    })
}

/// Returns the start method of this name.
///
/// # Errors
/// `ValueError` for another name.
pub fn start_method(name: &str) -> PyResult<StartMethod> {
    // fork: the function that is set is the same in a copy.
    static PRELOAD: std::sync::Once = std::sync::Once::new();
    match name {
        "spawn" => Ok(StartMethod::Spawn),
        "forkserver" => {
            PRELOAD.call_once(|| _ = mp::process::set_forkserver_preload(preload));
            Ok(StartMethod::ForkServer)
        }
        other => Err(PyValueError::new_err(format!("unknown start method {other:?}"))),
    }
}

/// Blocks the calling thread forever if the interpreter was finalized. After the finalization, the process is
/// about to exit, and the interpreter would end a daemon thread by unwinding its stack.
pub(crate) fn park_if_finalized() {
    // SAFETY: any thread may call this at any time.
    while unsafe { ffi::Py_IsInitialized() } == 0 {
        std::thread::park();
    }
}

/// Returns an error in a subinterpreter, because the library has one state for each process.
///
/// # Errors
/// `ImportError` in a subinterpreter.
pub fn refuse_subinterpreters(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: this thread is attached to an interpreter.
    let interpreter = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: this thread is attached to an interpreter.
    match unsafe { ffi::PyInterpreterState_GetID(interpreter) } {
        0 => Ok(()),
        _ => Err(PyImportError::new_err("multiproc can't be imported by subinterpreters: use processes")),
    }
}

/// A started process.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct Child {
    process: Arc<Process>,
    /// Descriptor that `sentinel` returns. Once created, it is never replaced.
    sentinel: OnceLock<ReadyFd>,
    /// Exit code in Python's form, once known.
    code: Mutex<Option<i32>>,
}

/// Starts a process that calls `multiproc._child.run(target)`. With `has_main`, the process imports the main
/// module.
#[pyfunction]
#[pyo3(signature = (target, *, command, name, method, has_main, daemon = false))]
pub fn start(
    target: &Bound<'_, PyAny>,
    command: Vec<OsString>,
    name: String,
    method: &str,
    has_main: bool,
    daemon: bool,
) -> PyResult<Child> {
    let py = target.py();
    let method = start_method(method)?;
    let object = dumps_functions(target, has_main)?;
    let builder = Process::builder().name(name).daemon(daemon).command(command).start_method(method);
    let builder = builder.handshake_timeout(START);
    let spawn = move || builder.spawn(run, object);
    let started = match method {
        // The first start waits until the fork server has imported its modules.
        StartMethod::ForkServer => on_thread(py, spawn, |started| _ = started.map(|process| process.kill()))?,
        _ => py.detach(spawn),
    };
    Ok(Child::of(started.map_err(runtime)?))
}

impl Child {
    /// Returns the Python object of a process.
    pub(crate) fn of(process: Process) -> Self {
        Self { process: Arc::new(process), sentinel: OnceLock::new(), code: Mutex::new(None) }
    }
}

#[pymethods]
impl Child {
    /// Process id.
    #[getter]
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns a descriptor that is readable when the process has ended. Descriptors of queues and pipes that
    /// have messages of the process become readable earlier.
    fn sentinel(&self) -> PyResult<i32> {
        if let Some(sentinel) = self.sentinel.get() {
            return Ok(sentinel.as_fd().as_raw_fd());
        }
        match ReadyFd::new_after_others(self.process.clone()) {
            Ok(sentinel) => Ok(self.sentinel.get_or_init(|| sentinel).as_fd().as_raw_fd()),
            // A forked copy of the process has no thread that watches descriptors.
            Err(Error::Forked) => Ok(self.process.sentinel().as_raw_fd()),
            Err(error) => Err(runtime(error)),
        }
    }

    /// Exit code, or the negative number of the signal that ended the process. `None` while the process runs.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        let mut known = self.code.lock();
        let Some(status) = self.process.exit().filter(|_| known.is_none()) else { return Ok(*known) };
        let code = match status {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal { signal, .. } => -signal.number(),
            _ => 255,
        };
        // After `join`, dropping the process prints no line about its failure.
        let (code, failure) = match self.process.join() {
            // The process has printed the exception.
            Ok(()) | Err(SpawnError::ProcessRaised(_) | SpawnError::ProcessExited(_)) => (code, None),
            Err(SpawnError::NeverReported { .. }) if code != 0 => (code, None),
            Err(error) => (if code == 0 { 1 } else { code }, Some(error)),
        };
        // Before a caller gets the exit code, the descriptors of all ready objects are readable.
        ReadyFd::set_all();
        if let Some(sentinel) = self.sentinel.get() {
            sentinel.set_if_ready();
        }
        *known = Some(code);
        drop(known);
        if let Some(failure) = failure {
            let text = format!("Process {}:\n{failure}\n", self.process.name());
            py.import("sys")?.getattr("stderr")?.call_method1("write", (text,))?;
        }
        Ok(Some(code))
    }

    /// Waits for the end of the process. Returns the exit code, or `None` if the time limit has expired.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<i32>> {
        let ended = wait(py, limit(true, timeout)?, (), |(), time| {
            if self.process.wait_timeout(time.max(Duration::ZERO)) {
                Attempt::Done(())
            } else {
                Attempt::Late(())
            }
        })?;
        if ended.is_ok() { self.poll(py) } else { Ok(None) }
    }

    /// Sends SIGTERM.
    fn terminate(&self) -> PyResult<()> {
        self.process.terminate().map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    /// Sends SIGKILL.
    fn kill(&self) -> PyResult<()> {
        self.process.kill().map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}
