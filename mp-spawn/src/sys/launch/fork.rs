//! Copying this process: `fork(3)`.
//!
//! # Safety
//! Unsafe, because a copy has only one of several threads. The caller vouches for the code that runs in the
//! copy.
#![allow(unsafe_code)]

use std::io;

use rustix::process::Pid;

/// Copies this process with `fork(3)` of the C library. Returns `None` in the copy.
///
/// # Safety
/// Code that runs in the copy must not depend on unfinished work of other threads of this process, locks
/// included.
pub(crate) unsafe fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: the caller vouches for the code that runs in the copy.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}
