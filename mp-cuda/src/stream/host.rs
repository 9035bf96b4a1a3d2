//! Waits of hosts for work of devices.

use std::time::{Duration, Instant};

use mp_core::clocks::Tick;
use mp_core::waits::{BlockingCall, Subject, WaitObject};
use mp_core::{AdaptiveSpin, Arena, Blocking, Recovery, Wait, block_on};

use crate::error::{Error, Result};
use crate::stream::order::tick::is_complete;
use crate::stream::ownerless;

/// Shortest and longest sleep between two checks of a device's work.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// Blocks until a tick is complete, and returns `true`. Returns `false` after the time-out.
///
/// # Errors
/// Errors of [`is_complete`]; [`mp_core::Error::Interrupted`].
pub(crate) fn wait(tick: Tick, wait: Wait) -> Result<bool> {
    // Only the driver reports that a device of this process is lost.
    let check = || ownerless::stream_of(tick).map_or(Ok(()), |stream| stream.has_run().map(drop));
    until(|| is_complete(tick), check, &format!("{tick:?}"), wait)
}

/// Blocks until `look` returns `true` or an error, and returns that result. Returns `false` after the
/// time-out. Between two polls, recovers and reclaims dead processes if that is due, and calls `check`.
///
/// # Errors
/// Errors of `look` and `check`; [`mp_core::Error::Interrupted`].
pub(crate) fn until(
    look: impl FnMut() -> Result<bool>,
    check: impl FnMut() -> Result<()>,
    what: &str,
    wait: Wait,
) -> Result<bool> {
    let mut waiter = DeviceWaiter { arena: Arena::current()?, look, check, what, pause: PAUSES.0 };
    block_on(&mut waiter, &AdaptiveSpin::none(), wait).unwrap_or(Ok(false))
}

/// Waiter that polls, because a device's write wakes no thread.
struct DeviceWaiter<'a, L, C> {
    arena: Arena,
    look: L,
    check: C,
    what: &'a str,
    pause: Duration,
}

impl<L: FnMut() -> Result<bool>, C: FnMut() -> Result<()>> Blocking for DeviceWaiter<'_, L, C> {
    type Found = Result<bool>;

    fn attempt(&mut self) -> Option<Result<bool>> {
        match (self.look)() {
            Ok(false) => None,
            found => Some(found),
        }
    }

    fn on_interval(&mut self, _: Instant, _: bool) -> Option<Result<bool>> {
        // A recovery finds deaths, and ends the clocks of processes that died.
        let reclaimed = Recovery(self.arena).reclaim_if_due().map(drop).map_err(Error::from);
        reclaimed.and_then(|()| (self.check)()).err().map(Err)
    }

    fn interrupted(&mut self) -> Option<Result<bool>> {
        Some(Err(Error::Core(mp_core::Error::Interrupted)))
    }

    fn announce(&mut self) -> Option<u64> {
        Some(0)
    }

    fn sleep(&mut self, _: u64, _: Instant) -> bool {
        // sleep: a device's write wakes no thread.
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
        false
    }

    fn subject(&self) -> Subject {
        Subject::other(BlockingCall::Other, WaitObject::Other, format!("a device's work, {}", self.what))
    }
}
