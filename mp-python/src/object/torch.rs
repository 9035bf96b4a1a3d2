//! Tensors of torch, by DLPack.
//!
//! torch 2.9 and later export a table of C functions for DLPack. Older versions have Python methods that
//! return capsules.
//!
//! # Safety
//! This file calls those functions and exchanges structures of C. Sound, because
//! - the table is checked for its version, and lives as long as torch, which is never unloaded;
//! - an exported structure lives in one box until its deleter is called, once, and the box holds the memory.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use mp_tensor::dlpack::{DLDataType, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor, VERSION};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::pickle::{add_source, array_function};
use super::view::{ElementType, Kind, Source, View};
use crate::memory::Memory;

/// DLPack's type of a device, `kDLCPU`.
const CPU: i32 = 1;
/// DLPack's code of complex element types, `kDLComplex`.
const COMPLEX: u8 = 5;

/// DLPack's table of functions, `DLPackExchangeAPI`.
#[repr(C)]
struct ExchangeApi {
    version: DLPackVersion,
    previous: *const ExchangeApi,
    allocate: *const c_void,
    managed_from_object: *const c_void,
    object_from_managed:
        Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned, *mut *mut c_void) -> c_int>,
    tensor_from_object: Option<unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int>,
    current_stream: *const c_void,
}

/// Returns torch's table of functions, if this torch has one.
fn exchange_api(py: Python<'_>) -> PyResult<Option<&'static ExchangeApi>> {
    static API: PyOnceLock<usize> = PyOnceLock::new();
    let address = API.get_or_try_init(py, || {
        let tensor = py.import("torch")?.getattr("Tensor")?;
        let Ok(capsule) = tensor.getattr("__dlpack_c_exchange_api__") else { return Ok(0) };
        // SAFETY: the object is alive, and the call compares its name.
        let at = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), c"dlpack_exchange_api".as_ptr()) };
        let at: *const ExchangeApi = at.cast();
        if at.is_null() {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: a capsule of this name contains this table, and each version of the table begins with the
        // version.
        let version = unsafe { (*at).version };
        PyResult::Ok(if version.major == VERSION.major { at as usize } else { 0 })
    })?;
    // SAFETY: torch's table is a static of its library, which stays loaded.
    Ok(unsafe { (*address as *const ExchangeApi).as_ref() })
}

/// Reduces a tensor to its index in the message.
#[pyfunction]
pub fn reduce_tensor<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    let grad = tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()?;
    if grad && !tensor.getattr(intern!(py, "is_leaf"))?.is_truthy()? {
        return Err(PyRuntimeError::new_err(
            "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not \
             support crossing process boundaries.  If you just want to transfer the data, call detach() on \
             the tensor before serializing (e.g., putting it on the queue).",
        ));
    }
    let kind = if grad { Kind::TorchGrad } else { Kind::Torch };
    let source = elements_of_tensor(tensor, kind)?;
    if let Some(source) = source
        && (source.shape.contains(&0) || source.is_shared() || !is_shared_by_torch(tensor)?)
    {
        return Ok((array_function(py)?, (add_source(source)?,)).into_pyobject(py)?.into_any());
    }
    // The rest is reduced in Python: memory that torch shares, sparse and quantised tensors, and tensors on
    // other devices.
    static REDUCE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    REDUCE.import(py, "multiproc._torch", "reduce_tensor")?.call1((tensor, grad))
}

/// Returns `true` if the tensor is in memory that torch has shared by `share_memory_` or `share_memory`.
fn is_shared_by_torch(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    static IS_SHARED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = tensor.py();
    let is_shared = IS_SHARED.get_or_try_init(py, || {
        let class = py.import("torch")?.getattr("_C")?.getattr("StorageBase")?;
        class.getattr("is_shared").map(Bound::unbind)
    })?;
    is_shared.bind(py).call1((tensor.call_method0(intern!(py, "untyped_storage"))?,))?.is_truthy()
}

/// Checks that a tensor's storage contains all elements of the tensor. torch doesn't check this when it
/// resizes a storage. After the check, the source keeps the storage, since another thread may replace the
/// tensor's storage.
///
/// # Errors
/// `RuntimeError` if the storage was resized, or replaced by another thread.
pub(super) fn check_storage(py: Python<'_>, source: &mut Source) -> PyResult<()> {
    let (low, high) = source.range();
    if low == high || source.is_shared() {
        return Ok(());
    }
    let storage = source.owner.bind(py).call_method0(intern!(py, "untyped_storage"))?;
    let begin: usize = storage.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let len: usize = storage.call_method0(intern!(py, "nbytes"))?.extract()?;
    if begin <= low && high <= begin.saturating_add(len) {
        source.owner = storage.unbind();
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "the storage of a tensor of shape {:?} has {len} bytes, which are not its elements: it was resized, \
         or replaced by another thread",
        source.shape
    )))
}

