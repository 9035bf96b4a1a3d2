//! The command `mp`.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the command with these arguments. The first argument is the name of the program. Returns its exit
/// code.
#[pyfunction]
pub fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| multiproc_cli::run(arguments))
}
