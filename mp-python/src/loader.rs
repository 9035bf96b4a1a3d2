//! Datasets in Rust as data loaders in Python: [`data_loader!`](crate::data_loader).

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use mp::data::{
    Batch, BatchInfo, Batches, Column, DataLoader, Dataset, LoadError, LoaderMetrics, LoaderState, NextBatch,
    NotReadyError, OnError,
};
use mp::message::Codec;
use mp::tensor::dispatch;
use mp_core::mutex::Mutex;
use mp_tensor::{AnyTensor, Element, Tensor, dlpack};
use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::error;
use crate::memory::Memory;
use crate::object::array;
use crate::object::view::{ElementType, Kind, View};
use crate::value::Value;
use crate::wait::{Attempt, limit, wait};

/// Defines a Python class that loads batches of a Rust [`Dataset`] with worker processes.
///
/// `data_loader!(Photos, Folder, |root: PathBuf| Folder::scan(&root))` makes the class `Photos`, whose
/// constructor takes `root` and torch's keywords. Arguments may have defaults (`|root: PathBuf, side: usize =
/// 224|`). The closure returns the dataset, or a `Result` of it. The crate that calls the macro depends on
/// `pyo3`.
///
/// ```ignore
/// use std::path::PathBuf;
///
/// mp_python::data_loader!(Photos, Folder, |root: PathBuf| Folder::scan(&root));
///
/// #[pyo3::pymodule(gil_used = false)]
/// mod photos {
///     use pyo3::prelude::*;
///
///     #[pymodule_export]
///     use super::Photos;
///
///     #[pymodule_init]
///     fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
///         mp_python::add_to(module)
///     }
/// }
/// ```
///
/// ```text
/// loader = photos.Photos("/data", batch_size=64, shuffle=True, seed=7, num_workers=4)
/// for epoch in range(3):
///     loader.set_epoch(epoch)
///     for pixels, classes in loader: ...
/// ```
///
/// | keyword | meaning |
/// |---|---|
/// | `batch_size=1`, `shuffle=False`, `drop_last=False`, `num_workers=0`, `prefetch_factor=None`, `in_order=True` | as in torch |
/// | `seed=0` | of the order, and of the samples' random numbers |
/// | `distributed=None` | `(rank, world)`, or `"env"` for the variables `RANK` and `WORLD_SIZE` |
/// | `threads_per_worker=1` | threads that write rows of one batch |
/// | `timeout=0` | seconds that `next` waits for a batch before it raises `LoadError`; 0 for no limit |
/// | `batch_timeout=0` | seconds that a worker may take for a batch before it is replaced; 0 for no limit |
/// | `retries=2` | times that a batch is made again after the death of its worker |
/// | `on_error="report"` | `"report"`, `"skip_sample"` or `"skip_batch"` |
/// | `memory_budget=None` | bytes of batches in advance |
/// | `pin_memory=False` | copies tensors of torch into pinned memory |
/// | `as_=None` | `"torch"` or `"numpy"`; without it, torch if it has been imported |
///
/// | column of a batch | Python |
/// |---|---|
/// | `Tensor<T>` | tensor or array over the batch's own memory, which is writable |
/// | `Ragged<T>` | `(values, offsets)` |
/// | `Strings` | `list[str]` |
/// | `Objects<T>` | list of numbers, texts, lists and dicts |
/// | tuple | tuple |
/// | struct with `#[derive(Batch)]` | dict |
#[macro_export]
macro_rules! data_loader {
    ($name:ident, $dataset:ty, |$($arg:ident : $type:ty $(= $default:tt)?),* $(,)?| $make:expr) => {
        /// Loads batches with worker processes.
        #[::pyo3::pyclass(frozen)]
        pub struct $name($crate::loader::Loader);

        #[::pyo3::pymethods]
        impl $name {
            #[new]
            #[pyo3(signature = (
                $($arg $(= $default)?,)* *, batch_size = 1, shuffle = false, seed = 0, num_workers = 0,
                drop_last = false, prefetch_factor = None, threads_per_worker = 1, timeout = 0.0,
                batch_timeout = 0.0, retries = 2, in_order = true, distributed = None, on_error = "report",
                memory_budget = None,
                pin_memory = false, as_ = None
            ))]
            #[allow(clippy::too_many_arguments)]
            fn new(
                py: ::pyo3::Python<'_>,
                $($arg: $type,)*
                batch_size: u64,
                shuffle: bool,
                seed: u64,
                num_workers: usize,
                drop_last: bool,
                prefetch_factor: Option<usize>,
                threads_per_worker: usize,
                timeout: f64,
                batch_timeout: f64,
                retries: u32,
                in_order: bool,
                distributed: Option<::pyo3::Bound<'_, ::pyo3::PyAny>>,
                on_error: &str,
                memory_budget: Option<usize>,
                pin_memory: bool,
                as_: Option<&str>,
            ) -> ::pyo3::PyResult<Self> {
                let settings = $crate::loader::Settings {
                    batch_size, shuffle, seed, num_workers, drop_last, prefetch_factor, threads_per_worker,
                    timeout, batch_timeout, retries, in_order, memory_budget, pin_memory,
                    distributed: $crate::loader::ranks(distributed.as_ref())?,
                    on_error: $crate::loader::on_error(on_error)?,
                    form: $crate::loader::form(as_)?,
                };
                let make = move || $crate::loader::IntoDataset::<$dataset>::into_dataset($make);
                $crate::loader::Loader::new::<$dataset>(py, make, settings).map(Self)
            }

            fn __iter__(&self, py: ::pyo3::Python<'_>) -> ::pyo3::PyResult<$crate::loader::LoaderIterator> {
                self.0.iter(py)
            }

            fn __len__(&self) -> ::pyo3::PyResult<usize> {
                self.0.len()
            }

            /// Sets the epoch that the next iteration begins.
            fn set_epoch(&self, epoch: u64) {
                self.0.set_epoch(epoch);
            }

            /// Returns the position after the delivered batches, for `load_state_dict`.
            fn state_dict<'py>(
                &self,
                py: ::pyo3::Python<'py>,
            ) -> ::pyo3::PyResult<::pyo3::Bound<'py, ::pyo3::types::PyDict>> {
                self.0.state_dict(py)
            }

            /// Continues from a position, in the running iteration or else in the next one.
            fn load_state_dict(
                &self,
                state_dict: &::pyo3::Bound<'_, ::pyo3::types::PyDict>,
            ) -> ::pyo3::PyResult<()> {
                self.0.load_state_dict(state_dict)
            }

            /// Returns times, counts and failures.
            fn metrics<'py>(
                &self,
                py: ::pyo3::Python<'py>,
            ) -> ::pyo3::PyResult<::pyo3::Bound<'py, ::pyo3::types::PyDict>> {
                self.0.metrics(py)
            }

            /// Process ids of the live workers.
            #[getter]
            fn pids(&self) -> Vec<u32> {
                self.0.pids()
            }

            /// Number of samples in a batch.
            #[getter]
            fn batch_size(&self) -> u64 {
                self.0.settings().batch_size
            }

            /// Number of worker processes.
            #[getter]
            fn num_workers(&self) -> usize {
                self.0.settings().num_workers
            }

            /// Ends the workers after the planned batches.
            fn close(&self) {
                self.0.close();
            }
        }
    };
}

