//! # Safety
//! Which process is at the other end of a socket. Unsafe, because it is a call of the C library; sound,
//! because the kernel fills plain numbers in, of which any are valid. (`rustix` has a process id there that
//! can't be 0; the kernel says 0 of a process in another pid namespace.)
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::Result;
use crate::sys::readiness;

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

/// Whether a process lives, as far as this one can be told.
#[derive(Debug)]
pub enum Life {
    /// It does, and this is readable once it has ended, whatever copies of it there are.
    Lives(OwnedFd),
    /// It has ended.
    Ended,
    /// It is in another pid namespace, or this process has no descriptor to spare, or the kernel none of that kind.
    Unknown,
}

/// Whether a process lives, by its [`pid`](Peer::pid). If that was given to another process meanwhile, that one is looked at. Reference:
/// `pidfd_open(2)`, since Linux 5.3.
#[must_use]
pub fn life(pid: u32) -> Life {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Life::Unknown };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(life) => Life::Lives(life),
        Err(Errno::SRCH) => Life::Ended,
        Err(_) => Life::Unknown,
    }
}

/// Waits, without waking in between, until one of these is readable, or is at its end; which are. Reference: `poll(2)`.
///
/// # Errors
/// The kernel's: it has no memory.
pub fn until_readable(fds: &[BorrowedFd<'_>]) -> Result<Vec<bool>> {
    let fds: Vec<_> = fds.iter().map(|&fd| (fd, false)).collect();
    readiness::poll(&fds, None)
}
