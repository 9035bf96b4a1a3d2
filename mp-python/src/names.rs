//! Names of shared objects. Each class has a method `_give_name`, which `multiproc.named` calls.

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::check_process;

/// Calls `name`, which names an object and returns another handle to it. Drops the handle.
pub(crate) fn give<T>(name: impl FnOnce() -> T) -> PyResult<()> {
    check_process()?;
    name();
    Ok(())
}

/// Returns the name in quotes between the texts `before` and `after`, or an empty text if the object has no
/// name.
pub(crate) fn shown(py: Python<'_>, name: Option<String>, before: &str, after: &str) -> PyResult<String> {
    let Some(name) = name else { return Ok(String::new()) };
    Ok(format!("{before}{}{after}", PyString::new(py, &name).repr()?))
}
