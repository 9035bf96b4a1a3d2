//! File descriptors: inheritance, numbers above the standard streams, limits of a message.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::retry_on_intr;
use rustix::net::SendFlags;

use crate::error::{Result, launch_error};
use crate::sys;

/// Maximum number of inherited file descriptors. [`MAX_FDS`] stays below the kernel's limit of 253 for a
/// message.
pub(crate) const MOST_INHERITED: usize = 200;
/// Maximum number of file descriptors that a process receives for the use of this crate.
pub(crate) const OWN_FDS: usize = 4;
/// Maximum number of file descriptors that a process receives.
pub(crate) const MAX_FDS: usize = OWN_FDS + MOST_INHERITED;

/// Gives a descriptor a number above the standard streams. A program may have closed these streams, so that
/// new files get their numbers.
pub(crate) fn above_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    const FIRST: i32 = 3;
    if fd.as_raw_fd() >= FIRST { Ok(fd) } else { Ok(rustix::io::fcntl_dupfd_cloexec(&fd, FIRST)?) }
}

/// Duplicates a file to a number outside of `numbers` if its own number is among them. Otherwise returns
/// `None`.
pub(crate) fn moved_off(file: BorrowedFd<'_>, numbers: &[RawFd]) -> io::Result<Option<OwnedFd>> {
    if !numbers.contains(&file.as_raw_fd()) {
        return Ok(None);
    }
    let most = numbers.iter().max().copied().unwrap_or(0);
    Ok(Some(rustix::io::fcntl_dupfd_cloexec(file, most.saturating_add(1))?))
}

/// Returns the numbers of the files that an executed program would inherit, except the standard streams.
pub(crate) fn inheritable() -> Vec<RawFd> {
    let numbers: Vec<RawFd> = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect(),
        // Without `/proc`, all numbers up to the limit, at most 65,536.
        Err(_) => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
            (3..limit.map_or(1 << 16, |limit| limit.min(1 << 16)) as RawFd).collect()
        }
    };
    numbers.into_iter().filter(|number| *number >= 3 && sys::is_inheritable(*number)).collect()
}

/// Sends all bytes, without SIGPIPE.
pub(crate) fn send_all(socket: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let sent = retry_on_intr(|| rustix::net::send(socket, bytes, SendFlags::NOSIGNAL))?;
        bytes = bytes.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Creates an event that is readable once it is [notified](notify), or at once if `count` is not 0.
pub(crate) fn new_event(count: u32) -> Result<OwnedFd> {
    eventfd(count, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| launch_error("eventfd", None, error.into()))
}

/// Makes an event readable.
pub(crate) fn notify(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
