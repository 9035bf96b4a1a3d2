//! Backoff after a lost race for a word.
//!
//! If two processes change the same words as fast as they can, each change takes the words' cache lines away
//! from the other process, and every second change fails. Without a backoff, two producers of one queue
//! together take three times as long for a message as one producer alone. If the process that lost a race
//! pauses for up to a microsecond, the other process continues at full speed. Either of them may lose the
//! next race, so they take turns by chance. No process waits *for* another one: a process that is killed or
//! stopped delays no other.
//!
//! A single loss among many changes should cost little, so the first pause is short. It is doubled while
//! losses follow each other.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::sys::environment;

/// First pause: the time that the other process needs to proceed.
const FIRST: Duration = Duration::from_nanos(250);
/// Longest pause. Longer pauses would speed up two competing processes, but delay processes that wait for
/// them.
const MOST: Duration = Duration::from_micros(1);

/// Time at which a thread last lost a race, and the length of the pause after that.
#[derive(Clone, Copy)]
struct Last {
    at: Instant,
    hold: Duration,
}

thread_local! {
    // fork: a hint; a copy may use the value of the original.
    static LAST: Cell<Option<Last>> = const { Cell::new(None) };
}

/// Pauses for up to a microsecond. Called after another process was faster.
#[cold]
pub(crate) fn back_off() {
    if environment::has_one_processor() {
        return;
    }
    let at = Instant::now();
    let last = LAST.try_with(Cell::get).ok().flatten();
    let hold = next(last.map(|last| (last.hold, at - last.at)));
    _ = LAST.try_with(|l| l.set(Some(Last { at, hold })));
    while at.elapsed() < hold {
        std::hint::spin_loop();
    }
}

/// Returns the next pause. `last` is the length of the last pause, and the time since its start.
fn next(last: Option<(Duration, Duration)>) -> Duration {
    match last {
        // The other process pauses for the same time before its next change.
        Some((hold, ago)) if ago <= 8 * hold => (2 * hold).min(MOST),
        _ => FIRST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_pauses_grow_with_consecutive_lost_races() {
        let mut hold = next(None);
        assert_eq!(hold, FIRST);
        for _ in 0..20 {
            hold = next(Some((hold, 2 * hold)));
        }
        assert_eq!(hold, MOST);
        assert_eq!(next(Some((hold, Duration::from_millis(1)))), FIRST, "one loss among many changes");
    }
}
