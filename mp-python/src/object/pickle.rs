//! Conversion of Python objects to messages and back, by pickle's protocol 5.
//!
//! Each thread keeps one `pickle.Pickler` of the interpreter's C code. Its table of reducers consists of this
//! package's reducers for arrays and handles, then of the reducers registered with `multiprocessing`'s
//! `ForkingPickler`, then of those of `copyreg`. A reducer of this package stores the array or handle in the
//! thread's [`Outgoing`], and pickles its index. When a message is read, each index is replaced with the
//! array or handle in the thread's [`Incoming`].

use std::cell::RefCell;
use std::sync::Arc;

use pyo3::exceptions::{PyKeyError, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple, PyType};

use super::Object;
use super::array::{Buffer, MemoryBuffer, rebuild, reduce_memoryview, reduce_ndarray, source_of_buffer};
use super::handle::{Handle, to_python};
use super::torch::{check_storage, reduce_tensor};
use super::view::{Kind, SMALL, SharedArrays, Source, View, share, share_bytes};
use crate::library_copies;
use crate::memory::Memory;

/// Length in bytes from which data is stored in separate shared memory, outside of the pickled bytes. It
/// applies to a long object, and to all pickled bytes of a message.
const LONG: usize = 16 << 10;

/// Parts of the object that a thread is pickling.
#[derive(Default)]
struct Outgoing {
    pickle: Vec<u8>,
    /// Buffers of long objects, each with its position: the number of pickled bytes before it.
    long: Vec<(usize, Buffer)>,
    sources: Vec<Source>,
    buffers: Vec<u32>,
    handles: Vec<Handle>,
}

/// Parts of the object that a thread is reading.
struct Incoming {
    views: Vec<View>,
    memory: Vec<Arc<Memory>>,
    handles: Vec<Option<Handle>>,
}

thread_local! {
    static OUTGOING: RefCell<Vec<Outgoing>> = const { RefCell::new(Vec::new()) };
    static INCOMING: RefCell<Vec<Incoming>> = const { RefCell::new(Vec::new()) };
    /// Pickler of the thread, unless it is in use.
    static PICKLER: RefCell<Option<Py<PyAny>>> = const { RefCell::new(None) };
}

/// Calls `f` with the object that this thread is pickling. Returns `None` if this thread pickles nothing.
fn with_outgoing<R>(f: impl FnOnce(&mut Outgoing) -> R) -> Option<R> {
    OUTGOING.with_borrow_mut(|all| all.last_mut().map(f))
}

/// Adds an array to the object that this thread pickles. Returns its index.
///
/// # Errors
/// `RuntimeError` outside of a message.
pub fn add_source(source: Source) -> PyResult<usize> {
    with_outgoing(|outgoing| {
        outgoing.sources.push(source);
        outgoing.sources.len() - 1
    })
    .ok_or_else(|| outside("an array"))
}

/// Adds a handle to the object that this thread pickles. Returns the result of `__reduce__`, which refers to
/// the handle in the pickled bytes.
///
/// # Errors
/// `RuntimeError` outside of a message.
pub fn reduce_handle<'py>(py: Python<'py>, what: &str, handle: Handle) -> PyResult<Bound<'py, PyTuple>> {
    let index = with_outgoing(|outgoing| {
        outgoing.handles.push(handle);
        outgoing.handles.len() - 1
    });
    let index = index.ok_or_else(|| outside(what))?;
    (handle_function(py)?, (index,)).into_pyobject(py)
}

fn outside(what: &str) -> PyErr {
    let error = format!(
        "{what} can be pickled only as a part of a message or of the arguments of a process or task of \
         multiproc: it belongs to the processes of one program"
    );
    library_copies::error(error, library_copies::OBJECTS)
}

/// File of the pickler, which receives the pickled bytes.
#[pyclass(frozen, module = "multiproc._multiproc")]
struct Sink;