/// Returns the elements of a tensor, or `None` if the tensor is not an array in this process's memory.
///
/// # Errors
/// `RuntimeError` if its storage was resized.
pub(crate) fn source_of_tensor(tensor: &Bound<'_, PyAny>, kind: Kind) -> PyResult<Option<Source>> {
    let mut source = elements_of_tensor(tensor, kind)?;
    if let Some(source) = &mut source {
        check_storage(tensor.py(), source)?;
    }
    Ok(source)
}

/// Does the same as [`source_of_tensor`] without the check of the storage. Callers call [`check_storage`]
/// before they copy the elements.
fn elements_of_tensor(tensor: &Bound<'_, PyAny>, kind: Kind) -> PyResult<Option<Source>> {
    let py = tensor.py();
    let Some(read) = exchange_api(py)?.and_then(|api| api.tensor_from_object) else {
        return source_by_attributes(tensor, kind);
    };
    let mut out = DLTensor {
        data: ptr::null_mut(),
        device: DLDevice { device_type: 0, device_id: 0 },
        ndim: 0,
        dtype: DLDataType { code: 0, bits: 0, lanes: 0 },
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    // SAFETY: the object is a tensor of torch, and the function fills the structure or fails.
    if unsafe { read(tensor.as_ptr().cast(), &raw mut out) } != 0 {
        drop(PyErr::take(py));
        return Ok(None);
    }
    if out.device.device_type != CPU || out.dtype.lanes != 1 {
        return Ok(None);
    }
    let dims = |at: *const i64| -> Vec<i64> {
        if at.is_null() || out.ndim == 0 {
            return Vec::new();
        }
        // SAFETY: a pointer that is not null points to `ndim` numbers of the tensor. No other thread has
        // changed them since `read`, because the GIL was held.
        unsafe { std::slice::from_raw_parts(at, out.ndim as usize) }.to_vec()
    };
    let element = ElementType(out.dtype.code, out.dtype.bits);
    let size = element.size() as i64;
    let mut source = Source {
        kind,
        element,
        address: out.data as usize + out.byte_offset as usize,
        shape: dims(out.shape),
        strides: dims(out.strides).into_iter().map(|stride| stride.saturating_mul(size)).collect(),
        owner: tensor.clone().unbind(),
    };
    source.fill_strides();
    // torch negates or conjugates the elements of such tensors when it reads them. These calls let other
    // threads run, which may replace the tensor's data and so free the memory that `out` points to.
    if tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()?
        || (element.0 == COMPLEX && tensor.call_method0(intern!(py, "is_conj"))?.is_truthy()?)
    {
        return Ok(None);
    }
    Ok(Some(source))
}

/// Element types by torch's names.
const NAMES: &[(&str, ElementType)] = &[
    ("torch.bool", ElementType(6, 8)),
    ("torch.int8", ElementType(0, 8)),
    ("torch.int16", ElementType(0, 16)),
    ("torch.int32", ElementType(0, 32)),
    ("torch.int64", ElementType(0, 64)),
    ("torch.uint8", ElementType(1, 8)),
    ("torch.uint16", ElementType(1, 16)),
    ("torch.uint32", ElementType(1, 32)),
    ("torch.uint64", ElementType(1, 64)),
    ("torch.float16", ElementType(2, 16)),
    ("torch.bfloat16", ElementType(4, 16)),
    ("torch.float32", ElementType(2, 32)),
    ("torch.float64", ElementType(2, 64)),
    ("torch.complex64", ElementType(5, 64)),
    ("torch.complex128", ElementType(5, 128)),
];

/// Returns the element type with a name of torch or numpy.
pub(crate) fn element_of(name: &str) -> Option<ElementType> {
    let name = name.strip_prefix("torch.").unwrap_or(name);
    NAMES.iter().find(|(known, _)| known.strip_prefix("torch.") == Some(name)).map(|(_, element)| *element)
}

/// Returns the elements of a tensor by its Python attributes, for versions of torch without an
/// [`ExchangeApi`].
fn source_by_attributes(tensor: &Bound<'_, PyAny>, kind: Kind) -> PyResult<Option<Source>> {
    let py = tensor.py();
    let name = tensor.getattr(intern!(py, "dtype"))?.str()?;
    let Some((_, element)) = NAMES.iter().find(|(known, _)| name == *known) else { return Ok(None) };
    let is_cpu = tensor.getattr(intern!(py, "device"))?.getattr(intern!(py, "type"))?.eq("cpu")?;
    let layout = tensor.getattr(intern!(py, "layout"))?.str()?;
    if !is_cpu || layout != "torch.strided" {
        return Ok(None);
    }
    for changed in [intern!(py, "is_conj"), intern!(py, "is_neg")] {
        if tensor.call_method0(changed)?.is_truthy()? {
            return Ok(None);
        }
    }
    let strides: Vec<i64> = tensor.call_method0(intern!(py, "stride"))?.extract()?;
    Ok(Some(Source {
        kind,
        element: *element,
        address: tensor.call_method0(intern!(py, "data_ptr"))?.extract()?,
        shape: tensor.getattr(intern!(py, "shape"))?.extract()?,
        strides: strides.into_iter().map(|stride| stride.saturating_mul(element.size() as i64)).collect(),
        owner: tensor.clone().unbind(),
    }))
}

/// Owner of an exported tensor: the structure, and the data that it points to.
struct Exported {
    managed: DLManagedTensorVersioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _memory: Arc<Memory>,
}

/// Drops the owner of an exported tensor. Called from any thread, with or without the interpreter.
unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: the structure lives until its deleter, which is this call, drops its box.
    let context = unsafe { (*managed).manager_ctx };
    // SAFETY: `export` leaked this box, whose address the context is, and a deleter is called once.
    let exported = unsafe { Box::from_raw(context.cast::<Exported>()) };
    drop(exported);
}

