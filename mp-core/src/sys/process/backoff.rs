//! How long a process leaves a word alone that another one was faster to change.
//!
//! Where two processes change the same words as fast as they can, each change takes the words' cache lines
//! away from the other one, and every second change comes too late and is made in vain: two producers of one
//! queue together took three times as long for a message as one alone. If the process that comes too late
//! stays away for up to a microsecond, the other one continues at full speed meanwhile; then it is the other
//! one that comes too late. So they take turns, by chance, and no process waits *for* another: one that is
//! killed or stopped meanwhile delays none.
//!
//! One loss among many changes costs little: the first hold is short. It is doubled as long as losses follow each other.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::sys::processors;

/// The first hold: as long as it takes the other process to get on.
const FIRST: Duration = Duration::from_nanos(250);
/// The longest. Two processes alone would gain from more; but processes that wait at the other side would
/// wait longer, too.
const MOST: Duration = Duration::from_micros(1);

/// When a thread last came too late, and how long it stayed away then.
#[derive(Clone, Copy)]
struct Last {
    at: Instant,
    hold: Duration,
}

thread_local! {
    // fork: a hint, which may be its original's.
    static LAST: Cell<Option<Last>> = const { Cell::new(None) };
}

/// Stays away for a moment, after another process was faster.
#[cold]
pub(crate) fn hold_off() {
    if processors::only_one() {
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

/// The next hold, after the last one: how long that was, and how long ago it began.
fn next(last: Option<(Duration, Duration)>) -> Duration {
    match last {
        // The other one stays away as long, before it comes back.
        Some((hold, ago)) if ago <= 8 * hold => (2 * hold).min(MOST),
        _ => FIRST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_grow_while_losses_follow_each_other() {
        let mut hold = next(None);
        assert_eq!(hold, FIRST);
        for _ in 0..20 {
            hold = next(Some((hold, 2 * hold)));
        }
        assert_eq!(hold, MOST);
        assert_eq!(next(Some((hold, Duration::from_millis(1)))), FIRST, "one loss among many changes");
    }
}
