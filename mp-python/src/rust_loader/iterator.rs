//! Iterator over the batches of an epoch, and its exceptions.

use std::time::Duration;

use mp::data::{LoadError, NotReadyError};
use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::prelude::*;

use super::column::to_python;
use super::erased::Iteration;
use super::settings::Form;
use crate::error;
use crate::wait::{Attempt, limit, wait};

/// Iterator over the batches of a loader.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct LoaderIterator {
    running: Iteration,
    timeout: Option<f64>,
    /// `true` if the loader has no workers, so `next` makes the batch in this process.
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
                py.detach(|| *self.running.lock() = None);
                Err(PyStopIteration::new_err(()))
            }
        }
    }
}

impl LoaderIterator {
    /// Returns an iterator over the batches of an iteration that has begun.
    pub(super) fn new(
        running: Iteration,
        timeout: Option<f64>,
        in_process: bool,
        pin_memory: bool,
        form: Form,
    ) -> Self {
        Self { running, timeout, in_process, pin_memory, form }
    }

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
