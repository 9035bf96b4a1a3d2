//! # Safety
//! Which process is at the other end of a socket. Unsafe, because it is a call of the C library; sound,
//! because the kernel fills plain numbers in, of which any are valid. (`rustix` has a process id there that
//! can't be 0; the kernel says 0 of a process in another pid namespace.)
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The process at the other end, as of the time when it connected, or began to listen. Reference:
/// `SO_PEERCRED` in `unix(7)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The user that it ran as.
    pub uid: u32,
    /// 0 if it is in another pid namespace.
    pub pid: u32,
}

/// The process at the other end of a Unix socket.
///
/// # Errors
/// The kernel's: it is no socket.
pub fn of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a descriptor that is open; the kernel writes up to `len` bytes of numbers to `credentials`, which has as many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { uid: credentials.uid, pid: credentials.pid.unsigned_abs() })
}
