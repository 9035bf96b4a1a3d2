//! Files that an executed program inherits, and their numbers.
//!
//! # Safety
//! Unsafe, because it uses numbers that may not be open. Sound, because the kernel returns an error for such
//! a number, and no number of a file that other code uses is reassigned.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Returns `true` if a file has this number.
pub(crate) fn is_open(number: RawFd) -> bool {
    flags(number).is_some()
}

/// Returns `true` if an executed program inherits a file with this number.
pub(crate) fn is_inheritable(number: RawFd) -> bool {
    flags(number).is_some_and(|flags| flags & libc::FD_CLOEXEC == 0)
}

fn flags(number: RawFd) -> Option<c_int> {
    // SAFETY: a command without an argument. For a number that is not open, the call returns an error.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    (flags != -1).then_some(flags)
}

/// Duplicates a file to another number, without close-on-exec.
pub(crate) fn place(file: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: the file is open. This process has one thread, and either no file has this number, which the
    // callers have checked; or it is a copy, by `fork`, and the caller of `allow_fork` vouches that nothing
    // there relies on the file that has the number.
    if unsafe { libc::dup2(file.as_raw_fd(), number) } == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Asks the kernel to kill this process at an event on this file: see `F_SETSIG` in `fcntl(2)`.
#[inline]
pub(crate) fn kill_on_close(file: BorrowedFd<'_>) -> io::Result<()> {
    const F_SETSIG: c_int = 10;
    let me = rustix::process::getpid().as_raw_nonzero().get();
    for (command, value) in
        [(libc::F_SETOWN, me), (F_SETSIG, libc::SIGKILL), (libc::F_SETFL, libc::O_RDONLY | libc::O_ASYNC)]
    {
        // SAFETY: the file is open, and each of these commands takes an integer.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, value) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