#[pymethods]
impl Sink {
    #[allow(clippy::unused_self, reason = "the interface of a file")]
    fn write(&self, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let append = |bytes: &[u8]| {
            with_outgoing(|outgoing| outgoing.pickle.extend_from_slice(bytes)).map(|()| bytes.len())
        };
        let written = match data.cast::<PyBytes>() {
            Ok(bytes) if bytes.as_bytes().len() < LONG => append(bytes.as_bytes()),
            _ => {
                let buffer = Buffer::bytes_of(data)?;
                match buffer.bytes().len() {
                    len if len < LONG => append(buffer.bytes()),
                    len => with_outgoing(|outgoing| {
                        outgoing.long.push((outgoing.pickle.len(), buffer));
                        len
                    }),
                }
            }
        };
        written.ok_or_else(|| outside("an object"))
    }
}

/// Copies the pickled bytes into shared memory, if they are at least [`LONG`] bytes. Returns `None`
/// otherwise.
fn share_pickle(py: Python<'_>, pickle: &[u8], long: &[(usize, Buffer)]) -> PyResult<Option<Arc<Memory>>> {
    if long.is_empty() && pickle.len() < LONG {
        return Ok(None);
    }
    let address = |bytes: &[u8]| (bytes.as_ptr() as usize, bytes.len());
    let mut pieces = Vec::with_capacity(2 * long.len() + 1);
    let mut done = 0;
    for (at, buffer) in long {
        pieces.push(address(&pickle[done..*at]));
        pieces.push(address(buffer.bytes()));
        done = *at;
    }
    pieces.push(address(&pickle[done..]));
    share_bytes(py, &pieces).map(Some)
}

/// Table of reducers by type. Reducers of this package are stored in the table. Reducers of `ForkingPickler`
/// and `copyreg` are looked up each time, because programs may change them.
#[pyclass(frozen, module = "multiproc._multiproc")]
struct Reducers {
    own: Py<PyDict>,
}

impl Reducers {
    fn new(py: Python<'_>) -> Self {
        Self { own: PyDict::new(py).unbind() }
    }
}

#[pymethods]
impl Reducers {
    fn __getitem__<'py>(&self, of: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        static FORKING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static COPYREG: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = of.py();
        if let Some(reducer) = self.own.bind(py).get_item(of)? {
            return Ok(reducer);
        }
        let own = match of.cast::<PyType>() {
            Ok(of) => own_reducer(of)?,
            Err(_) => None,
        };
        if let Some(reducer) = own {
            self.own.bind(py).set_item(of, &reducer)?;
            return Ok(reducer);
        }
        let forking = FORKING.get_or_try_init(py, || {
            let pickler = py.import("multiprocessing.reduction")?.getattr("ForkingPickler")?;
            pickler.getattr("_extra_reducers").map(Bound::unbind)
        })?;
        let copyreg = COPYREG
            .get_or_try_init(py, || py.import("copyreg")?.getattr("dispatch_table").map(Bound::unbind))?;
        for table in [forking, copyreg] {
            if let Some(reducer) = table.bind(py).cast::<PyDict>()?.get_item(of)? {
                return Ok(reducer);
            }
        }
        Err(PyKeyError::new_err(of.clone().unbind()))
    }
}

/// Base class whose subclasses are pickled by a reducer of this package, and that reducer.
static BASE: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();

/// Registers a base class, whose subclasses `reducer` pickles. Only the first call has an effect.
#[pyfunction]
pub fn register_base(py: Python<'_>, base: Py<PyAny>, reducer: Py<PyAny>) {
    _ = BASE.set(py, (base, reducer));
}

/// Returns the reducer of this package for a type, if it has one.
fn own_reducer<'py>(of: &Bound<'py, PyType>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = of.py();
    if of.is(py.get_type::<pyo3::types::PyMemoryView>()) {
        return Ok(Some(wrap_pyfunction!(reduce_memoryview, py)?.into_any()));
    }
    if let Some((base, reducer)) = BASE.get(py)
        && of.is_subclass(base.bind(py))?
    {
        return Ok(Some(reducer.bind(py).clone()));
    }
    let name = of.name()?;
    let module = || of.getattr("__module__")?.extract::<String>();
    let in_python = |function| py.import("multiproc._torch")?.getattr(function).map(Some);
    Ok(match name.to_str()? {
        "ndarray" if module()? == "numpy" => Some(wrap_pyfunction!(reduce_ndarray, py)?.into_any()),
        "Tensor" if module()? == "torch" => Some(wrap_pyfunction!(reduce_tensor, py)?.into_any()),
        "Parameter" if module()? == "torch.nn.parameter" => in_python("reduce_parameter")?,
        "UntypedStorage" if module()? == "torch.storage" => in_python("reduce_storage")?,
        "TypedStorage" if module()? == "torch.storage" => in_python("reduce_typed_storage")?,
        _ => ctypes_reducer(of)?,
    })
}

