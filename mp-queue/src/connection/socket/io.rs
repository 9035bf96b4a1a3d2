//! Calls on sockets, and their errors.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::RecvFlags;

/// Reads available bytes.
pub(crate) fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(fd, buffer, RecvFlags::empty()).map(|(_, n)| n)
}

/// Converts the error into one of the standard library.
pub(crate) fn io_error(e: Errno) -> io::Error {
    e.into()
}
