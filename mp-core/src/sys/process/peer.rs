//! # Safety
//! Process at the other end of a socket. Unsafe, because a C function is called. Sound, because the kernel
//! writes plain numbers, of which all values are valid. (`rustix` uses a process id that can't be 0, but the
//! kernel reports 0 for a process in another pid namespace.)
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::Result;
use crate::sys::readiness;

/// Process that connected the other end of a socket, or began to listen there. Reference: `SO_PEERCRED` in
/// `unix(7)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// User of the process.
    pub uid: u32,
    /// Process id; 0 if it is in another pid namespace.
    pub pid: u32,
}

/// Returns the process at the other end of a Unix socket.
///
/// # Errors
/// The kernel's error, for example if the descriptor is not a socket.
pub fn credentials(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open; the kernel writes up to `len` bytes of numbers to `credentials`, which
    // has as many.
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

/// Observable state of a process.
#[derive(Debug)]
pub enum Liveness {
    /// The process is alive. The descriptor becomes readable when the process ends, even if forked copies of
    /// it live on.
    Alive(OwnedFd),
    /// The process has ended.
    Ended,
    /// The state is unknown: the process is in another pid namespace, no descriptor is available, or the
    /// kernel has no pidfds.
    Unknown,
}

/// Returns the state of the process with this [`pid`](Peer::pid). If the id was reused, the result is the
/// state of the new process. Reference: `pidfd_open(2)`, since Linux 5.3.
#[must_use]
pub fn liveness(pid: u32) -> Liveness {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Liveness::Unknown };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(life) => Liveness::Alive(life),
        Err(Errno::SRCH) => Liveness::Ended,
        Err(_) => Liveness::Unknown,
    }
}

/// Blocks until one of the descriptors is readable or at its end. Returns a flag for each descriptor. Sleeps
/// without a time-out. Reference: `poll(2)`.
///
/// # Errors
/// The kernel's error if it is out of memory.
pub fn until_readable(fds: &[BorrowedFd<'_>]) -> Result<Vec<bool>> {
    let fds: Vec<_> = fds.iter().map(|&fd| (fd, false)).collect();
    readiness::poll(&fds, None)
}
