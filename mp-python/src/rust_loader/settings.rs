//! Arguments of a loader's constructor.

use std::fmt::Display;

use mp::data::{Dataset, OnError};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;

/// Result of the closure of [`data_loader!`](crate::data_loader): a dataset, or a `Result` of it.
pub trait IntoDataset<D> {
    /// Returns the dataset.
    ///
    /// # Errors
    /// Returns the text of the closure's error.
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
/// `ValueError` if the value is neither a pair of numbers nor `"env"`, or if a variable of `"env"` is
/// missing.
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

/// Returns the default form: torch if it has been imported, otherwise numpy.
///
/// # Errors
/// Returns an error if `sys.modules` is missing.
pub fn default_form(py: Python<'_>) -> PyResult<Form> {
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    Ok(if modules.contains(intern!(py, "torch"))? { Form::Torch } else { Form::Numpy })
}
