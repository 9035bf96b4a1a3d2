//! Arrays of numpy, memory views and buffers of other objects.
//!
//! # Safety
//! This file calls the interpreter's buffer protocol, and exports [`Memory`] by it. Sound, because
//! - a filled `Py_buffer` is released exactly once, by the drop of [`Buffer`];
//! - an exported buffer holds its [`Memory`] through the Python object until it is released.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::sync::Arc;

use mp_tensor::{AnyTensor, Frozen};
use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMemoryView, PyTuple};
use pyo3::{ffi, intern};

use super::pickle::{add_source, array_function, home};
use super::torch;
use super::view::{ElementType, Kind, Source, View};
use crate::error::runtime;
use crate::memory::Memory;

/// Maximum number of bytes of a buffer that stays in the pickled bytes.
const IN_BAND: usize = 512;

/// Format characters of Python's module `struct`, with numpy's names and the element types.
const FORMATS: &[(&CStr, &str, ElementType)] = &[
    (c"?", "bool", ElementType(6, 8)),
    (c"b", "int8", ElementType(0, 8)),
    (c"h", "int16", ElementType(0, 16)),
    (c"i", "int32", ElementType(0, 32)),
    (c"l", "int64", ElementType(0, 64)),
    (c"q", "int64", ElementType(0, 64)),
    (c"B", "uint8", ElementType(1, 8)),
    (c"H", "uint16", ElementType(1, 16)),
    (c"I", "uint32", ElementType(1, 32)),
    (c"L", "uint64", ElementType(1, 64)),
    (c"Q", "uint64", ElementType(1, 64)),
    (c"e", "float16", ElementType(2, 16)),
    (c"f", "float32", ElementType(2, 32)),
    (c"d", "float64", ElementType(2, 64)),
    (c"Zf", "complex64", ElementType(5, 64)),
    (c"Zd", "complex128", ElementType(5, 128)),
];

/// Buffer of a Python object.
pub(crate) struct Buffer(Box<ffi::Py_buffer>);

impl Buffer {
    /// Requests the buffer of an object.
    fn of(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut buffer = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        // SAFETY: the object is alive, and the function fills the structure or leaves it alone.
        let got = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), buffer.as_mut_ptr(), flags) };
        if got != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: all zeroes is a valid `Py_buffer`, and the call has filled the structure.
        Ok(Self(unsafe { buffer.assume_init() }))
    }

    fn dims(&self, at: *const ffi::Py_ssize_t) -> Option<&[ffi::Py_ssize_t]> {
        // SAFETY: a pointer that is not null points to `ndim` numbers, which live until the release.
        (!at.is_null()).then(|| unsafe { std::slice::from_raw_parts(at, self.0.ndim as usize) })
    }

    /// Requests the bytes of an object with a contiguous buffer.
    pub(crate) fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(object, ffi::PyBUF_SIMPLE)
    }

    /// Returns the bytes of a contiguous buffer.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.len == 0 {
            return &[];
        }
        // SAFETY: a contiguous buffer has `len` bytes there until the release.
        unsafe { std::slice::from_raw_parts(self.0.buf.cast(), self.0.len as usize) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the structure was filled by `PyObject_GetBuffer`, and is released here only. Only functions
        // that are attached to the interpreter have a `Buffer`.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
    }
}

/// Returns the bytes of an out-of-band buffer of protocol 5. Returns `None` if the buffer has at most
/// [`IN_BAND`] bytes.
pub(super) fn source_of_buffer(object: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
    let Ok(buffer) = Buffer::of(object, ffi::PyBUF_ANY_CONTIGUOUS) else { return Ok(None) };
    let len = buffer.0.len;
    if len as usize <= IN_BAND {
        return Ok(None);
    }
    let kind = if buffer.0.readonly != 0 { Kind::ReadOnlyBuffer } else { Kind::Buffer };
    Ok(Some(Source {
        kind,
        element: ElementType::U8,
        address: buffer.0.buf as usize,
        shape: vec![len as i64],
        strides: vec![1],
        owner: PyMemoryView::from(object)?.into_any().unbind(),
    }))
}