/// Result of the closure of [`data_loader!`](crate::data_loader): a dataset, or a `Result` of it.
pub trait IntoDataset<D> {
    /// Returns the dataset.
    ///
    /// # Errors
    /// The error's text.
    fn into_dataset(self) -> Result<D, String>;
}

impl<D: Dataset> IntoDataset<D> for D {
    fn into_dataset(self) -> Result<D, String> {
        Ok(self)
    }
}

impl<D, E: Display> IntoDataset<D> for Result<D, E> {
    fn into_dataset(self) -> Result<D, String> {
        self.map_err(|error| error.to_string())
    }
}

/// Form of the columns in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tensors of torch.
    Torch,
    /// Arrays of numpy.
    Numpy,
}

/// Settings of a loader.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the keywords of `data_loader!`")]
pub struct Settings {
    pub batch_size: u64,
    pub shuffle: bool,
    pub seed: u64,
    pub num_workers: usize,
    pub drop_last: bool,
    pub prefetch_factor: Option<usize>,
    pub threads_per_worker: usize,
    pub timeout: f64,
    pub batch_timeout: f64,
    pub retries: u32,
    pub in_order: bool,
    pub distributed: Option<(u32, u32)>,
    pub on_error: OnError,
    pub memory_budget: Option<usize>,
    pub pin_memory: bool,
    pub form: Option<Form>,
}

