//! State of a `Barrier`.

use std::time::Instant;

use mp::sync::{BarrierError, BarrierMember};
use mp_core::mutex::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use super::check_process;
use crate::error::runtime;
use crate::names::give;
use crate::object::handle::Handle;
use crate::object::pickle::reduce_handle;
use crate::wait::{Attempt, limit, wait};

/// Parties of a barrier between processes.
///
/// A process is a party from the moment when it receives the barrier or first waits at it, until it drops its
/// last handle or ends by itself. If it is killed, the barrier breaks.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct BarrierState {
    barrier: mp::Barrier,
    /// Membership of this process as a party, if it is one.
    party: Mutex<Option<BarrierMember>>,
}

impl BarrierState {
    /// Returns the state of a received barrier, and makes this process a party.
    pub(crate) fn received(barrier: mp::Barrier) -> Self {
        let state = Self { barrier, party: Mutex::new(None) };
        state.enroll();
        state
    }

    /// Makes this process a party. Does nothing if the barrier already has all of its parties. In that case
    /// the barrier does not detect the death of this process.
    fn enroll(&self) {
        let mut party = self.party.lock();
        if party.is_none() {
            *party = self.barrier.enroll().ok();
        }
    }
}

/// Returns the exception for an error of the barrier.
fn failed(py: Python<'_>, error: BarrierError) -> PyErr {
    static BROKEN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let BarrierError::Failed(error) = error {
        return runtime(error);
    }
    let class = BROKEN.import(py, "threading", "BrokenBarrierError");
    match class.and_then(|class| class.call1((error.to_string(),))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

#[pymethods]
impl BarrierState {
    #[new]
    fn new(parties: i64) -> PyResult<Self> {
        let valid = u32::try_from(parties).ok().filter(|&parties| parties > 0);
        let Some(parties) = valid else { return Err(PyValueError::new_err("parties must be >= 1")) };
        let barrier = mp::Barrier::new(parties).map_err(|error| match error {
            mp::Error::LimitExceeded(why) => PyValueError::new_err(why),
            error => runtime(error),
        })?;
        Ok(Self { barrier, party: Mutex::new(None) })
    }

    /// Waits until all parties have arrived. The last party calls `action` before the other parties continue.
    /// Returns an index that is different for each party.
    fn wait(&self, action: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<usize> {
        let py = action.py();
        let limit = limit(true, timeout)?;
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        check_process()?;
        self.enroll();
        let acts = !action.is_none();
        let arrival = wait(py, limit, (), |(), time| match self.barrier.arrive_timeout(time, acts) {
            Ok(None) => Attempt::Late(()),
            Ok(Some(arrival)) => Attempt::Done(Ok(arrival)),
            Err(error) => Attempt::Done(Err(error)),
        })?;
        let Ok(arrival) = arrival else {
            self.abort()?;
            return Err(failed(py, BarrierError::Aborted));
        };
        let arrival = arrival.map_err(|error| failed(py, error))?;
        if acts && arrival.is_last() {
            // After an exception the arrival is dropped, which breaks the barrier.
            action.call0()?;
            arrival.complete();
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let passed = wait(py, left, arrival, |mut arrival, time| match arrival.wait_timeout(time) {
            Ok(None) => Attempt::Late(arrival),
            Ok(Some(index)) => Attempt::Done(Ok(index)),
            Err(error) => Attempt::Done(Err(error)),
        })?;
        passed.unwrap_or_else(|arrival| arrival.time_out()).map_err(|error| failed(py, error))
    }

    /// Makes the barrier usable again. Parties that wait get BrokenBarrierError.
    fn reset(&self) -> PyResult<()> {
        self.barrier.reset().map_err(runtime)
    }

    /// Breaks the barrier. Parties that wait now or later get BrokenBarrierError.
    fn abort(&self) -> PyResult<()> {
        self.barrier.abort().map_err(runtime)
    }

    /// Ends this process's membership as a party.
    fn leave(&self) {
        *self.party.lock() = None;
    }

    /// Number of parties.
    #[getter]
    fn parties(&self) -> usize {
        self.barrier.parties()
    }

    /// Number of parties that wait.
    #[getter]
    fn n_waiting(&self) -> PyResult<usize> {
        check_process()?;
        Ok(self.barrier.n_waiting())
    }

    /// True if the barrier is broken.
    #[getter]
    fn broken(&self) -> PyResult<bool> {
        check_process()?;
        Ok(self.barrier.is_broken())
    }

    fn _give_name(&self, name: &str) -> PyResult<()> {
        give(|| self.barrier.clone().named(name))
    }

    fn _given_name(&self) -> Option<String> {
        self.barrier.given_name()
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        check_process()?;
        reduce_handle(py, "a barrier", Handle::Barrier(self.barrier.clone()))
    }
}
