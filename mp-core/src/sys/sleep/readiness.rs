//! Descriptors that are ready or not. References: `poll(2)`, `eventfd(2)`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::{Errno, read, write};

use crate::error::Result;
use crate::sys::os;

/// A counter behind a descriptor, which is readable as long as it is not zero.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        eventfd(0, flags).map(Self).map_err(os("eventfd (see RLIMIT_NOFILE)"))
    }

    /// Makes it readable.
    pub(crate) fn set(&self) {
        // It fails only where it counted to the end: then it is readable.
        _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it not readable.
    pub(crate) fn clear(&self) {
        // It fails only if it is zero.
        _ = read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Which of these are readable, or (where it says so) writable: waits until one is, at most until `deadline`. A descriptor
/// with an error or a hang-up counts: what is to be done with it does not wait.
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

/// Whether one is ready now.
pub(crate) fn is_ready(fd: BorrowedFd<'_>, write: bool) -> bool {
    poll(&[(fd, write)], Some(Instant::now())).is_ok_and(|ready| ready == [true])
}
