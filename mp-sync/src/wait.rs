//! Waits on a parking word, with checks for dead processes.

use std::time::Instant;

use mp_core::waits::{BlockingCall, Subject};
use mp_core::{AdaptiveSpin, Blocking, Error, LivenessTimer, Parking, Result, Wait, block_on};

use crate::shared::Shared;

/// Target of a wait: the structure, the word that the thread sleeps on, and the kind of call for reports.
pub(crate) type WaitTarget<'a> = (&'a Shared, Parking, BlockingCall);

/// A thread that waits at a `target` until `attempt` returns a value. `check` recovers the effects of dead
/// processes.
struct SyncWaiter<'a, Attempt, Check> {
    target: WaitTarget<'a>,
    attempt: Attempt,
    check: Check,
    liveness: LivenessTimer,
    wait: Wait,
    /// `true` if Ctrl-C ends the wait.
    interruptible: bool,
}

impl<R, Attempt: FnMut() -> Option<R>, Check: FnMut() -> Option<R>> Blocking
    for SyncWaiter<'_, Attempt, Check>
{
    type Found = Result<R>;

    fn attempt(&mut self) -> Option<Result<R>> {
        (self.attempt)().map(Ok)
    }

    fn on_interval(&mut self, now: Instant, over: bool) -> Option<Result<R>> {
        match self.liveness.is_due(self.target.0.arena(), now, over) {
            Ok(true) => (self.check)().map(Ok),
            Ok(false) => None,
            Err(e) => Some(Err(e)),
        }
    }

    fn interrupted(&mut self) -> Option<Result<R>> {
        self.interruptible.then_some(Err(Error::Interrupted))
    }

    fn announce(&mut self) -> Option<u64> {
        Some(self.target.1.announce())
    }

    fn sleep(&mut self, announced: u64, _: Instant) -> bool {
        self.liveness.park(&self.target.1, announced, self.wait)
    }

    fn subject(&self) -> Subject {
        let hold = self.target.0.structure().hold();
        Subject::block(self.target.2, hold.arena(), hold.block())
    }
}

/// Waits until `attempt` returns a value. Returns `None` when the time has expired. `check` recovers the
/// effects of dead processes. If `interruptible`, Ctrl-C ends the wait as well, see
/// [`interrupted`](mp_core::interrupted).
#[track_caller]
pub(crate) fn until<R>(
    target: WaitTarget<'_>,
    spin: &AdaptiveSpin,
    wait: Wait,
    mut attempt: impl FnMut() -> Option<R>,
    check: impl FnMut() -> Option<R>,
    interruptible: bool,
) -> Result<Option<R>> {
    if let Some(found) = attempt() {
        return Ok(Some(found));
    }
    let liveness = LivenessTimer::default();
    let mut waiter = SyncWaiter { target, attempt, check, liveness, wait, interruptible };
    block_on(&mut waiter, spin, wait).transpose()
}
