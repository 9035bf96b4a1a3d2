//! Clock that all processes of a machine share, deadlines on it, and waits until a deadline.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Returns the instant after this time span, or `None`, which means never, if the clock overflows.
pub(crate) fn deadline(after: Duration) -> Option<Instant> {
    Instant::now().checked_add(after)
}

/// Returns `true` if this thread runs late: at least one second after `until`.
pub(crate) fn now_is_late(until: Instant) -> bool {
    until.elapsed() >= Duration::from_secs(1)
}

/// Returns the time of the monotonic clock in nanoseconds, which all processes of this machine share.
pub(crate) fn now() -> u64 {
    u64::try_from(mp_core::monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// Converts a time span for the kernel, plus a microsecond, because an early wake-up only leads to another
/// wait.
pub(crate) fn timespec(span: Duration) -> Timespec {
    let span = span.saturating_add(Duration::from_micros(1));
    Timespec {
        tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: span.subsec_nanos().into(),
    }
}

/// Waits until a descriptor is readable, or until a deadline. Returns `true` if it is readable.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, until: Option<Instant>) -> io::Result<bool> {
    loop {
        let left = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => {}
            polled => return Ok(polled? > 0),
        }
    }
}
