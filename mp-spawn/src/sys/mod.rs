//! System calls that have no safe wrapper elsewhere, and readers for `/proc`.

mod clock;
mod descriptors;
mod launch;
pub(crate) mod log_event;
mod process;
mod receive;
pub(crate) mod start_span;

use std::ffi::c_int;
use std::io;

use rustix::process::Pid;

pub(crate) use clock::*;
pub(crate) use descriptors::*;
pub(crate) use launch::*;
pub(crate) use process::*;
pub(crate) use receive::*;

fn check(error: c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Converts a process id for the standard library.
pub(crate) fn pid_number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}
