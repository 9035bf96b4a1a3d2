//! Python's exceptions for the library's errors.

use std::fmt::Display;

use mp_core::{Arena, Error};
use pyo3::create_exception;
use pyo3::exceptions::{PyEOFError, PyMemoryError, PyOSError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::library_copies;

create_exception!(
    multiproc,
    PeerLost,
    PyEOFError,
    "No other process has this object any more, so the call would wait forever."
);

create_exception!(
    multiproc,
    LoadError,
    PyRuntimeError,
    "A batch could not be made. Attributes: epoch, batch, index of the sample, worker, signal, stderr."
);

/// Returns `queue.Full`.
pub fn full(py: Python<'_>) -> PyErr {
    static FULL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    raise(FULL.import(py, "queue", "Full"))
}

/// Returns `queue.Empty`.
pub fn empty(py: Python<'_>) -> PyErr {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    raise(EMPTY.import(py, "queue", "Empty"))
}

/// Returns `queue.ShutDown`, or this package's class of that name before Python 3.13.
pub fn shut_down(py: Python<'_>) -> PyErr {
    static SHUT_DOWN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    raise(SHUT_DOWN.import(py, "multiproc", "ShutDown"))
}

fn raise(class: PyResult<&Bound<'_, PyAny>>) -> PyErr {
    match class.and_then(|class| class.call0()) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Returns the exception for the use of an inherited object in a forked process, or `None` for other errors.
fn forked(error: &str) -> Option<PyErr> {
    error.contains("was forked from one that uses shared memory").then(|| {
        PyRuntimeError::new_err(
            "this process was made by os.fork from one that uses multiproc, and its copies of the parent's \
             objects can't be used: start processes by multiproc.Process, and pass objects as arguments. A \
             process that uses multiproc itself must be forked before its parent's first use of it",
        )
    })
}

/// Returns the exception for a failed allocation: `MemoryError`, but `RuntimeError` in a forked process.
pub fn no_memory(error: impl Display) -> PyErr {
    let text = error.to_string();
    forked(&text).unwrap_or_else(|| PyMemoryError::new_err(text))
}

/// Returns `true` for the text of an error caused by a lack of descriptors.
fn lacks_descriptors(text: &str) -> bool {
    text.contains("RLIMIT_NOFILE") || text.contains("(os error 24)")
}

/// Returns `OSError`, with `EMFILE` for a lack of descriptors.
pub fn os_error(text: String) -> PyErr {
    if lacks_descriptors(&text) { PyOSError::new_err((24, text)) } else { PyOSError::new_err(text) }
}

/// Returns the exception for an error of shared memory: `MemoryError` for a lack of memory, `OSError` for a
/// lack of descriptors, else `RuntimeError`.
pub fn runtime(error: impl Display) -> PyErr {
    let text = error.to_string();
    if let Some(error) = forked(&text) {
        return error;
    }
    if text.contains("not enough shared memory") || text.contains("out of shared memory") {
        return PyMemoryError::new_err(text);
    }
    if text.contains("another copy of this library") {
        return library_copies::error(text, library_copies::MEMORY);
    }
    if lacks_descriptors(&text) { os_error(text) } else { PyRuntimeError::new_err(text) }
}

/// Returns an error in a forked copy of the process, where objects of the parent are not usable.
pub(crate) fn check_process() -> PyResult<()> {
    match Arena::get() {
        Some(_) => Ok(()),
        None => Err(runtime(Error::Forked)),
    }
}
