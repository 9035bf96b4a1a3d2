//! Readiness of descriptors. References: `poll(2)`, `eventfd(2)`, `epoll(7)`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
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

    /// Makes the descriptor readable.
    pub(crate) fn set(&self) {
        // The write fails only if the counter is at its maximum. The descriptor is readable then.
        _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor not readable.
    pub(crate) fn clear(&self) {
        // The read fails only if the counter is zero.
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

/// Maximum number of events returned at a time.
const AT_ONCE: usize = 64;

/// Watched descriptors, each with a number.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Epoll {
    pub(crate) fn new() -> Result<Self> {
        epoll::create(CreateFlags::CLOEXEC).map(Self).map_err(os("epoll_create1 (see RLIMIT_NOFILE)"))
    }

    /// Requests one report when `fd` is readable (writable if `write`) or broken. A descriptor that is ready
    /// already is reported at once. Another call requests another report.
    pub(crate) fn watch(&self, fd: impl AsFd, number: u64, write: bool) -> Result<()> {
        let events = if write { EventFlags::OUT } else { EventFlags::IN | EventFlags::RDHUP };
        let (data, events) = (EventData::new_u64(number), events | EventFlags::ONESHOT);
        match epoll::modify(&self.0, &fd, data, events) {
            Err(Errno::NOENT) => epoll::add(&self.0, &fd, data, events),
            done => done,
        }
        .map_err(os("epoll_ctl"))
    }

    /// Stops watching a descriptor.
    pub(crate) fn forget(&self, fd: impl AsFd) {
        // Fails only if the descriptor was never watched.
        _ = epoll::delete(&self.0, fd);
    }

    /// Blocks until a descriptor is ready. Returns the numbers of the ready ones.
    pub(crate) fn wait(&self) -> Result<Vec<u64>> {
        let mut events: Vec<Event> = Vec::with_capacity(AT_ONCE);
        match epoll::wait(&self.0, spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => Ok(events.iter().map(|event| event.data.u64()).collect()),
            Err(e) => Err(os("epoll_wait")(e)),
        }
    }
}

/// Returns a duplicate of a descriptor.
pub(crate) fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(os("fcntl(F_DUPFD_CLOEXEC) (see RLIMIT_NOFILE)"))
}
