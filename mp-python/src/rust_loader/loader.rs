//! Loader: its workers and settings, and the position between its iterations.

use std::sync::Arc;

use mp::data::{DataLoader, Dataset, LoaderState};
use mp_core::mutex::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::erased::{AnyLoader, Iteration};
use super::iterator::LoaderIterator;
use super::settings::{Settings, default_form};
use crate::error;
use crate::wait::limit;

/// Epoch, loaded state and last iteration of a loader, from which its next iteration begins.
#[derive(Default)]
struct Position {
    /// Epoch that the next iteration begins.
    epoch: u64,
    /// Loaded state. If there is one, the next iteration continues from it instead of beginning `epoch`.
    resumed: Option<LoaderState>,
    /// Iteration that was begun last.
    running: Option<Iteration>,
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
    /// `ValueError` if the loaded state was saved by a loader with other settings.
    pub fn iter(&self, py: Python<'_>) -> PyResult<LoaderIterator> {
        let Settings { timeout, num_workers, pin_memory, form, .. } = self.settings;
        let form = form.map_or_else(|| default_form(py), Ok)?;
        // No code of Python or of a dataset runs under the lock.
        let (epoch, resumed) = {
            let mut position = self.position.lock();
            let resumed = position.resumed.take();
            let epoch = resumed.as_ref().map_or(position.epoch, LoaderState::epoch);
            position.epoch = epoch + 1;
            (epoch, resumed)
        };
        let batches = match resumed {
            Some(state) => self.loader.resume(&state).map_err(PyValueError::new_err)?,
            None => self.loader.begin(epoch),
        };
        let running: Iteration = Arc::new(Mutex::new(Some(batches)));
        let before = self.position.lock().running.replace(running.clone());
        drop(before);
        let timeout = (timeout > 0.0).then_some(timeout);
        Ok(LoaderIterator::new(running, timeout, num_workers == 0, pin_memory, form))
    }

    /// Returns the number of batches of an epoch.
    ///
    /// # Errors
    /// `TypeError` if it is unknown.
    #[allow(clippy::len_without_is_empty, reason = "Python's `__len__`, which may raise")]
    pub fn len(&self) -> PyResult<usize> {
        let batches = self.loader.len().and_then(|batches| usize::try_from(batches).ok());
        batches.ok_or_else(|| PyTypeError::new_err("the number of batches is unknown"))
    }

    /// Sets the epoch that the next iteration begins.
    pub fn set_epoch(&self, epoch: u64) {
        let mut position = self.position.lock();
        // Programs that call this function for each epoch also call it for the resumed epoch, so the state
        // stays.
        if position.resumed.as_ref().is_some_and(|state| state.epoch() != epoch) {
            position.resumed = None;
        }
        position.epoch = epoch;
    }

    /// Returns the position after the batches that were delivered, as the loader's saved state.
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

    /// Loads a saved position. The running iteration continues from it, or the next iteration if none is
    /// running.
    ///
    /// # Errors
    /// `ValueError` if the state was saved by a loader with other settings, or can't be read.
    pub fn load_state_dict(&self, state: &Bound<'_, PyDict>) -> PyResult<()> {
        let item = |name: &str| {
            state.get_item(name)?.ok_or_else(|| PyValueError::new_err(format!("the state has no {name:?}")))
        };
        let epoch: u64 = item("epoch")?.extract()?;
        let bytes: Option<Vec<u8>> = item("state")?.extract()?;
        // Detached, since a thread that waits for a batch holds the lock of the iteration.
        state.py().detach(|| self.load(epoch, bytes)).map_err(PyValueError::new_err)
    }

    /// Sets the position to the serialized state, or to the beginning of the epoch if `bytes` is `None`.
    fn load(&self, epoch: u64, bytes: Option<Vec<u8>>) -> Result<(), String> {
        // A thread may hold the lock of the iteration while a batch is made, so this thread holds no other
        // lock when it waits for that lock.
        let running = self.position.lock().running.clone();
        let Some(bytes) = bytes else {
            if let Some(running) = running {
                *running.lock() = None;
            }
            let mut position = self.position.lock();
            (position.epoch, position.resumed) = (epoch, None);
            return Ok(());
        };
        let fingerprint = mp_reduce::TypeFingerprint::<LoaderState>::new().get();
        let state: LoaderState = mp_reduce::from_bytes(bytes, fingerprint)
            .map_err(|error| format!("the state can't be read: {error}"))?;
        let batches = self.loader.resume(&state)?;
        if let Some(running) = running {
            let mut running = running.lock();
            if running.is_some() {
                *running = Some(batches);
                self.position.lock().epoch = state.epoch() + 1;
                return Ok(());
            }
        }
        self.position.lock().resumed = Some(state);
        Ok(())
    }

    /// Returns statistics of the loader: times, counts and failures.
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

    /// Ends the workers after they have made the batches that are planned already.
    pub fn close(&self) {
        self.loader.close();
    }
}