/// Reads the keyword `distributed`.
///
/// # Errors
/// `ValueError` for another value than a pair of numbers and `"env"`, or without the variables.
pub fn ranks(distributed: Option<&Bound<'_, PyAny>>) -> PyResult<Option<(u32, u32)>> {
    let Some(given) = distributed.filter(|given| !given.is_none()) else { return Ok(None) };
    if let Ok(word) = given.extract::<String>() {
        let variable = |name: &str| std::env::var(name).ok()?.parse().ok();
        return match (word.as_str(), variable("RANK"), variable("WORLD_SIZE")) {
            ("env", Some(rank), Some(world)) => Ok(Some((rank, world))),
            ("env", ..) => Err(PyValueError::new_err(
                "distributed=\"env\" needs the environment variables RANK and WORLD_SIZE, with numbers",
            )),
            _ => Err(PyValueError::new_err("distributed is (rank, world) or \"env\"")),
        };
    }
    given.extract().map(Some).map_err(|_| PyValueError::new_err("distributed is (rank, world) or \"env\""))
}

/// Reads the keyword `on_error`.
///
/// # Errors
/// `ValueError` for an unknown word.
pub fn on_error(word: &str) -> PyResult<OnError> {
    match word {
        "report" => Ok(OnError::Report),
        "skip_sample" => Ok(OnError::SkipSample),
        "skip_batch" => Ok(OnError::SkipBatch),
        _ => Err(PyValueError::new_err("on_error is \"report\", \"skip_sample\" or \"skip_batch\"")),
    }
}

/// Reads the keyword `as_`.
///
/// # Errors
/// `ValueError` for an unknown word.
pub fn form(word: Option<&str>) -> PyResult<Option<Form>> {
    match word {
        None => Ok(None),
        Some("torch") => Ok(Some(Form::Torch)),
        Some("numpy") => Ok(Some(Form::Numpy)),
        Some(_) => Err(PyValueError::new_err("as_ is \"torch\" or \"numpy\"")),
    }
}

/// Returns the form if none was chosen: torch if it has been imported.
///
/// # Errors
/// If `sys.modules` is missing.
pub fn default_form(py: Python<'_>) -> PyResult<Form> {
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    Ok(if modules.contains(intern!(py, "torch"))? { Form::Torch } else { Form::Numpy })
}

/// A loader of any dataset.
trait AnyLoader: Send + Sync {
    fn len(&self) -> Option<u64>;
    fn begin(&self, epoch: u64) -> Box<dyn AnyBatches>;
    fn resume(&self, state: &LoaderState) -> Result<Box<dyn AnyBatches>, String>;
    fn metrics(&self) -> LoaderMetrics;
    fn pids(&self) -> Vec<u32>;
    fn close(&self);
}

/// The batches of an epoch, of any dataset.
trait AnyBatches: Send {
    fn next(&mut self, time: Duration) -> Result<Next, NotReadyError>;
    fn state(&self) -> LoaderState;
}

type Next = Option<Result<(BatchInfo, mp::data::AnyResult<Column>), LoadError>>;

