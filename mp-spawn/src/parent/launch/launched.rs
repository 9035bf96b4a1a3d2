//! Process that was just launched, and the socket to it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;

use crate::sys::descriptors::above_standard;
use crate::sys::process_handle::ProcessHandle;

/// Process that was started just now.
#[derive(Debug)]
pub(crate) struct LaunchedProcess {
    pub(crate) pid: Pid,
    pub(crate) handle: ProcessHandle,
    /// Parent's end of its socket. Reads and writes don't block.
    pub(crate) socket: OwnedFd,
    pub(crate) nonce: u64,
}

/// Returns a random number that can't be guessed.
pub(crate) fn nonce() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Creates a socket pair. Both ends are close-on-exec and have numbers above the standard streams. The first
/// end doesn't block.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let (ours, theirs) = (above_standard(ours)?, above_standard(theirs)?);
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}
