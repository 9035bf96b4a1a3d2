//! Sharing strategies: the kinds of memory that an arena is made of.

use std::collections::HashSet;
use std::str::FromStr;

use mp::memory::SharingStrategy;
use pyo3::exceptions::PyAssertionError;
use pyo3::prelude::*;

use crate::error::runtime;

/// Returns the names of the sharing strategies.
#[pyfunction]
pub fn get_all_sharing_strategies() -> HashSet<String> {
    mp::memory::get_all_sharing_strategies().iter().map(ToString::to_string).collect()
}

/// Returns the name of the strategy for memory that this process allocates.
#[pyfunction]
pub fn get_sharing_strategy() -> String {
    mp::memory::get_sharing_strategy().to_string()
}

/// Sets the strategy for memory that this process allocates from now on: `"file_descriptor"` or
/// `"file_system"`.
#[pyfunction]
pub fn set_sharing_strategy(new_strategy: &str) -> PyResult<()> {
    // The exception that torch raises.
    let strategy = SharingStrategy::from_str(new_strategy)
        .map_err(|error| PyAssertionError::new_err(error.to_string()))?;
    mp::memory::set_sharing_strategy(strategy).map_err(runtime)
}