/// Returns the reducer of a type of ctypes, if this process has objects of ctypes in shared memory.
fn ctypes_reducer<'py>(of: &Bound<'py, PyType>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = of.py();
    // Types of ctypes have metaclasses of their own.
    if of.get_type().is(py.get_type::<PyType>()) {
        return Ok(None);
    }
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    match modules.cast::<PyDict>()?.get_item(intern!(py, "multiproc.sharedctypes"))? {
        Some(module) if of.is_subclass(&module.getattr(intern!(py, "_CData"))?)? => {
            module.getattr(intern!(py, "reduce_ctype")).map(Some)
        }
        _ => Ok(None),
    }
}

/// Callback of protocol 5 for each out-of-band buffer. Returns `True` if the buffer stays in the pickled
/// bytes.
#[pyfunction]
fn add_buffer(buffer: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(source) = source_of_buffer(buffer)? else { return Ok(true) };
    let index = add_source(source)?;
    with_outgoing(|outgoing| outgoing.buffers.push(index as u32));
    Ok(false)
}

fn new_pickler(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let arguments = PyDict::new(py);
    arguments.set_item("protocol", 5)?;
    arguments.set_item("buffer_callback", wrap_pyfunction!(add_buffer, py)?)?;
    let pickler = py.import("pickle")?.getattr("Pickler")?.call((Py::new(py, Sink)?,), Some(&arguments))?;
    pickler.setattr("dispatch_table", Py::new(py, Reducers::new(py))?)?;
    Ok(pickler.unbind())
}

/// Maximum size in bytes of a pickler, with its memo, that a thread keeps.
const MOST_OF_MEMO: usize = 64 << 10;

/// Converts a Python object to a message.
///
/// # Errors
/// Exceptions that the object's own code raises, `PicklingError` and other exceptions of pickle, and
/// `MemoryError` if there is not enough shared memory for the arrays.
pub fn dumps(object: &Bound<'_, PyAny>) -> PyResult<Object> {
    dumps_by(object, None)
}

/// Converts a Python object to a message like [`dumps`], with a pickler of the class `make`, for functions
/// that pickle itself can't pickle. The class takes a file and the keyword arguments of `pickle.Pickler`.
///
/// # Errors
/// The same as for [`dumps`].
pub fn dumps_by(object: &Bound<'_, PyAny>, make: Option<&Bound<'_, PyAny>>) -> PyResult<Object> {
    write(object, make, false)
}

/// Converts a Python object to a message like [`dumps_by`], for several receivers that change their arrays
/// privately. The copies of all arrays are in one block, so that each receiver has one private mapping.
///
/// # Errors
/// The same as for [`dumps`].
pub fn dumps_for_each(object: &Bound<'_, PyAny>, make: Option<&Bound<'_, PyAny>>) -> PyResult<Object> {
    write(object, make, true)
}

fn write(object: &Bound<'_, PyAny>, make: Option<&Bound<'_, PyAny>>, for_each: bool) -> PyResult<Object> {
    let py = object.py();
    let outgoing = pickle(object, make).inspect_err(|error| {
        let explain = py.import("multiproc.reduction").and_then(|module| module.getattr("explain"));
        // The original error is raised, even if explaining it fails.
        drop(explain.and_then(|explain| explain.call1((error.value(py), object, make))));
    })?;
    let Outgoing { mut pickle, long, mut sources, buffers, handles } = outgoing;
    let shared = share_pickle(py, &pickle, &long)?;
    if sources.is_empty() && shared.is_none() {
        return Ok(Object { pickle, handles, ..Object::default() });
    }
    // Python code that ran while the object was pickled may have resized tensors.
    let torch = |source: &&mut Source| matches!(source.kind, Kind::Torch | Kind::TorchGrad);
    sources.iter_mut().filter(torch).try_for_each(|source| check_storage(py, source))?;
    let together = if for_each { usize::MAX } else { SMALL };
    let SharedArrays { mut views, mut memory, block } = share(py, &sources, together)?;
    if let Some(shared) = shared {
        pickle = Vec::new();
        views.push(View::of_bytes(Kind::ReadOnlyBuffer, memory.len(), shared.len()));
        memory.push(shared);
    }
    let memory = memory.iter().map(|memory| memory.tensor()).collect();
    Ok(Object { pickle, views, buffers, memory, private: block.filter(|_| for_each), handles })
}

