//! A host that waits for a tick.

use std::time::{Duration, Instant};

use mp_core::clocks::Tick;
use mp_core::waits::{Call, On, Subject};
use mp_core::{AdaptiveSpin, Arena, Blocking, Wait, block_on};

use crate::error::{Error, Result};
use crate::order::clock::is_complete;

/// The shortest and the longest sleep between two looks at a word that a device will write.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// Waits until a tick is complete; whether it is.
///
/// # Errors
/// As [`is_complete`]; [`mp_core::Error::Interrupted`].
pub(crate) fn wait(tick: Tick, wait: Wait) -> Result<bool> {
    let mut waiter = Waiter { arena: Arena::current()?, tick, pause: PAUSES.0 };
    block_on(&mut waiter, &AdaptiveSpin::none(), wait).unwrap_or(Ok(false))
}

/// A thread that looks again and again, since a device's write wakes no thread.
struct Waiter {
    arena: Arena,
    tick: Tick,
    pause: Duration,
}

impl Blocking for Waiter {
    type Found = Result<bool>;

    fn attempt(&mut self) -> Option<Result<bool>> {
        match is_complete(self.tick) {
            Ok(false) => None,
            found => Some(found),
        }
    }

    fn on_interval(&mut self, _: Instant, _: bool) -> Option<Result<bool>> {
        // A sweep finds deaths, and ends the clocks of processes that died.
        self.arena.sweep_if_due().err().map(|error| Err(error.into()))
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
        Subject::other(Call::Other, On::Other, format!("a device's work, {:?}", self.tick))
    }
}
