//! # Safety
//! Takes files away from the code that has them, in a forked copy of a process. Unsafe, because a number of a
//! file may be used by any code; sound, because its callers vouch that none does, and because the number
//! stays taken: an owner that still closes it closes this file, and reaches nothing else by it.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::EventfdFlags;
use rustix::io::Errno;

/// A file that means nothing.
pub(crate) fn new() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
}

/// Closes the file `fd`, and has the number mean `plug` from now on. Reference: `dup2(2)`.
///
/// # Safety
/// `fd` is open, and no code in this process relies on what it means.
pub(crate) unsafe fn put(fd: RawFd, plug: BorrowedFd<'_>) {
    // SAFETY: numbers of open files; that `fd` may be closed, the caller vouches for. It can't fail for such numbers but
    // by a signal (EINTR), which are blocked, or EBUSY, while another thread opens files, of which there is none.
    _ = unsafe { libc::dup3(plug.as_raw_fd(), fd, libc::O_CLOEXEC) };
}