/// Returns `True` if the object can be pickled. Its arrays are not copied.
#[pyfunction]
#[pyo3(name = "_can_pickle")]
pub fn can_pickle(object: &Bound<'_, PyAny>, make: Option<&Bound<'_, PyAny>>) -> bool {
    pickle(object, make).is_ok()
}

/// Pickles an object, and collects its parts.
fn pickle(object: &Bound<'_, PyAny>, make: Option<&Bound<'_, PyAny>>) -> PyResult<Outgoing> {
    let py = object.py();
    let pickler = match make {
        Some(make) => {
            let arguments = PyDict::new(py);
            arguments.set_item("protocol", 5)?;
            arguments.set_item("buffer_callback", wrap_pyfunction!(add_buffer, py)?)?;
            let pickler = make.call((Py::new(py, Sink)?,), Some(&arguments))?;
            let mut table = Bound::new(py, Reducers::new(py))?.into_any();
            if let Ok(theirs) = pickler.getattr("dispatch_table") {
                table = py.import("collections")?.getattr("ChainMap")?.call1((table, theirs))?;
            }
            // A class attribute of this name, such as cloudpickle's, would hide the table that the C code
            // reads.
            let slot = py.import("pickle")?.getattr("Pickler")?.getattr("dispatch_table")?;
            slot.call_method1("__set__", (&pickler, table))?;
            pickler.unbind()
        }
        None => match PICKLER.take() {
            Some(pickler) => pickler,
            None => new_pickler(py)?,
        },
    };
    OUTGOING.with_borrow_mut(|all| all.push(Outgoing::default()));
    let dumped = pickler.bind(py).call_method1(intern!(py, "dump"), (object,));
    let cleared = pickler.bind(py).call_method0(intern!(py, "clear_memo"));
    let outgoing = OUTGOING.with_borrow_mut(Vec::pop).unwrap_or_default();
    // After a failure the pickler may have unwritten bytes. After a message with many objects, the pickler's
    // memo stays large, and each further message would clear all of it.
    let size = pickler.bind(py).call_method0(intern!(py, "__sizeof__")).and_then(|size| size.extract());
    let is_small = size.is_ok_and(|size: usize| size <= MOST_OF_MEMO);
    if make.is_none() && dumped.is_ok() && cleared.is_ok() && is_small {
        // If another object was pickled meanwhile, its pickler is dropped here, which may run Python code.
        drop(PICKLER.replace(Some(pickler)));
    }
    dumped?;
    Ok(outgoing)
}

/// Converts pickled bytes to a message, from which [`loads`] reads the object.
///
/// # Errors
/// `MemoryError` if there is not enough shared memory.
pub fn bytes_to_message(py: Python<'_>, bytes: &[u8]) -> PyResult<Object> {
    if bytes.len() < LONG {
        return Ok(Object { pickle: bytes.to_vec(), ..Object::default() });
    }
    let memory = share_bytes(py, &[(bytes.as_ptr() as usize, bytes.len())])?;
    let views = vec![View::of_bytes(Kind::ReadOnlyBuffer, 0, memory.len())];
    Ok(Object { views, memory: vec![memory.tensor()], ..Object::default() })
}

