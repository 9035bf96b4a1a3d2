//! File descriptors: which are inherited, which are clear of the standard streams, how many one message carries.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::sys;

/// As many as the kernel lets one message carry, beside our own.
pub(crate) const MOST_INHERITED: usize = 200;
/// The most file descriptors that go to a process for our own use.
pub(crate) const OWN_FDS: usize = 4;
/// The most that go to it.
pub(crate) const MAX_FDS: usize = OWN_FDS + MOST_INHERITED;

/// A program may have closed its standard streams, and their numbers get reused.
pub(crate) fn above_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    const FIRST: i32 = 3;
    if fd.as_raw_fd() >= FIRST { Ok(fd) } else { Ok(rustix::io::fcntl_dupfd_cloexec(&fd, FIRST)?) }
}

/// The numbers of the files that a program which is executed from here would find, the standard streams apart.
pub(crate) fn inheritable() -> Vec<RawFd> {
    let numbers: Vec<RawFd> = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect(),
        // Where there is no `/proc`, as many as there may be, within reason.
        Err(_) => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
            (3..limit.map_or(1 << 16, |limit| limit.min(1 << 16)) as RawFd).collect()
        }
    };
    numbers.into_iter().filter(|number| *number >= 3 && sys::is_inheritable(*number)).collect()
}