/// Creates DLPack's structure for a tensor in shared memory.
fn export(view: &View, memory: Arc<Memory>) -> *mut DLManagedTensorVersioned {
    let size = view.element.size().max(1) as i64;
    let strides = match view.strides.is_empty() {
        true => row_major(&view.shape),
        false => view.strides.iter().map(|stride| stride / size).collect(),
    };
    let ElementType(code, bits) = view.element;
    let dl_tensor = DLTensor {
        data: (memory.address() + view.offset as usize) as *mut c_void,
        device: DLDevice { device_type: CPU, device_id: 0 },
        ndim: view.shape.len() as i32,
        dtype: DLDataType { code, bits, lanes: 1 },
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let version = DLPackVersion { major: 1, minor: 1 };
    let managed = DLManagedTensorVersioned {
        version,
        manager_ctx: ptr::null_mut(),
        deleter: Some(delete),
        flags: 0,
        dl_tensor,
    };
    let mut exported = Box::new(Exported { managed, shape: view.shape.clone(), strides, _memory: memory });
    exported.managed.dl_tensor.shape = exported.shape.as_mut_ptr();
    exported.managed.dl_tensor.strides = exported.strides.as_mut_ptr();
    let exported = Box::into_raw(exported);
    // SAFETY: the box was leaked a moment ago, and only this function has its address.
    let managed = unsafe { &raw mut (*exported).managed };
    // SAFETY: this function alone has the address.
    unsafe { (*managed).manager_ctx = exported.cast() };
    managed
}

fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1_i64; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
    }
    strides
}

/// Capsule of an exported tensor, for versions of torch without an [`ExchangeApi`].
#[pyclass(frozen, module = "multiproc._multiproc")]
struct Capsule(usize);

#[pymethods]
impl Capsule {
    #[pyo3(signature = (**_arguments))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        _arguments: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the structure was exported a moment ago, and goes into this one capsule. The library
        // that takes it renames the capsule and calls the deleter.
        let capsule =
            unsafe { ffi::PyCapsule_New(self.0 as *mut c_void, c"dltensor_versioned".as_ptr(), None) };
        // SAFETY: a new reference, or null with an error.
        unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (CPU, 0)
    }
}

/// Returns the tensor of an array in a message.
pub(super) fn rebuild<'py>(py: Python<'py>, view: &View, memory: Arc<Memory>) -> PyResult<Bound<'py, PyAny>> {
    let api = exchange_api(py)?.and_then(|api| api.object_from_managed);
    let managed = export(view, memory);
    let tensor = if let Some(make) = api {
        let mut object: *mut c_void = ptr::null_mut();
        // SAFETY: the structure is complete, and the function takes it over if it succeeds.
        if unsafe { make(managed, &raw mut object) } != 0 {
            let error = PyErr::fetch(py);
            // SAFETY: the function failed, so it has not taken over the structure.
            unsafe { delete(managed) };
            return Err(error);
        }
        // SAFETY: a new reference.
        unsafe { Bound::from_owned_ptr(py, object.cast()) }
    } else {
        let from_dlpack = py.import("torch")?.getattr("from_dlpack")?;
        from_dlpack.call1((Capsule(managed as usize),))?
    };
    if view.kind == Kind::TorchGrad {
        tensor.setattr(intern!(py, "requires_grad"), true)?;
    }
    Ok(tensor)
}
