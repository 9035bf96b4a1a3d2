//! Descriptor that reports events of many. Reference: `epoll(7)`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::error::Result;
use crate::sys::os;

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

    /// Requests one report when `fd` is readable (writable if `write`) or broken, also if it already is.
    /// Another call requests another report.
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
        // It fails only if it was never watched.
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
