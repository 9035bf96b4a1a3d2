//! Move of a spinning thread away from a processor that it shares with the thread it waits for.
//!
//! The kernel often puts a woken thread on the processor of its waker, above all on a virtual machine, where
//! a halted processor does not count as idle. If both threads then answer each other, neither sleeps for long
//! enough to be moved. Each message costs two context switches, 17 µs instead of 5, until the kernel balances
//! its run queues, 10 to 30 ms later.
//!
//! A spinning thread detects this: it yields, another thread runs, and then the result has arrived. After
//! [`WAITS_BEFORE_MOVE`] such waits in a row, the thread excludes its processor from its affinity, and allows
//! it again at once. A thread does so only if it may run on all processors, so that no affinity chosen by the
//! user is lost.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::sys::affinity::leave_processor;

/// Minimum duration of a yield after which the thread assumes that another thread has run on its processor.
pub(super) const MIN_SHARED_YIELD: Duration = Duration::from_micros(1);
/// Number of successive waits ended by a thread on the same processor, after which the waiting thread moves.
const WAITS_BEFORE_MOVE: u32 = 16;
/// Time after a move in which the thread does not move again. Doubled by each move that does not help.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum of the doubled [`PAUSE`].
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Thread's count of waits ended by a thread on the same processor, and its last move.
#[derive(Clone, Copy)]
struct SharingState {
    ended: u32,
    moved: Option<Instant>,
    pause: Duration,
}

impl SharingState {
    const NONE: Self = Self { ended: 0, moved: None, pause: PAUSE };

    /// Records a wait, and returns `true` if the thread should move.
    fn record_wait(&mut self, shared: bool, now: impl FnOnce() -> Instant) -> bool {
        if !shared {
            (self.ended, self.pause) = (0, PAUSE);
            return false;
        }
        self.ended += 1;
        if self.ended < WAITS_BEFORE_MOVE {
            return false;
        }
        self.ended = 0;
        let now = now();
        if let Some(moved) = self.moved {
            if now < moved + self.pause {
                return false;
            }
            self.pause = (2 * self.pause).min(MAX_PAUSE);
        }
        self.moved = Some(now);
        true
    }
}

thread_local! {
    // fork: a copy continues with what its thread has counted, which does no harm.
    static STATE: Cell<SharingState> = const { Cell::new(SharingState::NONE) };
}

/// Records a wait that found its result. `shared` is `true` if another thread ran on this processor just
/// before the result was found.
pub(super) fn record_wait(shared: bool) {
    let mut state = STATE.get();
    let moves = state.record_wait(shared, Instant::now);
    STATE.set(state);
    if moves {
        leave_processor();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of moves in 10 s, with a wait each 100 µs, of which every `alone`th is ended by a
    /// thread on another processor.
    fn moves(alone: u32) -> usize {
        let (start, mut state) = (Instant::now(), SharingState::NONE);
        let moves = |i| state.record_wait(i % alone != alone - 1, || start + i * Duration::from_micros(100));
        (0..100_000).map(moves).filter(|&moves| moves).count()
    }

    #[test]
    fn spinning_thread_changes_processors_at_limited_rate() {
        assert_eq!(moves(WAITS_BEFORE_MOVE), 0);
        let mostly_shared = moves(WAITS_BEFORE_MOVE + 1);
        assert!((1_000..=2_000).contains(&mostly_shared), "{mostly_shared} moves");
        assert!((10..=20).contains(&moves(u32::MAX)), "{} moves", moves(u32::MAX));
    }
}
