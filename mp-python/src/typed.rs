//! Messages with a schema, which programs in Rust and in Python exchange without pickle: [`TypedQueue`],
//! and guests.
//!
//! A named message of Rust (`#[message(name = "…")]`) is a [`Record`] here: its fields in order, in the
//! form that `derive(Message)` reads and writes. In Python it is a dict, or the dataclass that was
//! registered for the schema.
//!
//! | schema | from Python | to Python |
//! |---|---|---|
//! | `u8` … `i64`, `f32`, `f64`, `bool`, `str` | `int`, `float`, `bool`, `str` | the same |
//! | `list<u8>` | `bytes`, or another buffer of bytes | `bytes` |
//! | `list<T>`, `option<T>`, `map<T>` | `list` or `tuple`, `None`, `dict` | `list`, `None`, `dict` |
//! | `tensor<T>` | array or tensor: one copy | array or tensor over the received memory, writable: no copy |
//! | `shared<T>` | array that was received as `shared`: no copy; any other: one copy | array or tensor over the same memory: no copy |
//! | `frozen<T>` | array or tensor: one copy | read-only array of numpy: no copy; tensor of torch, which can't be read-only: copied, page by page when written if it is large and contiguous |
//! | `queue<…>` | `TypedQueue` of that schema | `TypedQueue` |
//! | a named message | dict, or an object with these attributes | dict, or its dataclass |

mod record;
mod schema;

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use mp::Process;
use mp::process::GuestError;
use mp_core::mutex::Mutex;
use mp_core::sync::shared::Ordering;
use mp_tensor::{AnyTensor, DType, Element, Frozen, Shared, dispatch};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyList, PyString, PyTuple};

use crate::error::{check_process, empty, no_memory, runtime, shut_down};
use crate::library_copies;
use crate::memory::Memory;
use crate::names::{give, shown};
use crate::object::array::{self, Buffer};
use crate::object::handle::Handle;
use crate::object::pickle::reduce_handle;
use crate::object::view::{ElementType, Source};
use crate::process::Child;
use crate::queue::handles::{Handles, WaitResult, closed_error, get_error};
use crate::rust_loader::{Form, default_form, tensor_to_python, view_of};
use crate::wait::limit;
pub(crate) use record::with_schema;
pub use record::{Item, Record};
pub use schema::{Schema, Type};

/// Queue of messages with a schema, between programs in Rust and in Python.
///
/// `TypedQueue(schema, maxsize)` takes a schema's text or a dataclass that was registered with
/// `multiproc.message`.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct TypedQueue {
    handles: Mutex<Option<Arc<Handles<Record>>>>,
    schema: Arc<Schema>,
}

/// Name of the class in errors.
const NAME: &str = "TypedQueue";

impl TypedQueue {
    fn of(queue: &mp::Queue<Record>) -> PyResult<Self> {
        let schema = schema_of(queue).map_err(PyTypeError::new_err)?;
        Ok(Self { handles: Mutex::new(Some(Arc::new(Handles::new(queue, None)))), schema })
    }

    fn open(&self) -> PyResult<Arc<Handles<Record>>> {
        check_process()?;
        self.handles.lock().clone().ok_or_else(|| closed_error(NAME))
    }
}

/// Returns the schema of a queue that was received.
fn schema_of(queue: &mp::Queue<Record>) -> Result<Arc<Schema>, String> {
    let text = queue.type_name();
    let fingerprint = queue.type_fingerprint();
    if let Some(known) = Schema::known(fingerprint) {
        return Ok(known);
    }
    if mp_core::fnv1a(text.as_bytes()) != fingerprint {
        return Err(format!(
            "the queue's schema is longer than what a queue stores, {text}…: name it first, by \
             multiproc.message or multiproc.register_schema"
        ));
    }
    Schema::parse(&text).map_err(|why| format!("a queue of {text} can't be read in Python: {why}"))
}