impl<D: Dataset> AnyLoader for DataLoader<D> {
    fn len(&self) -> Option<u64> {
        self.batches_in_epoch(0)
    }

    fn begin(&self, epoch: u64) -> Box<dyn AnyBatches> {
        Box::new(self.epoch(epoch))
    }

    fn resume(&self, state: &LoaderState) -> Result<Box<dyn AnyBatches>, String> {
        let batches = DataLoader::resume(self, state).map_err(|error| error.to_string())?;
        Ok(Box::new(batches))
    }

    fn metrics(&self) -> LoaderMetrics {
        DataLoader::metrics(self)
    }

    fn pids(&self) -> Vec<u32> {
        DataLoader::pids(self)
    }

    fn close(&self) {
        DataLoader::close(self);
    }
}

impl<D: Dataset> AnyBatches for Batches<D> {
    fn next(&mut self, time: Duration) -> Result<Next, NotReadyError> {
        let next: NextBatch<D::Batch> = self.next_timeout(time)?;
        Ok(next.map(|batch| {
            batch.map(|batch| {
                let (batch, info) = batch.into_parts();
                (info, batch.into_column())
            })
        }))
    }

    fn state(&self) -> LoaderState {
        Batches::state(self)
    }
}

/// Iteration that is running: `None` inside after its end.
type Running = Arc<Mutex<Option<Box<dyn AnyBatches>>>>;

/// Position of a loader between its iterations.
#[derive(Default)]
struct Position {
    /// Epoch that the next iteration begins.
    epoch: u64,
    /// State that it continues from instead.
    resumed: Option<LoaderState>,
    /// Last iteration.
    running: Option<Running>,
}

/// Loader behind a class of [`data_loader!`](crate::data_loader).
pub struct Loader {
    loader: Arc<dyn AnyLoader>,
    settings: Settings,
    position: Mutex<Position>,
}

