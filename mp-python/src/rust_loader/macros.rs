//! The macro that defines the class of a dataset.

/// Defines a Python class that loads batches of a Rust [`Dataset`](mp::data::Dataset) with worker
/// processes.
///
/// `data_loader!(Photos, Folder, |root: PathBuf| Folder::scan(&root))` makes the class `Photos`, whose
/// constructor takes `root` and torch's keywords. Arguments may have defaults
/// (`|root: PathBuf, side: usize = 224|`). The closure returns the dataset, or a `Result` of it. The crate
/// that calls the macro depends on `pyo3`.
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
/// | `seed=0` | seed of the order of samples, and of their random numbers |
/// | `distributed=None` | `(rank, world)`, or `"env"` for the variables `RANK` and `WORLD_SIZE` |
/// | `threads_per_worker=1` | number of threads in a worker that write the rows of one batch |
/// | `timeout=0` | number of seconds that `next` waits for a batch before it raises `LoadError`; 0 for no limit |
/// | `batch_timeout=0` | number of seconds that a worker may take for a batch before it is replaced; 0 for no limit |
/// | `retries=2` | number of times that a batch is made again after the death of its worker |
/// | `on_error="report"` | action after the error of a sample: `"report"`, `"skip_sample"` or `"skip_batch"` |
/// | `memory_budget=None` | maximum number of bytes of the batches that are planned, running or ready |
/// | `pin_memory=False` | `True` copies tensors of torch into pinned memory |
/// | `as_=None` | form of the columns: `"torch"` or `"numpy"`; `None` selects torch if it has been imported, otherwise numpy |
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
        /// Data loader of the dataset, with worker processes.
        #[::pyo3::pyclass(frozen)]
        pub struct $name($crate::rust_loader::Loader);

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
            #[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
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
                let settings = $crate::rust_loader::Settings {
                    batch_size, shuffle, seed, num_workers, drop_last, prefetch_factor, threads_per_worker,
                    timeout, batch_timeout, retries, in_order, memory_budget, pin_memory,
                    distributed: $crate::rust_loader::ranks(distributed.as_ref())?,
                    on_error: $crate::rust_loader::on_error(on_error)?,
                    form: $crate::rust_loader::form(as_)?,
                };
                let make = move || $crate::rust_loader::IntoDataset::<$dataset>::into_dataset($make);
                $crate::rust_loader::Loader::new::<$dataset>(py, make, settings).map(Self)
            }

            fn __iter__(
                &self,
                py: ::pyo3::Python<'_>,
            ) -> ::pyo3::PyResult<$crate::rust_loader::LoaderIterator> {
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

            /// Loads a saved position. The running iteration continues from it, or the next iteration if none
            /// is running.
            fn load_state_dict(
                &self,
                state_dict: &::pyo3::Bound<'_, ::pyo3::types::PyDict>,
            ) -> ::pyo3::PyResult<()> {
                self.0.load_state_dict(state_dict)
            }

            /// Returns statistics of the loader: times, counts and failures.
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

            /// Ends the workers after they have made the batches that are planned already.
            fn close(&self) {
                self.0.close();
            }
        }
    };
}