/// Returns the schema of a text, or of a class that was registered.
pub(crate) fn schema_argument(given: &Bound<'_, PyAny>) -> PyResult<Arc<Schema>> {
    let text: String = match given.cast::<PyString>() {
        Ok(text) => text.extract()?,
        Err(_) => given.getattr("__schema__").and_then(|text| text.extract()).map_err(|_| {
            PyTypeError::new_err("a schema is a text, or a dataclass with the decorator multiproc.message")
        })?,
    };
    Schema::parse(&text).map_err(PyValueError::new_err)
}

#[pymethods]
impl TypedQueue {
    #[new]
    #[pyo3(signature = (schema, maxsize = 0))]
    fn new(schema: &Bound<'_, PyAny>, maxsize: i64) -> PyResult<Self> {
        let schema = schema_argument(schema)?;
        let queue = record::with_schema(&schema, || match usize::try_from(maxsize).unwrap_or(0) {
            0 => mp::Queue::unbounded(),
            maxsize => mp::Queue::bounded(maxsize),
        });
        let handles = Handles::new(&queue.map_err(runtime)?, None);
        Ok(Self { handles: Mutex::new(Some(Arc::new(handles))), schema })
    }

    /// Text of the schema.
    #[getter]
    fn schema(&self) -> &str {
        &self.schema.text
    }

    /// Puts a message into the queue: a dict, or an object with the attributes of the schema.
    #[pyo3(signature = (obj, block = true, timeout = None))]
    fn put(&self, obj: &Bound<'_, PyAny>, block: bool, timeout: Option<f64>) -> PyResult<()> {
        let (py, open) = (obj.py(), self.open()?);
        let record = to_record(obj, &self.schema, "message")?;
        open.put(py, limit(block, timeout)?, record, NAME)
    }

