//! Readiness of descriptors. References: `poll(2)`, `eventfd(2)`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::{Errno, read, write};

use crate::error::Result;
use crate::sys::os;

/// Counter with a descriptor, which is readable while the counter is not zero.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(Self).map_err(os("eventfd (see RLIMIT_NOFILE)"))
    }

    /// Makes it readable.
    pub(crate) fn set(&self) {
        // It fails only if the counter is at its maximum: it is readable then.
        _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it not readable.
    pub(crate) fn clear(&self) {
        // It fails only if the counter is zero.
        _ = read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of the descriptors is readable (or writable, if requested), at most until `deadline`.
/// Returns a flag for each. A descriptor with an error or a hang-up counts as ready, since operations on it
/// do not block.
pub(crate) fn poll(fds: &[(BorrowedFd<'_>, bool)], deadline: Option<Instant>) -> Result<Vec<bool>> {
    let events = |write| if write { PollFlags::OUT } else { PollFlags::IN };
    let mut asked: Vec<PollFd<'_>> =
        fds.iter().map(|&(fd, write)| PollFd::from_borrowed_fd(fd, events(write))).collect();
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let left = left
            .map(|d: Duration| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
        match rustix::event::poll(&mut asked, left.as_ref()) {
            Ok(_) => return Ok(asked.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(os("poll")(e)),
        }
    }
}

/// Returns `true` if the descriptor is ready now.
pub(crate) fn is_ready(fd: BorrowedFd<'_>, write: bool) -> bool {
    poll(&[(fd, write)], Some(Instant::now())).is_ok_and(|ready| ready == [true])
}
