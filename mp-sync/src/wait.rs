//! Waiting at a parking word, and asking for dead processes in between.

use std::time::Instant;

use mp_core::{AdaptiveSpin, Arena, Blocking, LivenessTimer, Parking, Result, Wait, block_on};

/// A thread that waits at `parking` until `look` finds something. `ask` is for what dead processes have left.
struct Waiter<Look, Ask> {
    arena: Arena,
    parking: Parking,
    look: Look,
    ask: Ask,
    asking: LivenessTimer,
    wait: Wait,
}

impl<R, Look: FnMut() -> Option<R>, Ask: FnMut() -> Option<R>> Blocking for Waiter<Look, Ask> {
    type Found = Result<R>;

    fn attempt(&mut self) -> Option<Result<R>> {
        (self.look)().map(Ok)
    }

    fn on_interval(&mut self, now: Instant, over: bool) -> Option<Result<R>> {
        match self.asking.is_due(self.arena, now, over) {
            Ok(true) => (self.ask)().map(Ok),
            Ok(false) => None,
            Err(e) => Some(Err(e)),
        }
    }

    fn announce(&mut self) -> Option<u64> {
        Some(self.parking.announce())
    }

    fn sleep(&mut self, announced: u64, _: Instant) -> bool {
        self.parking.sleep_asking(announced, &self.asking, self.wait)
    }
}

/// Waits until `look` finds something; `None` when the time is over. `ask` is for what dead processes have
/// left.
pub(crate) fn until<R>(
    (arena, parking): (Arena, Parking),
    patience: &AdaptiveSpin,
    wait: Wait,
    mut look: impl FnMut() -> Option<R>,
    ask: impl FnMut() -> Option<R>,
) -> Result<Option<R>> {
    if let Some(found) = look() {
        return Ok(Some(found));
    }
    let mut waiter = Waiter { arena, parking, look, ask, asking: LivenessTimer::default(), wait };
    block_on(&mut waiter, patience, wait).transpose()
}