impl Loader {
    /// Makes the dataset, and starts the workers.
    ///
    /// # Errors
    /// `RuntimeError` if the dataset can't be made or the workers can't be started, `ValueError` for an
    /// impossible setting.
    pub fn new<D: Dataset>(
        py: Python<'_>,
        make: impl FnOnce() -> Result<D, String> + Send,
        settings: Settings,
    ) -> PyResult<Self> {
        let (timeout, batch_timeout) = (settings.timeout, limit(true, Some(settings.batch_timeout))?);
        if limit(true, Some(timeout))?.is_none() || timeout < 0.0 || settings.batch_timeout < 0.0 {
            return Err(PyValueError::new_err("a timeout is 0 or a positive number of seconds"));
        }
        let start = || {
            let dataset = make().map_err(PyRuntimeError::new_err)?;
            let mut builder = DataLoader::builder(dataset)
                .batch_size(settings.batch_size)
                .shuffle(settings.shuffle)
                .seed(settings.seed)
                .drop_last(settings.drop_last)
                .num_workers(settings.num_workers)
                .threads_per_worker(settings.threads_per_worker)
                .retries(settings.retries)
                .in_order(settings.in_order)
                .on_error(settings.on_error);
            if let Some(batches) = settings.prefetch_factor {
                builder = builder.prefetch_factor(batches);
            }
            if let Some(bytes) = settings.memory_budget {
                builder = builder.memory_budget(bytes);
            }
            if let Some((rank, world)) = settings.distributed {
                builder = builder.distributed(rank, world);
            }
            if let Some(time) = batch_timeout.filter(|time| !time.is_zero()) {
                builder = builder.timeout(time);
            }
            builder.build().map_err(|error| match error {
                mp::data::BuildError::Pool(_) => PyRuntimeError::new_err(error.to_string()),
                error => PyValueError::new_err(error.to_string()),
            })
        };
        let loader = Arc::new(py.detach(start)?);
        Ok(Self { loader, settings, position: Mutex::default() })
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Begins an iteration over the batches of an epoch.
    ///
    /// # Errors
    /// `ValueError` if the loaded state is of another loader.
    pub fn iter(&self, py: Python<'_>) -> PyResult<LoaderIterator> {
        let mut position = self.position.lock();
        let batches = match position.resumed.take() {
            Some(state) => {
                position.epoch = state.epoch() + 1;
                self.loader.resume(&state).map_err(PyValueError::new_err)?
            }
            None => {
                let epoch = position.epoch;
                position.epoch += 1;
                self.loader.begin(epoch)
            }
        };
        let running: Running = Arc::new(Mutex::new(Some(batches)));
        position.running = Some(running.clone());
        let Settings { timeout, num_workers, pin_memory, form, .. } = self.settings;
        let form = form.map_or_else(|| default_form(py), Ok)?;
        let timeout = (timeout > 0.0).then_some(timeout);
        Ok(LoaderIterator { running, timeout, in_process: num_workers == 0, pin_memory, form })
    }

    /// Returns the number of batches of an epoch.
    ///
    /// # Errors
    /// `TypeError` if it is unknown.
    pub fn len(&self) -> PyResult<usize> {
        let batches = self.loader.len().and_then(|batches| usize::try_from(batches).ok());
        batches.ok_or_else(|| PyTypeError::new_err("the number of batches is unknown"))
    }

    /// Sets the epoch that the next iteration begins.
    pub fn set_epoch(&self, epoch: u64) {
        let mut position = self.position.lock();
        // A resumed epoch is set again by programs that call this for each epoch.
        if position.resumed.as_ref().is_some_and(|state| state.epoch() != epoch) {
            position.resumed = None;
        }
        position.epoch = epoch;
    }

    /// Returns the position after the delivered batches.
    ///
    /// # Errors
    /// `MemoryError` if there is no memory.
    pub fn state_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (epoch, resumed, running) = {
            let position = self.position.lock();
            (position.epoch, position.resumed.clone(), position.running.clone())
        };
        let state = match (resumed, running) {
            (None, Some(running)) => py.detach(|| running.lock().as_ref().map(|batches| batches.state())),
            (resumed, _) => resumed,
        };
        let dict = PyDict::new(py);
        dict.set_item("epoch", state.as_ref().map_or(epoch, LoaderState::epoch))?;
        dict.set_item("batch", state.as_ref().map_or(0, LoaderState::next))?;
        let bytes = state.map(|mut state| mp_reduce::to_bytes(&mut state)).transpose();
        dict.set_item("state", bytes.map_err(error::runtime)?.map(|bytes| PyBytes::new(py, &bytes)))?;
        Ok(dict)
    }

    /// Continues from a position: in the iteration that is running, or else in the next one.
    ///
    /// # Errors
    /// `ValueError` if it is not a state of such a loader.
    pub fn load_state_dict(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let item = |name: &str| {
            state.get_item(name)?.ok_or_else(|| PyValueError::new_err(format!("the state has no {name:?}")))
        };
        let epoch: u64 = item("epoch")?.extract()?;
        let bytes: Option<Vec<u8>> = item("state")?.extract()?;
        let mut position = self.position.lock();
        let Some(bytes) = bytes else {
            (position.epoch, position.resumed) = (epoch, None);
            if let Some(running) = &position.running {
                *running.lock() = None;
            }
            return Ok(());
        };
        let fingerprint = mp_reduce::TypeFingerprint::<LoaderState>::new().get();
        let state: LoaderState = mp_reduce::from_bytes(bytes, fingerprint)
            .map_err(|error| PyValueError::new_err(format!("the state can't be read: {error}")))?;
        let batches = self.loader.resume(&state).map_err(PyValueError::new_err)?;
        match &position.running {
            Some(running) if running.lock().is_some() => {
                *running.lock() = Some(batches);
                position.epoch = state.epoch() + 1;
            }
            _ => position.resumed = Some(state),
        }
        Ok(())
    }