    /// Takes the first message out of the queue. `as_` is "torch" or "numpy"; without `as_`, arrays are
    /// tensors of torch if torch has been imported.
    #[pyo3(signature = (block = true, timeout = None, *, as_ = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        block: bool,
        timeout: Option<f64>,
        as_: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open()?;
        let form = crate::rust_loader::form(as_)?.map_or_else(|| default_form(py), Ok)?;
        let limit = limit(block, timeout)?;
        let get = |queue: &mp::Queue<Record>, time: Duration| {
            record::with_schema(&self.schema, || match time.is_zero() {
                true => queue.try_get(),
                false => queue.get_timeout(time),
            })
        };
        match open.take_by(py, limit, get)? {
            WaitResult::Done(Ok(Some(record))) => to_python(py, record, form),
            WaitResult::Done(Ok(None)) => Err(shut_down(py)),
            WaitResult::Done(Err(error)) => Err(get_error(py, error)),
            WaitResult::Late => Err(empty(py)),
            WaitResult::Closed => Err(closed_error(NAME)),
        }
    }

    /// Equivalent to `put(obj, False)`.
    fn put_nowait(&self, obj: &Bound<'_, PyAny>) -> PyResult<()> {
        self.put(obj, false, None)
    }

    /// Equivalent to `get(False)`.
    fn get_nowait<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.get(py, false, None, None)
    }

    /// Returns the number of messages in the queue.
    fn qsize(&self) -> PyResult<usize> {
        Ok(self.open()?.patient.len())
    }

    /// Returns `True` if the queue has no messages.
    fn empty(&self) -> PyResult<bool> {
        Ok(self.open()?.patient.is_empty())
    }

    /// Returns `True` if the queue has as many messages as fit.
    fn full(&self) -> PyResult<bool> {
        Ok(self.open()?.patient.is_full())
    }

    /// Ends the use of the queue in this process.
    fn close(&self) {
        if let Some(open) = self.handles.lock().take() {
            open.closed.store(true, Ordering::Relaxed);
        }
    }

    /// Ends the use of the queue in all processes. Further puts raise `ShutDown`. Further gets raise
    /// `ShutDown` when the queue is empty.
    fn shutdown(&self) -> PyResult<()> {
        self.open()?.patient.close();
        Ok(())
    }

    fn _give_name(&self, name: &str) -> PyResult<()> {
        let open = self.open()?;
        give(|| open.patient.clone().named(name))
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Returns the next message. The iteration ends when the queue was shut down and is empty.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.get(py, true, None, None) {
            Err(error) if error.get_type(py).is(shut_down(py).get_type(py)) => Ok(None),
            got => got.map(Some),
        }
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        reduce_handle(py, "a queue", Handle::TypedQueue(self.open()?.patient.clone()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let given = self.handles.lock().as_ref().and_then(|open| open.patient.given_name());
        Ok(format!("<multiproc.TypedQueue{} of {}>", shown(py, given, " ", "")?, self.schema.text))
    }
}

/// Returns the Python object of a queue that was received.
pub(crate) fn received(py: Python<'_>, queue: mp::Queue<Record>) -> PyResult<Bound<'_, PyAny>> {
    Ok(Bound::new(py, TypedQueue::of(&queue)?)?.into_any())
}

/// Classes of messages, by the texts of their schemas.
static CLASSES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

fn classes(py: Python<'_>) -> &Bound<'_, PyDict> {
    CLASSES.get_or_init(py, || PyDict::new(py).unbind()).bind(py)
}

/// Registers a schema, and the class of its messages, if any. Returns the normalised text.
#[pyfunction]
#[pyo3(signature = (text, class_ = None))]
pub fn register_schema(py: Python<'_>, text: &str, class_: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
    let schema = Schema::parse(text).map_err(PyValueError::new_err)?;
    if let Some(class) = class_ {
        classes(py).set_item(&schema.text, class)?;
    }
    Ok(schema.text.clone())
}

/// Returns the arguments of this process, which another program has started as a guest. After the call, this
/// process shares that program's memory.
#[pyfunction]
pub fn child(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let record = py.detach(|| {
        mp::process::guest_by::<Record>(|found| match Schema::parse(found) {
            Ok(schema) => Ok(Some(schema.text.clone())),
            Err(_) => Err(GuestError::OtherType {
                found: found.to_owned(),
                expected: "a named message (`#[message(name = \"…\")]`)".to_owned(),
            }),
        })
    });
    let record = record.map_err(|error| match error {
        GuestError::NoGuest => library_copies::error(error, library_copies::MEMORY),
        error => PyRuntimeError::new_err(error.to_string()),
    })?;
    to_python(py, record, default_form(py)?)
}

/// Starts another program, which shares this program's memory. That program calls `mp::process::guest` in
/// Rust, or `multiproc.child` in Python. `args` is an object of a class that was registered with
/// `multiproc.message`, or a dict, with the text of its schema.
#[pyfunction]
#[pyo3(signature = (command, args, schema = None, *, name = None, daemon = false))]
pub fn start_guest(
    py: Python<'_>,
    command: Vec<OsString>,
    args: &Bound<'_, PyAny>,
    schema: Option<&Bound<'_, PyAny>>,
    name: Option<String>,
    daemon: bool,
) -> PyResult<Child> {
    let schema = schema_argument(schema.unwrap_or(args))?;
    let record = to_record(args, &schema, "args")?;
    let mut builder = Process::builder().daemon(daemon);
    if let Some(name) = name {
        builder = builder.name(name);
    }
    let process = py.detach(|| record::with_schema(&schema, || builder.guest(command, record)));
    Ok(Child::of(process.map_err(runtime)?))
}

/// Converts a message to Python.
pub(crate) fn to_python(py: Python<'_>, record: Record, form: Form) -> PyResult<Bound<'_, PyAny>> {
    let dict = PyDict::new(py);
    for ((name, _), item) in record.schema.fields.iter().zip(record.items) {
        dict.set_item(name, item_to_python(py, item, form)?)?;
    }
    match classes(py).get_item(&record.schema.text)? {
        Some(class) => class.call((), Some(&dict)),
        None => Ok(dict.into_any()),
    }
}

fn item_to_python(py: Python<'_>, item: Item, form: Form) -> PyResult<Bound<'_, PyAny>> {
    Ok(match item {
        Item::None => py.None().into_bound(py),
        Item::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
        Item::Int(value) => value.into_pyobject(py)?.into_any(),
        Item::Uint(value) => value.into_pyobject(py)?.into_any(),
        Item::F32(value) => value.into_pyobject(py)?.into_any(),
        Item::F64(value) => value.into_pyobject(py)?.into_any(),
        Item::Str(value) => value.into_pyobject(py)?.into_any(),
        Item::Bytes(value) => PyBytes::new(py, &value).into_any(),
        Item::List(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(item_to_python(py, item, form)?)?;
            }
            list.into_any()
        }
        Item::Map(entries) => {
            let dict = PyDict::new(py);
            for (key, item) in entries {
                dict.set_item(key, item_to_python(py, item, form)?)?;
            }
            dict.into_any()
        }
        Item::Tensor(tensor) => tensor_to_python(py, tensor, form)?,
        Item::Shared(tensor) => {
            let view = view_of(tensor.dtype(), tensor.shape(), tensor.strides(), tensor.offset(), form);
            let memory = dispatch!(tensor.dtype(), T => whole::<T>(tensor)).map_err(runtime)?;
            array::rebuild(py, &view, memory)?
        }
        Item::Frozen(tensor) => frozen_to_python(py, tensor, form)?,
        Item::Queue(queue) => received(py, queue)?,
        Item::Record(record) => to_python(py, record, form)?,
    })
}

fn whole<T: Element>(tensor: AnyTensor<Shared>) -> mp_core::Result<Arc<Memory>> {
    let tensor = tensor.downcast::<T>().map_err(mp_core::Error::from)?;
    Ok(Memory::adopt(tensor.typed_storage().into_tensor()))
}

/// Number of bytes from which mapping a frozen tensor costs less than copying it.
const MAPPED: usize = 256 << 10;

/// Returns a read-only array of numpy over frozen memory, or a tensor of torch with a copy, since torch has
/// no read-only tensors. A large contiguous tensor is copied page by page when it is written.
fn frozen_to_python(py: Python<'_>, tensor: AnyTensor<Frozen>, form: Form) -> PyResult<Bound<'_, PyAny>> {
    if form == Form::Torch {
        if tensor.nbytes() >= MAPPED && tensor.is_contiguous() {
            let view = view_of(tensor.dtype(), tensor.shape(), tensor.strides(), 0, form);
            return array::rebuild(py, &view, Memory::copy_on_write(&tensor).map_err(no_memory)?);
        }
        let copy = dispatch!(tensor.dtype(), T => copy_of::<T>(tensor)).map_err(runtime)?;
        return tensor_to_python(py, copy, form);
    }
    let view = view_of(tensor.dtype(), tensor.shape(), tensor.strides(), tensor.offset(), form);
    array::frozen(py, &view, tensor)
}

fn copy_of<T: Element>(tensor: AnyTensor<Frozen>) -> mp_core::Result<AnyTensor> {
    let tensor = tensor.downcast::<T>().map_err(mp_core::Error::from)?;
    Ok(tensor.try_clone()?.into())
}

/// Converts a Python object to a message. `path` names the object in errors.
pub(crate) fn to_record(object: &Bound<'_, PyAny>, schema: &Arc<Schema>, path: &str) -> PyResult<Record> {
    let dict = object.cast::<PyDict>().ok();
    if let Some(dict) = dict {
        for key in dict.keys() {
            let known = |name: &str| schema.fields.iter().any(|(field, _)| field == name);
            if !key.extract::<String>().is_ok_and(|key| known(&key)) {
                let text = format!("{path} has the key {}, which {} lacks", key.repr()?, schema.text);
                return Err(PyTypeError::new_err(text));
            }
        }
    }
    let mut values = Vec::with_capacity(schema.fields.len());
    for (name, _) in &schema.fields {
        values.push(match dict {
            Some(dict) => dict.get_item(name)?,
            None => object.getattr_opt(name.as_str())?,
        });
    }
    if dict.is_none() && !values.is_empty() && values.iter().all(Option::is_none) {
        let (text, class) = (&schema.text, class_name(object));
        let text = format!("{path} must be a dict or an object with the fields of {text}, not {class}");
        return Err(PyTypeError::new_err(text));
    }
    let mut items = Vec::with_capacity(schema.fields.len());
    for ((name, of), value) in schema.fields.iter().zip(values) {
        let path = format!("{path}.{name}");
        let value = match (value, of) {
            (Some(value), _) => value,
            (None, Type::Option(_)) => object.py().None().into_bound(object.py()),
            (None, _) => return Err(PyTypeError::new_err(format!("{path} is missing: {}", schema.text))),
        };
        items.push(to_item(&value, of, &path)?);
    }
    Ok(Record { schema: schema.clone(), items })
}

fn class_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".to_string(), |name| name.to_string())
}

fn to_item(object: &Bound<'_, PyAny>, of: &Type, path: &str) -> PyResult<Item> {
    let wrong = || PyTypeError::new_err(format!("{path} must be {of}, not {}", class_name(object)));
    let is_bool = object.is_instance_of::<PyBool>();
    let sequence = || {
        let is_one = object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>();
        if is_one { object.try_iter() } else { Err(wrong()) }
    };
    Ok(match of {
        Type::Bool if is_bool => Item::Bool(object.extract()?),
        Type::Bool => return Err(wrong()),
        Type::Int(low, high) => {
            if is_bool {
                return Err(wrong());
            }
            let value: i128 = object.extract().map_err(|_| wrong())?;
            if !(*low..=*high).contains(&value) {
                let text = format!("{path}: {value} is out of range for {of}");
                return Err(pyo3::exceptions::PyOverflowError::new_err(text));
            }
            u64::try_from(value).map_or(Item::Int(value as i64), Item::Uint)
        }
        Type::F32 | Type::F64 => {
            if is_bool
                || !(object.is_instance_of::<PyFloat>()
                    || object.hasattr("__index__")?
                    || object.hasattr("__float__")?)
            {
                return Err(wrong());
            }
            let value: f64 = object.extract().map_err(|_| wrong())?;
            if *of == Type::F32 { Item::F32(value as f32) } else { Item::F64(value) }
        }
        Type::Str => Item::Str(object.extract().map_err(|_| wrong())?),
        Type::List(inner) if **inner == Type::U8 && !object.is_instance_of::<PyList>() => {
            Item::Bytes(Buffer::bytes_of(object).map_err(|_| wrong())?.bytes().to_vec())
        }
        Type::List(inner) => {
            let mut items = Vec::new();
            for (i, value) in sequence()?.enumerate() {
                items.push(to_item(&value?, inner, &format!("{path}[{i}]"))?);
            }
            Item::List(items)
        }
        Type::Option(_) if object.is_none() => Item::None,
        Type::Option(inner) => to_item(object, inner, path)?,
        Type::Map(inner) => {
            let mut entries = Vec::new();
            // The items are copied to a list first, because reading a value may run code that changes the
            // dictionary.
            for entry in object.cast::<PyDict>().map_err(|_| wrong())?.items() {
                let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = entry.extract()?;
                let key: String = key.extract().map_err(|_| wrong())?;
                let item = to_item(&value, inner, &format!("{path}[{key:?}]"))?;
                entries.push((key, item));
            }
            Item::Map(entries)
        }
        Type::Tensor(dtype) => Item::Tensor(copied(object, *dtype, path, &wrong)?),
        Type::Frozen(dtype) => Item::Frozen(copied(object, *dtype, path, &wrong)?.freeze()),
        Type::Shared(dtype) => Item::Shared(shared(object, *dtype, path, &wrong)?),
        Type::Queue(schema) => {
            let is_of_another_copy = object.get_type().name().is_ok_and(|name| name == NAME);
            let queue = object.cast::<TypedQueue>().map_err(|_| match is_of_another_copy {
                true => PyTypeError::new_err(library_copies::explained(
                    object.py(),
                    wrong(),
                    library_copies::OBJECTS,
                )),
                false => wrong(),
            })?;
            let queue = queue.get();
            if queue.schema.text != schema.text {
                let text = format!("{path} must be a queue of {}, not of {}", schema.text, queue.schema.text);
                return Err(PyTypeError::new_err(text));
            }
            Item::Queue(queue.open()?.patient.clone())
        }
        Type::Record(schema) => Item::Record(to_record(object, schema, path)?),
    })
}

/// Returns the elements of an array or tensor. Raises `TypeError` if they have another type than `dtype`.
fn source(
    object: &Bound<'_, PyAny>,
    dtype: DType,
    path: &str,
    wrong: &dyn Fn() -> PyErr,
) -> PyResult<Source> {
    let source = array::source_of(object)?.ok_or_else(wrong)?;
    let ElementType(code, bits) = source.element;
    match DType::from_dlpack(code, bits) {
        Some(found) if found == dtype => Ok(source),
        Some(found) => {
            Err(PyTypeError::new_err(format!("{path} must have elements of type {dtype}, not {found}")))
        }
        None => Err(wrong()),
    }
}

/// Copies an array or tensor into memory that belongs to the message alone.
fn copied(
    object: &Bound<'_, PyAny>,
    dtype: DType,
    path: &str,
    wrong: &dyn Fn() -> PyErr,
) -> PyResult<AnyTensor> {
    let source = source(object, dtype, path, wrong)?;
    let shape: Vec<usize> = source.shape.iter().map(|&n| n as usize).collect();
    let tensor = AnyTensor::empty(&shape, dtype).map_err(crate::error::no_memory)?;
    source.copy_to(object.py(), &tensor);
    Ok(tensor)
}

/// Returns a shared tensor with the elements of an array or tensor: in the same memory if that memory was
/// received as `shared`, otherwise in a copy.
fn shared(
    object: &Bound<'_, PyAny>,
    dtype: DType,
    path: &str,
    wrong: &dyn Fn() -> PyErr,
) -> PyResult<AnyTensor<Shared>> {
    let source = source(object, dtype, path, wrong)?;
    let size = dtype.size();
    let fits = |memory: &Arc<Memory>| {
        memory.tensor().dtype() == dtype
            && (source.address - memory.address()).is_multiple_of(size)
            && source.strides.iter().all(|bytes| *bytes >= 0 && bytes % size as i64 == 0)
    };
    if let Some(memory) = source.memory().filter(fits) {
        let shape: Vec<usize> = source.shape.iter().map(|&n| n as usize).collect();
        let strides: Vec<isize> =
            source.strides.iter().map(|&bytes| bytes as isize / size as isize).collect();
        let offset = (source.address - memory.address()) / size;
        return dispatch!(dtype, T => strided::<T>(memory.tensor(), &shape, &strides, offset))
            .map_err(runtime);
    }
    Ok(copied(object, dtype, path, wrong)?.share())
}

fn strided<T: Element>(
    tensor: AnyTensor<Shared>,
    shape: &[usize],
    strides: &[isize],
    offset: usize,
) -> mp_core::Result<AnyTensor<Shared>> {
    let tensor = tensor.downcast::<T>().map_err(mp_core::Error::from)?;
    let offset = tensor.offset() + offset;
    Ok(tensor.as_strided(shape, strides, offset)?.into())
}