/// Reduces a C-contiguous memory view to its bytes, which the receiver casts to the same format and shape.
/// Other views raise `BufferError`.
#[pyfunction]
pub fn reduce_memoryview<'py>(view: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    let py = view.py();
    let buffer = Buffer::of(view, ffi::PyBUF_FULL_RO)?;
    let (format, shape) = (view.getattr(intern!(py, "format"))?, view.getattr(intern!(py, "shape"))?);
    let kind = if buffer.0.readonly != 0 { Kind::ReadOnlyBuffer } else { Kind::Buffer };
    if view.getattr(intern!(py, "c_contiguous"))?.is_truthy()? {
        let format = native_format(format.extract()?, buffer.0.itemsize)?;
        let index = add_source(Source {
            kind,
            element: ElementType::U8,
            address: buffer.0.buf as usize,
            shape: vec![buffer.0.len as i64],
            strides: vec![1],
            owner: PyMemoryView::from(view)?.into_any().unbind(),
        })?;
        static CAST: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let cast = CAST.import(py, home(py), "_memoryview")?;
        return (cast, (index, format, shape)).into_pyobject(py);
    }
    Err(PyBufferError::new_err("a memoryview with gaps between its elements can't be sent: send bytes(view)"))
}

/// Returns a format in the form for `memoryview.cast`: one character of native size. Formats of ctypes have a
/// byte order, such as `<d`.
fn native_format(format: &str, size: ffi::Py_ssize_t) -> PyResult<&str> {
    match format.strip_prefix(['<', '=', '@']).unwrap_or(format) {
        "l" if size == 4 => Ok("i"),
        "L" if size == 4 => Ok("I"),
        one if one.len() == 1 => Ok(one),
        _ => Err(PyBufferError::new_err(format!(
            "a memoryview with elements of format {format:?} can't be sent: send view.cast(\"B\")"
        ))),
    }
}

/// Returns the memory view with this index in the message that this thread is unpickling.
#[pyfunction]
#[pyo3(name = "_memoryview")]
pub fn memoryview<'py>(
    py: Python<'py>,
    index: usize,
    format: &Bound<'py, PyAny>,
    shape: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let view = PyMemoryView::from(&super::pickle::array(py, index)?)?;
    if format.eq("B")? && shape.len() == 1 {
        return Ok(view.into_any());
    }
    view.call_method1(intern!(py, "cast"), (format, shape))
}

/// Reduces an array of numpy to its index in the message. Arrays of objects, and of element types without a
/// buffer-protocol format, are reduced by numpy.
#[pyfunction]
pub fn reduce_ndarray<'py>(array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    match source_of_ndarray(array)? {
        Some(source) => Ok((array_function(py)?, (add_source(source)?,)).into_pyobject(py)?.into_any()),
        None => array.call_method1(intern!(py, "__reduce_ex__"), (5,)),
    }
}

/// Returns the elements of a tensor of torch or an array of numpy. Returns `None` for other objects, and for
/// element types that only their own library can read.
pub(crate) fn source_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
    let class = object.get_type();
    match class.name()?.to_str()? {
        "ndarray" => source_of_ndarray(object),
        _ if object.hasattr(intern!(object.py(), "data_ptr"))? => {
            torch::source_of_tensor(object, Kind::Torch)
        }
        _ => Ok(None),
    }
}

/// Returns the element type of a format, if it has this machine's byte order.
fn element_of(format: &CStr) -> Option<ElementType> {
    let of = |format: &[u8]| {
        FORMATS.iter().find(|(known, ..)| known.to_bytes() == format).map(|(.., element)| *element)
    };
    match format.to_bytes() {
        // `^` marks elements that are not aligned, for example a field of records. `=l` has four bytes,
        // unlike `l`.
        [b'^', rest @ ..] => of(rest),
        [b'=', rest @ ..] if !matches!(rest, b"l" | b"L") => of(rest),
        format => of(format),
    }
}

