//! `Plan`: samples of each batch.

use mp::data::plan::{EpochOrder, Plan};
use mp_core::mutex::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Order of the samples of an epoch: a function of the length, the seed and the epoch.
#[pyclass(frozen, name = "Plan", module = "multiproc._multiproc")]
pub struct PyPlan(Mutex<EpochOrder>);

#[pymethods]
impl PyPlan {
    #[new]
    #[pyo3(signature = (length, batch_size, *, shuffle, seed, epoch, drop_last))]
    fn new(
        length: u64,
        batch_size: u64,
        shuffle: bool,
        seed: u64,
        epoch: u64,
        drop_last: bool,
    ) -> PyResult<Self> {
        let plan = Plan::builder(length).batch_size(batch_size).shuffle(shuffle).drop_last(drop_last);
        let plan = plan.seed(seed).build().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self(Mutex::new(plan.epoch(epoch))))
    }

    /// Returns the indices of a batch, or `None` after the last batch.
    fn batch(&self, py: Python<'_>, number: u64) -> PyResult<Option<Vec<u64>>> {
        let batch = py.detach(|| self.0.lock().batch(number));
        let batch = batch.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(batch.map(|batch| batch.items.iter().map(|item| item.index as u64).collect()))
    }
}
