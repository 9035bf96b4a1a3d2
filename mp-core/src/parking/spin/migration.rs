//! Move of a spinning thread away from a processor that it shares with the thread it waits for.
//!
//! The kernel often puts a woken thread on the processor of its waker, most of all on a virtual machine,
//! where a halted processor does not count as idle. If both then answer each other, neither sleeps for long
//! enough to be placed anew: each message costs two context switches, 17 µs instead of 5, until the kernel
//! balances its run queues, 10 to 30 ms later.
//!
//! A spinning thread sees that: it yields, another thread runs, and the result is there. After [`COMPANY`]
//! such waits in a row it excludes its processor from its affinity, and allows it again at once. It does so
//! only if it may run on all processors, so that neither pinning nor a set of processors is lost.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::sys::environment;

/// Shortest yield in which another thread runs.
pub(super) const ANOTHER_RAN: Duration = Duration::from_micros(1);
/// Number of successive waits that a thread on the same processor has ended, before the waiting thread moves.
const COMPANY: u32 = 16;
/// Time after a move in which the thread does not move again. Doubled by each move that does not help.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum of that time.
const MOST: Duration = Duration::from_secs(1);

/// What a thread knows of its processor.
#[derive(Clone, Copy)]
struct Company {
    /// Number of successive waits that a thread on the same processor has ended.
    ended: u32,
    moved: Option<Instant>,
    pause: Duration,
}

impl Company {
    const NONE: Self = Self { ended: 0, moved: None, pause: PAUSE };

    /// Records a wait, and returns `true` if the thread should move.
    fn found(&mut self, beside: bool, now: impl FnOnce() -> Instant) -> bool {
        if !beside {
            (self.ended, self.pause) = (0, PAUSE);
            return false;
        }
        self.ended += 1;
        if self.ended < COMPANY {
            return false;
        }
        self.ended = 0;
        let now = now();
        if let Some(moved) = self.moved {
            if now < moved + self.pause {
                return false;
            }
            self.pause = (2 * self.pause).min(MOST);
        }
        self.moved = Some(now);
        true
    }
}

thread_local! {
    // fork: a copy continues with what its thread has counted, which does no harm.
    static HERE: Cell<Company> = const { Cell::new(Company::NONE) };
}

/// Records a wait that found its result. `beside`: it was found after another thread had run on this
/// processor.
pub(super) fn found(beside: bool) {
    let mut here = HERE.get();
    let moves = here.found(beside, Instant::now);
    HERE.set(here);
    if moves {
        leave_processor();
    }
}

/// Moves this thread to another processor. Returns `false` if it may not run on all of them.
fn leave_processor() -> bool {
    let Ok(allowed) = sched_getaffinity(None) else { return false };
    if environment::online_processors() != Some(allowed.count()) || allowed.count() < 2 {
        return false;
    }
    let mut others = allowed;
    others.unset(environment::current_processor() as usize);
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
    // The kernel moves the thread before the first call returns. With all processors, later changes of the
    // machine's or the group's set apply to the thread as before.
    sched_setaffinity(None, &others).is_ok() && sched_setaffinity(None, &all).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own, since a thread that may not run on all processors does not move.
    #[test]
    fn thread_leaves_its_processor_and_keeps_its_affinity() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            if environment::online_processors() != Some(before.count()) || before.count() < 2 {
                environment::pin_to_current();
                assert!(!leave_processor());
                return;
            }
            let moved = (0..50).any(|_| {
                let here = environment::current_processor();
                assert!(leave_processor());
                // Load may move it back.
                environment::current_processor() != here
            });
            assert!(moved, "it is still on the same processor");
            assert_eq!(sched_getaffinity(None).unwrap(), before);
            environment::pin_to_current();
            assert!(!leave_processor(), "a pinned thread stays");
        })
        .join()
        .unwrap();
    }

    /// Returns the number of moves in 10 s, with a wait each 100 µs, of which every `alone`th is ended by a
    /// thread on another processor.
    fn moves(alone: u32) -> usize {
        let (start, mut here) = (Instant::now(), Company::NONE);
        let moves = |i| here.found(i % alone != alone - 1, || start + i * Duration::from_micros(100));
        (0..100_000).map(moves).filter(|&moves| moves).count()
    }

    #[test]
    fn moves_are_rare_and_rarer_if_they_do_not_help() {
        assert_eq!(moves(COMPANY), 0);
        assert!((1_000..=2_000).contains(&moves(COMPANY + 1)), "{} moves", moves(COMPANY + 1));
        assert!((10..=20).contains(&moves(u32::MAX)), "{} moves", moves(u32::MAX));
    }
}