/// Returns the elements of an array of numpy, or `None` for an element type that only numpy can read.
pub(crate) fn source_of_ndarray(array: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
    // numpy refuses formats that the buffer protocol has no character for.
    let Ok(buffer) = Buffer::of(array, ffi::PyBUF_RECORDS_RO) else { return Ok(None) };
    if buffer.0.format.is_null() {
        return Ok(None);
    }
    // SAFETY: a format is a C string that lives until the release.
    let format = unsafe { CStr::from_ptr(buffer.0.format.cast_const()) };
    let Some(element) = element_of(format) else { return Ok(None) };
    let shape: Vec<i64> = buffer.dims(buffer.0.shape).unwrap_or_default().iter().map(|&n| n as i64).collect();
    let strides = buffer.dims(buffer.0.strides).unwrap_or_default().iter().map(|&n| n as i64).collect();
    Ok(Some(Source {
        kind: if buffer.0.readonly != 0 { Kind::ReadOnlyNumpy } else { Kind::Numpy },
        element,
        address: buffer.0.buf as usize,
        shape,
        strides,
        owner: array.clone().unbind(),
    }))
}

/// Bytes in shared memory, exported by the buffer protocol.
#[pyclass(frozen, name = "Buffer", module = "multiproc._multiproc")]
pub struct MemoryBuffer {
    memory: Arc<Memory>,
    offset: usize,
    len: usize,
    read_only: bool,
}

#[pymethods]
impl MemoryBuffer {
    /// Allocates `size` bytes, all zero.
    #[new]
    fn new(size: usize) -> PyResult<Self> {
        let zeros = mp_tensor::Tensor::<u8>::zeros([size]).map_err(runtime)?;
        Ok(Self { memory: Memory::adopt(zeros.share()), offset: 0, len: size, read_only: false })
    }

    /// Returns the bytes at an address, or None if they are not in shared memory of this package.
    #[staticmethod]
    fn at(address: usize, size: usize) -> Option<Self> {
        let memory = Memory::containing(address, size)?;
        Some(Self { offset: address - memory.address(), memory, len: size, read_only: false })
    }

    /// # Safety
    /// Called by the interpreter, with a structure to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let address = (this.memory.address() + this.offset) as *mut std::ffi::c_void;
        let read_only = c_int::from(this.read_only);
        // SAFETY: the interpreter gives a structure to fill, and the memory lives as long as this object,
        // of which the structure holds a reference.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, this.len as ffi::Py_ssize_t, read_only, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    fn __len__(&self) -> usize {
        self.len
    }
}

impl MemoryBuffer {
    /// Returns a read-only buffer of all bytes of a memory.
    pub(super) fn of(memory: Arc<Memory>) -> Self {
        let len = memory.len();
        Self { memory, offset: 0, len, read_only: true }
    }
}

/// Returns an object with this many bytes in shared memory, for the arrays of `multiproc.empty`.
#[pyfunction]
#[pyo3(name = "_alloc")]
pub fn alloc(len: usize) -> PyResult<MemoryBuffer> {
    let memory = Memory::alloc(len).map_err(crate::error::no_memory)?;
    Ok(MemoryBuffer { memory, offset: 0, len, read_only: false })
}

/// Returns `true` if these bytes are in shared memory of this package, and are therefore sent without a copy.
#[pyfunction]
#[pyo3(name = "_contains")]
pub fn contains(address: usize, len: usize) -> bool {
    Memory::containing(address, len).is_some()
}

/// Bytes of a tensor that no process writes.
#[pyclass(frozen, module = "multiproc._multiproc")]
struct FrozenBuffer(AnyTensor<Frozen>);

