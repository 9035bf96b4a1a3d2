//! Copies of this library in one interpreter. Each extension module that links the library has its own copy,
//! with its own objects and memory.

use std::fmt::Display;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Attribute of `sys` with the names of the modules that have a copy, which all copies read and extend.
const LIST: &str = "_multiproc_copies";

/// Adds the module of this copy to the interpreter's list.
///
/// # Errors
/// `TypeError` if other code has replaced the list.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let sys = module.py().import("sys")?;
    let list = match sys.getattr_opt(LIST)? {
        Some(list) => list.cast_into::<PyList>()?,
        None => {
            let list = PyList::empty(module.py());
            sys.setattr(LIST, &list)?;
            list
        }
    };
    list.append(module.name()?)
}

/// Returns a text that lists the modules with a copy, or `None` if there is only one.
fn names(py: Python<'_>) -> Option<String> {
    let list: Vec<String> = py.import("sys").ok()?.getattr(LIST).ok()?.extract().ok()?;
    let (last, others) = list.split_last()?;
    (!others.is_empty()).then(|| format!("{} and {last}", others.join(", ")))
}

/// Returns the text of an error that several copies of the library can cause. If the process has several
/// copies, the text names them and the violated `rule`.
pub(crate) fn explained(py: Python<'_>, error: impl Display, rule: &str) -> String {
    match names(py) {
        Some(names) => {
            format!("{error}. This process has several copies of the library, in the modules {names}: {rule}")
        }
        None => error.to_string(),
    }
}

/// Rule that is added to errors about objects: objects of one copy are unusable in another copy.
pub(crate) const OBJECTS: &str = "an object of one copy can be sent and received only by that copy. Use \
                                  the functions of its module, or send tensors, arrays or bytes, which are \
                                  copied";
/// Rule that is added to errors about another program's memory: only one copy can join it.
pub(crate) const MEMORY: &str = "one of them may have joined the other program, and only one can. Call \
                                 `accept_invitation` and `child` in one of these modules only";

/// Returns a `RuntimeError`: see [`explained`].
pub(crate) fn error(error: impl Display, rule: &str) -> PyErr {
    PyRuntimeError::new_err(Python::attach(|py| explained(py, error, rule)))
}
