//! Futures that wait for several descriptors.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::{Descriptor, WaitPoint, Waitable};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::{Address, ConnectError, waiting};

/// Waitable that is ready when an epoll instance has events, used by futures.
struct DescriptorEvents(Arc<OwnedFd>);

impl Waitable for DescriptorEvents {
    fn wait_point(&self) -> WaitPoint<'_> {
        WaitPoint::Readable(self.0.as_fd())
    }

    fn is_ready(&self) -> bool {
        Descriptor(self.0.as_fd()).is_ready()
    }
}

/// Calls `poll` each time `events` is readable, until `poll` returns a result.
pub(super) async fn until<R>(
    events: &Arc<OwnedFd>,
    address: &Address,
    mut poll: impl FnMut() -> Result<Option<R>, ConnectError>,
) -> Result<R, ConnectError> {
    let what = || Arc::new(DescriptorEvents(events.clone())) as mp_core::SharedWaitable;
    let found = mp_core::until(what, || Ok::<_, mp_core::Error>(poll().transpose())).await;
    found.map_err(|e| waiting(address, e))?
}

/// A descriptor that becomes readable at a set time.
pub(super) struct Timer(OwnedFd);

impl Timer {
    /// Creates a timer without a set time, which is never readable.
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Makes the timer readable from `until` on, or never if `None`.
    pub(super) fn set(&self, until: Option<Instant>) -> Result<(), Errno> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = until.map_or(zero, |until| {
            // Not zero, which would disarm the timer.
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
            let tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
            Timespec { tv_sec, tv_nsec: left.subsec_nanos().into() }
        });
        let timer = Itimerspec { it_interval: zero, it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &timer).map(drop)
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
