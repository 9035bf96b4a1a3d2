//! Waits on a parking word, with checks for dead processes.

use std::time::Instant;

use mp_core::waits::{Call, Subject};
use mp_core::{AdaptiveSpin, Blocking, Error, LivenessTimer, Parking, Result, Wait, block_on};

use crate::shared::Shared;

/// Structure that a thread waits for, word that it sleeps on, and call that reports name.
pub(crate) type Place<'a> = (&'a Shared, Parking, Call);

/// A thread that waits at a `place` until `look` returns a value. `ask` handles what dead processes left.
struct Waiter<'a, Look, Ask> {
    place: Place<'a>,
    look: Look,
    ask: Ask,
    asking: LivenessTimer,
    wait: Wait,
    /// `true` if Ctrl-C ends the wait.
    interruptible: bool,
}

impl<R, Look: FnMut() -> Option<R>, Ask: FnMut() -> Option<R>> Blocking for Waiter<'_, Look, Ask> {
    type Found = Result<R>;

    fn attempt(&mut self) -> Option<Result<R>> {
        (self.look)().map(Ok)
    }

    fn on_interval(&mut self, now: Instant, over: bool) -> Option<Result<R>> {
        match self.asking.is_due(self.place.0.arena(), now, over) {
            Ok(true) => (self.ask)().map(Ok),
            Ok(false) => None,
            Err(e) => Some(Err(e)),
        }
    }

    fn interrupted(&mut self) -> Option<Result<R>> {
        self.interruptible.then_some(Err(Error::Interrupted))
    }

    fn announce(&mut self) -> Option<u64> {
        Some(self.place.1.announce())
    }

    fn sleep(&mut self, announced: u64, _: Instant) -> bool {
        self.place.1.sleep_asking(announced, &self.asking, self.wait)
    }

    fn subject(&self) -> Subject {
        let hold = self.place.0.structure().hold();
        Subject::block(self.place.2, hold.arena(), hold.block())
    }
}

/// Waits until `look` returns a value. Returns `None` when the time is over. `ask` handles what dead
/// processes left.
pub(crate) fn until<R>(
    place: Place<'_>,
    patience: &AdaptiveSpin,
    wait: Wait,
    look: impl FnMut() -> Option<R>,
    ask: impl FnMut() -> Option<R>,
) -> Result<Option<R>> {
    until_or_interrupt(place, patience, wait, look, ask, false)
}

/// Waits like [`until`]. If `interruptible`, Ctrl-C ends the wait as well, see
/// [`interrupted`](mp_core::interrupted).
pub(crate) fn until_or_interrupt<R>(
    place: Place<'_>,
    patience: &AdaptiveSpin,
    wait: Wait,
    mut look: impl FnMut() -> Option<R>,
    ask: impl FnMut() -> Option<R>,
    interruptible: bool,
) -> Result<Option<R>> {
    if let Some(found) = look() {
        return Ok(Some(found));
    }
    let asking = LivenessTimer::default();
    let mut waiter = Waiter { place, look, ask, asking, wait, interruptible };
    block_on(&mut waiter, patience, wait).transpose()
}