#[pymethods]
impl FrozenBuffer {
    /// # Safety
    /// Called by the interpreter, with a structure to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let storage = slf.get().0.storage();
        let (address, len) = (storage.as_ptr().cast_mut().cast(), storage.len() as ffi::Py_ssize_t);
        // SAFETY: the interpreter gives a structure to fill, and the memory lives as long as this object,
        // of which the structure holds a reference. The buffer is read-only.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, len, 1, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Returns a read-only array of numpy over a tensor that no process writes.
pub(crate) fn frozen<'py>(
    py: Python<'py>,
    view: &View,
    tensor: AnyTensor<Frozen>,
) -> PyResult<Bound<'py, PyAny>> {
    let array = py.import("numpy")?.getattr("ndarray")?;
    let (shape, strides) = (PyTuple::new(py, &view.shape)?, PyTuple::new(py, &view.strides)?);
    let buffer = Bound::new(py, FrozenBuffer(tensor))?;
    array.call1((shape, dtype(py, view.element)?, buffer, view.offset, strides))
}

/// Returns the Python object of an array in a message.
///
/// # Errors
/// `RuntimeError` if the array is not within the memory, and exceptions of numpy or torch.
pub fn rebuild<'py>(py: Python<'py>, view: &View, memory: Arc<Memory>) -> PyResult<Bound<'py, PyAny>> {
    let size = view.element.size();
    let elements = view.shape.iter().try_fold(1_usize, |all, &n| all.checked_mul(usize::try_from(n).ok()?));
    let within = elements.is_some_and(|n| {
        let strided = !view.strides.is_empty();
        // Lowest and highest address of an element, in bytes from the view's offset.
        let (mut low, mut high) = (0_i64, if n == 0 || strided { 0 } else { (n as i64 - 1) * size as i64 });
        if n > 0 && strided {
            for (&n, &stride) in view.shape.iter().zip(&view.strides) {
                let span = (n - 1).saturating_mul(stride);
                if span < 0 { low = low.saturating_add(span) } else { high = high.saturating_add(span) }
            }
        }
        let at = |bytes: i64| bytes.checked_add_unsigned(view.offset);
        let end = high.checked_add(if n > 0 { size as i64 } else { 0 }).and_then(at);
        at(low).is_some_and(|low| low >= 0)
            && end.is_some_and(|end| end <= memory.len() as i64)
            && (!strided || view.strides.len() == view.shape.len())
    });
    if !within {
        return Err(PyRuntimeError::new_err("the message has an array that is not within its memory"));
    }
    let offset = view.offset as usize;
    match view.kind {
        Kind::Torch | Kind::TorchGrad => torch::rebuild(py, view, memory),
        Kind::Buffer | Kind::ReadOnlyBuffer => {
            let len = elements.unwrap_or_default();
            let read_only = view.kind == Kind::ReadOnlyBuffer;
            Ok(Bound::new(py, MemoryBuffer { memory, offset, len, read_only })?.into_any())
        }
        Kind::Numpy | Kind::ReadOnlyNumpy => {
            static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            let array = ARRAY.import(py, "numpy", "ndarray")?;
            let dtype = dtype(py, view.element)?;
            let shape = PyTuple::new(py, &view.shape)?;
            let (len, read_only) = (memory.len(), view.kind == Kind::ReadOnlyNumpy);
            let buffer = Bound::new(py, MemoryBuffer { memory, offset: 0, len, read_only })?;
            if view.strides.is_empty() {
                return array.call1((shape, dtype, buffer, offset));
            }
            array.call1((shape, dtype, buffer, offset, PyTuple::new(py, &view.strides)?))
        }
    }
}

/// Returns numpy's `dtype` object for an element type.
pub(super) fn dtype(py: Python<'_>, element: ElementType) -> PyResult<Bound<'_, PyAny>> {
    static TYPES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let types = TYPES.get_or_try_init(py, || {
        let (types, dtype) = (PyDict::new(py), py.import("numpy")?.getattr("dtype")?);
        for (_, name, ElementType(code, bits)) in FORMATS {
            types.set_item((code, bits), dtype.call1((name,))?)?;
        }
        PyResult::Ok(types.unbind())
    })?;
    let ElementType(code, bits) = element;
    types.bind(py).get_item((code, bits))?.ok_or_else(|| {
        PyRuntimeError::new_err(format!("numpy has no type for elements of kind {code} with {bits} bits"))
    })
}

const _: () = assert!(size_of::<c_char>() == 1);