    /// Returns times, counts and failures.
    ///
    /// # Errors
    /// `MemoryError` if there is no memory.
    pub fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let metrics = self.loader.metrics();
        let dict = PyDict::new(py);
        for (name, count) in [
            ("workers", metrics.workers as u64),
            ("batches", metrics.batches),
            ("samples", metrics.samples),
            ("bytes", metrics.bytes),
            ("ready", metrics.ready as u64),
            ("in_flight", metrics.in_flight as u64),
            ("failed", metrics.failed),
            ("skipped_samples", metrics.skipped_samples),
            ("skipped_batches", metrics.skipped_batches),
            ("restarts", metrics.restarts),
            ("retried", metrics.retried),
        ] {
            dict.set_item(name, count)?;
        }
        for (name, time) in [
            ("elapsed", metrics.elapsed),
            ("waited", metrics.waited),
            ("busy", metrics.busy),
            ("init", metrics.init),
            ("batch_p50", metrics.batch_p50),
            ("batch_p99", metrics.batch_p99),
        ] {
            dict.set_item(name, time.as_secs_f64())?;
        }
        dict.set_item("waiting_share", metrics.waiting_share())?;
        dict.set_item("text", metrics.to_string())?;
        Ok(dict)
    }

    /// Returns the process ids of the live workers.
    pub fn pids(&self) -> Vec<u32> {
        self.loader.pids()
    }

    /// Ends the workers after the planned batches.
    pub fn close(&self) {
        self.loader.close();
    }
}

/// Iterator over the batches of a loader.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct LoaderIterator {
    running: Running,
    timeout: Option<f64>,
    /// `true` if `next` makes the batch itself.
    in_process: bool,
    pin_memory: bool,
    form: Form,
}

#[pymethods]
impl LoaderIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ended = || Ok(None);
        let next = if self.in_process {
            py.detach(|| self.running.lock().as_mut().map_or_else(ended, |all| all.next(Duration::MAX)))
        } else {
            let attempt = |_, time: Duration| {
                // Another thread of this iterator waits for at most a slice of time.
                let Some(mut running) = self.running.try_lock_for(time) else { return Attempt::Late(None) };
                match running.as_mut().map_or_else(ended, |all| all.next(time)) {
                    Ok(next) => Attempt::Done(Ok(next)),
                    Err(late) => Attempt::Late(Some(late)),
                }
            };
            match wait(py, limit(true, self.timeout)?, None, attempt)? {
                Ok(next) => next,
                Err(late) => return Err(self.timed_out(py, late)),
            }
        };
        match next.map_err(|late| self.timed_out(py, Some(late)))? {
            Some(Ok((_, column))) => {
                let column = column.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
                to_python(py, column, self.form, self.pin_memory)
            }
            Some(Err(failed)) => Err(load_error(py, &failed)),
            None => {
                *self.running.lock() = None;
                Err(PyStopIteration::new_err(()))
            }
        }
    }
}

impl LoaderIterator {
    fn timed_out(&self, py: Python<'_>, late: Option<NotReadyError>) -> PyErr {
        let seconds = self.timeout.unwrap_or_default();
        let batch = late.as_ref().and_then(|late| late.batch);
        let text = late.map(|late| late.to_string()).unwrap_or_default();
        let error =
            error::LoadError::new_err(format!("DataLoader timed out after {seconds} seconds: {text}"));
        let (epoch, batch) = batch.unzip();
        with_attributes(py, error, [("epoch", epoch), ("batch", batch), ("index", None), ("worker", None)])
    }
}

fn with_attributes(py: Python<'_>, error: PyErr, numbers: [(&str, Option<u64>); 4]) -> PyErr {
    let value = error.value(py);
    let set = numbers.iter().try_for_each(|(name, number)| value.setattr(*name, *number));
    let rest = || ["signal", "stderr"].iter().try_for_each(|name| value.setattr(*name, py.None()));
    match set.and_then(|()| rest()) {
        Ok(()) => error,
        Err(other) => other,
    }
}

