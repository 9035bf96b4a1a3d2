//! Named shared memory, as a buffer.
//!
//! # Safety
//! This file exports a mapping by the buffer protocol. Sound, because an exported buffer holds a reference
//! of the Python object, which holds the mapping.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use mp::{Error, SharedMemory};
use mp_core::sync::shared::{AtomicUsize, Ordering};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::runtime;

/// Mapping of named shared memory. The name exists until it is unlinked, even if all mappings are dropped.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct NamedMemory {
    memory: SharedMemory,
    /// Number of Python buffers that use the mapping.
    exports: AtomicUsize,
}

impl From<SharedMemory> for NamedMemory {
    fn from(memory: SharedMemory) -> Self {
        Self { memory, exports: AtomicUsize::new(0) }
    }
}

/// Returns the exception for an error with a name: `FileNotFoundError`, `FileExistsError`, ….
fn failed(name: Option<&str>, error: Error) -> PyErr {
    match error {
        Error::Os { what, source } => {
            let text = source.to_string();
            // The error of a named file has the number in its text only.
            let number = || text.rsplit_once("(os error ")?.1.split_once(')')?.0.parse().ok();
            let Some(code) = source.raw_os_error().or_else(number) else {
                return PyOSError::new_err(format!("{what}: {text}"));
            };
            // Python prints the code and the name by itself.
            let text = std::io::Error::from_raw_os_error(code).to_string();
            let text = text.split(" (os error").next().unwrap_or(&text).to_owned();
            match name {
                Some(name) => PyOSError::new_err((code, text, format!("/{}", name.trim_start_matches('/')))),
                None => PyOSError::new_err((code, text)),
            }
        }
        Error::InvalidArgument(why) => PyValueError::new_err(why),
        Error::NotShareable(why) => PyValueError::new_err(why),
        error => runtime(error),
    }
}

#[pymethods]
impl NamedMemory {
    /// Creates `size` zero bytes under a new name. Without a name, chooses one that can't be guessed.
    #[staticmethod]
    #[pyo3(signature = (name, size))]
    fn create(py: Python<'_>, name: Option<&str>, size: usize) -> PyResult<Self> {
        let memory = py.detach(|| match name {
            Some(name) => SharedMemory::create(name, size),
            None => SharedMemory::new(size),
        });
        memory.map(Self::from).map_err(|error| failed(name, error))
    }

    /// Opens the memory of an existing name.
    #[staticmethod]
    fn open(py: Python<'_>, name: &str) -> PyResult<Self> {
        py.detach(|| SharedMemory::open(name)).map(Self::from).map_err(|error| failed(Some(name), error))
    }

    /// Removes a name.
    #[staticmethod]
    fn unlink(name: &str) -> PyResult<()> {
        SharedMemory::unlink(name).map_err(|error| failed(Some(name), error))
    }

    /// Name, without a leading slash.
    #[getter]
    fn name(&self) -> &str {
        self.memory.name()
    }

    /// Number of Python buffers that use the mapping.
    #[getter]
    fn exports(&self) -> usize {
        self.exports.load(Ordering::Relaxed)
    }

    fn __len__(&self) -> usize {
        self.memory.len()
    }

    /// # Safety
    /// Called by the interpreter, with a structure to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = &slf.get().memory;
        let (address, len) = (memory.as_ptr().cast::<c_void>(), memory.len() as ffi::Py_ssize_t);
        // SAFETY: the interpreter gives a structure to fill, and the mapping lives as long as this object,
        // of which the structure holds a reference.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, len, 0, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        slf.get().exports.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter, once for each filled structure.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, Ordering::Relaxed);
    }
}
