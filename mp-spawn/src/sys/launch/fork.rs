//! Copying this process: `fork(3)`.
//!
//! # Safety
//! Unsafe, because a copy has one thread of several; what may run in it, the caller vouches for.
#![allow(unsafe_code)]

use std::io;

use rustix::process::Pid;

/// Copies this process, as `fork(3)` of the C library does it; `None` in the copy.
///
/// # Safety
/// What runs in the copy needs nothing that other threads of this process have half done, locks included.
pub(crate) unsafe fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the caller vouches for what runs in the copy.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}