/// Returns the pickled bytes of a message, as `bytes` or as an object with a buffer. A message with arrays or
/// handles is unpickled, and pickled again without out-of-band parts.
///
/// # Errors
/// Exceptions that the object's own code raises.
pub fn message_to_bytes(py: Python<'_>, mut object: Object) -> PyResult<Bound<'_, PyAny>> {
    if object.handles.is_empty() && object.views.len() <= usize::from(object.pickle.is_empty()) {
        let Some(memory) = object.memory.pop() else {
            return Ok(PyBytes::new(py, &object.pickle).into_any());
        };
        return Ok(Bound::new(py, MemoryBuffer::of(Memory::adopt(memory)))?.into_any());
    }
    let object = loads(py, object)?;
    py.import("pickle")?.getattr("dumps")?.call1((object, 5))
}

/// Converts a message back to a Python object.
///
/// # Errors
/// Exceptions that the object's own code raises.
pub fn loads(py: Python<'_>, object: Object) -> PyResult<Bound<'_, PyAny>> {
    static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let loads = LOADS.import(py, "pickle", "loads")?;
    let Object { pickle, views, buffers, memory, private, handles } = object;
    if views.is_empty() && handles.is_empty() {
        return loads.call1((PyBytes::new(py, &pickle),));
    }
    let adopt = |(index, tensor)| match private {
        Some(private) if private as usize == index => {
            Memory::copy_on_write(&tensor).map_err(crate::error::no_memory)
        }
        _ => Ok(Memory::adopt(tensor)),
    };
    let mut memory: Vec<Arc<Memory>> = memory.into_iter().enumerate().map(adopt).collect::<PyResult<_>>()?;
    let bytes = match memory.pop_if(|_| pickle.is_empty()) {
        Some(memory) => Bound::new(py, MemoryBuffer::of(memory))?.into_any(),
        None => PyBytes::new(py, &pickle).into_any(),
    };
    drop(pickle);
    let handles = handles.into_iter().map(Some).collect();
    INCOMING.with_borrow_mut(|all| all.push(Incoming { views, memory, handles }));
    let loaded = (|| {
        if buffers.is_empty() {
            return loads.call1((bytes,));
        }
        let list = PyList::empty(py);
        for index in buffers {
            list.append(array(py, index as usize)?)?;
        }
        let arguments = PyDict::new(py);
        arguments.set_item(intern!(py, "buffers"), list)?;
        loads.call((bytes,), Some(&arguments))
    })();
    INCOMING.with_borrow_mut(Vec::pop);
    loaded
}

/// Returns the array with this index in the message that this thread is unpickling.
#[pyfunction]
#[pyo3(name = "_array")]
pub fn array(py: Python<'_>, index: usize) -> PyResult<Bound<'_, PyAny>> {
    let found = INCOMING.with_borrow(|all| {
        let incoming = all.last()?;
        let view = incoming.views.get(index)?;
        Some((view.clone(), incoming.memory.get(view.memory as usize)?.clone()))
    });
    let (view, memory) = found.ok_or_else(|| missing(py, "array", index))?;
    rebuild(py, &view, memory)
}

/// Returns the Python object of the handle with this index in the message that this thread is unpickling.
#[pyfunction]
#[pyo3(name = "_handle")]
pub fn handle(py: Python<'_>, index: usize) -> PyResult<Bound<'_, PyAny>> {
    let found = INCOMING.with_borrow_mut(|all| all.last_mut()?.handles.get_mut(index)?.take());
    to_python(py, found.ok_or_else(|| missing(py, "handle", index))?)
}

fn missing(py: Python<'_>, what: &str, index: usize) -> PyErr {
    let error = format!("there is no {what} {index} in this message");
    PyValueError::new_err(library_copies::explained(py, error, library_copies::OBJECTS))
}

/// Returns the function that pickled bytes call to read an array.
pub(super) fn array_function(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    Ok(FUNCTION.import(py, home(py), "_array")?.clone())
}

fn handle_function(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    Ok(FUNCTION.import(py, home(py), "_handle")?.clone())
}

/// Name of the extension module that contains this copy of the library.
static HOME: PyOnceLock<String> = PyOnceLock::new();

/// Returns the name of the extension module that contains this copy of the library.
pub(super) fn home(py: Python<'_>) -> &'static str {
    HOME.get(py).map_or("multiproc._multiproc", String::as_str)
}

/// Sets the extension module that contains this copy of the library.
///
/// # Errors
/// `RuntimeError` if another module was set before.
pub fn set_home(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let name = module.name()?.to_string();
    if HOME.get(module.py()).is_none() {
        library_copies::add(module)?;
    }
    let home = HOME.get_or_init(module.py(), || name.clone());
    if *home == name {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!("this copy of the library belongs to the module {home}")))
}
