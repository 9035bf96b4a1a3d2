//! The system calls that have no safe wrapper elsewhere, and what this crate reads of `/proc`.

pub(crate) mod clock;
pub(crate) mod descriptors;
pub(crate) mod environment;
mod exec;
mod exit;
pub(crate) mod file_privileges;
mod fork;
mod inherited;
pub(crate) mod log_event;
pub(crate) mod oom;
pub(crate) mod proc_stat;
pub(crate) mod process_handle;
pub(crate) mod processors;
mod receive;
mod signals;
mod thread;

use std::ffi::c_int;
use std::io;

use rustix::process::Pid;

pub(crate) use exec::*;
pub(crate) use exit::*;
pub(crate) use fork::*;
pub(crate) use inherited::*;
pub(crate) use receive::*;
pub(crate) use signals::*;
pub(crate) use thread::*;

fn check(error: c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// A process id as the standard library has it.
pub(crate) fn pid_number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}
