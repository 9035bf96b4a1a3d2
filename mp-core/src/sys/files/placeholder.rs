//! # Safety
//! Replaces open files in a forked copy of a process. Unsafe, because any code may use the number of an open
//! file. Sound, because the callers vouch that no code uses the file. In addition, the number stays in use:
//! if its owner closes the number later, the replacement is closed, and no other file.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::EventfdFlags;
use rustix::io::Errno;

/// Creates a file that replaces open files of a forked copy.
pub(crate) fn new() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
}

/// Closes the file `fd`, and makes its number refer to the file `placeholder`. Reference: `dup2(2)`.
///
/// # Safety
/// `fd` is open, and no code in this process relies on the file.
pub(crate) unsafe fn replace(fd: RawFd, placeholder: BorrowedFd<'_>) {
    // SAFETY: numbers of open files; the caller vouches that `fd` may be closed. The call can't fail for such
    // numbers, except with EINTR (but signals are blocked) or EBUSY (while another thread opens files, but
    // there is no other thread).
    _ = unsafe { libc::dup3(placeholder.as_raw_fd(), fd, libc::O_CLOEXEC) };
}