/// Returns Python's exception for a batch that could not be made.
fn load_error(py: Python<'_>, failed: &LoadError) -> PyErr {
    let error = error::LoadError::new_err(failed.to_string());
    let index = failed.item.map(|item| item.index as u64);
    let worker = failed.worker.map(|worker| worker as u64);
    let error = with_attributes(
        py,
        error,
        [("epoch", Some(failed.epoch)), ("batch", Some(failed.batch)), ("index", index), ("worker", worker)],
    );
    let value = error.value(py);
    let signal = value.setattr("signal", failed.signal().map(|signal| signal.number()));
    match signal.and_then(|()| value.setattr("stderr", failed.stderr())) {
        Ok(()) => error,
        Err(other) => other,
    }
}

/// Converts a column to a Python object, whose memory is the column's own.
fn to_python(py: Python<'_>, column: Column, form: Form, pin: bool) -> PyResult<Bound<'_, PyAny>> {
    Ok(match column {
        Column::Tensor(tensor) => {
            let array = tensor_to_python(py, tensor, form)?;
            if pin && form == Form::Torch { array.call_method0(intern!(py, "pin_memory"))? } else { array }
        }
        Column::Ragged { values, offsets } => {
            let values = to_python(py, Column::Tensor(values), form, pin)?;
            let offsets = to_python(py, Column::Tensor(offsets.into()), form, pin)?;
            PyTuple::new(py, [values, offsets])?.into_any()
        }
        Column::Strings(strings) => {
            let list = PyList::empty(py);
            for row in 0..strings.len() {
                let text = strings.get(row).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
                list.append(text)?;
            }
            list.into_any()
        }
        Column::Objects(objects) => {
            let list = PyList::empty(py);
            for bytes in objects {
                let mut incoming = mp::message::Incoming::from_plain(bytes);
                let value: Value = mp_reduce::MessagePack::read(&mut incoming).map_err(error::runtime)?;
                list.append(value.to_python(py)?)?;
            }
            list.into_any()
        }
        Column::Tuple(columns) => {
            let columns: PyResult<Vec<_>> =
                columns.into_iter().map(|column| to_python(py, column, form, pin)).collect();
            PyTuple::new(py, columns?)?.into_any()
        }
        Column::Struct(columns) => {
            let dict = PyDict::new(py);
            for (name, column) in columns {
                dict.set_item(name, to_python(py, column, form, pin)?)?;
            }
            dict.into_any()
        }
        other => {
            return Err(PyTypeError::new_err(format!("a column that Python has no type for: {other:?}")));
        }
    })
}

/// Converts a tensor that this process alone has to an array over the same memory.
///
/// # Errors
/// `RuntimeError` for an element type that DLPack or numpy has no name for.
pub fn tensor_to_python(py: Python<'_>, tensor: AnyTensor, form: Form) -> PyResult<Bound<'_, PyAny>> {
    let dtype = tensor.dtype();
    let known = dlpack::TYPES.iter().find(|(known, ..)| *known == dtype);
    let &(_, code, bits) =
        known.ok_or_else(|| PyRuntimeError::new_err(format!("Python has no tensors of {dtype}")))?;
    let strides = if tensor.is_contiguous() { &[][..] } else { tensor.strides() };
    let view = View {
        kind: if form == Form::Torch { Kind::Torch } else { Kind::Numpy },
        element: ElementType(code, bits),
        memory: 0,
        offset: (tensor.offset() * dtype.size()) as u64,
        shape: tensor.shape().iter().map(|&n| n as i64).collect(),
        strides: strides.iter().map(|&stride| (stride * dtype.size() as isize) as i64).collect(),
    };
    let memory = dispatch!(dtype, T => adopt::<T>(tensor));
    array::rebuild(py, &view, memory.map_err(error::runtime)?)
}

fn adopt<T: Element>(tensor: AnyTensor) -> mp_core::Result<Arc<Memory>> {
    let tensor: Tensor<T> = tensor.downcast().map_err(mp_core::Error::from)?;
    Ok(Memory::adopt_exclusive(tensor))
}
