//! Class `Lease`: an object that stays in its queue until it is acknowledged.

use mp::queue::Lease as MessageLease;
use mp_core::mutex::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// An object taken by ``get_ack``. As a context manager, it returns the object, and acknowledges it if the
/// block ends without an exception.
#[pyclass(frozen, module = "multiproc._multiproc")]
pub struct Lease {
    value: Py<PyAny>,
    deliveries: u32,
    lease: Mutex<Option<MessageLease<()>>>,
}

impl Lease {
    /// Returns the Python object of a lease. A lease of `None` has ended.
    pub(super) fn new(value: Py<PyAny>, lease: Option<MessageLease<()>>) -> Self {
        let deliveries = lease.as_ref().map_or(1, MessageLease::deliveries);
        Self { value, deliveries, lease: Mutex::new(lease) }
    }
}

#[pymethods]
impl Lease {
    /// The object.
    #[getter]
    fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.value.clone_ref(py)
    }

    /// Number of times that the object was delivered: 1 for the first time.
    #[getter]
    fn deliveries(&self) -> u32 {
        self.deliveries
    }

    /// Removes the object from the queue. Raises ``ValueError`` if it was acknowledged or given back
    /// before.
    fn ack(&self) -> PyResult<()> {
        match self.lease.lock().take() {
            Some(lease) => {
                lease.ack();
                Ok(())
            }
            None => Err(PyValueError::new_err("the lease has ended")),
        }
    }

    /// Gives the object back to the queue, to be delivered again.
    fn give_back(&self) {
        let lease = self.lease.lock().take();
        drop(lease);
    }

    fn __enter__(&self, py: Python<'_>) -> Py<PyAny> {
        self.value(py)
    }

    fn __exit__(
        &self,
        class: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let lease = self.lease.lock().take();
        // A block may have ended the lease itself.
        if let (Some(lease), true) = (lease, class.is_none()) {
            lease.ack();
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        let state = if self.lease.lock().is_some() { "held" } else { "ended" };
        format!("<multiproc.Lease: {state}, delivery {}>", self.deliveries)
    }
}
