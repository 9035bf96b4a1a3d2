//! Work under a lock: a count is incremented.

use std::time::Instant;

use super::{Plan, now};
use crate::Result;
use crate::process::DEADLINE;

/// Data under the lock: the number of entries of each of two processes.
pub(crate) type Counts = [u64; 2];

/// A lock between processes, with [`Counts`] under it.
pub(crate) trait Section {
    /// Locks, increments the count of `who`, unlocks, and returns the counts.
    fn enter(&mut self, who: usize) -> Result<Counts>;
}

/// `lock_uncontended`: without contention. The answer is the time of one in ns.
///
/// # Errors
/// A wrong count; the lock's errors.
pub(crate) fn uncontended(section: &mut impl Section, plan: &Plan, full: u64) -> Result<f64> {
    let before = section.enter(0)?[0];
    plan.batches(full).time(|number| {
        let counts = section.enter(0)?;
        if counts != [before + number + 1, 0] {
            return Err(format!("wrong result: {counts:?} after {} times", number + 1).into());
        }
        Ok(())
    })
}

/// `lock_contended`, the measuring side: begins when the other process is at it, and continues until both
/// together were inside `full` times. The answer is the time of one in ns, of both processes together. A
/// count that says so ends the other one.
///
/// # Errors
/// A wrong count, the other process doesn't begin; the lock's errors.
pub(crate) fn contended(section: &mut impl Section, plan: &Plan, full: u64) -> Result<f64> {
    let full = plan.repetitions(full);
    let (start, mut mine) = (Instant::now(), 0);
    let mut enter = |who: usize| {
        let counts = section.enter(who)?;
        mine += 1;
        if counts[0] != mine {
            return Err(format!("wrong result: {} times inside, not {mine}", counts[0]).into());
        }
        Ok::<u64, crate::Failure>(counts[1])
    };
    // The other one warms up meanwhile.
    while enter(0)? < full / 20 {
        if start.elapsed() > DEADLINE {
            return Err("the other process doesn't begin".into());
        }
    }
    let (begun, first) = (now(), enter(0)?);
    let own = full / 2;
    let mut theirs = first;
    for _ in 0..own {
        theirs = enter(0)?;
    }
    Ok((now() - begun) as f64 / (own + theirs - first) as f64)
}

/// `lock_contended`, the other process: until `stop`.
///
/// # Errors
/// A wrong count; the lock's errors.
pub(crate) fn contend(section: &mut impl Section, stop: impl Fn() -> bool) -> Result<()> {
    let mut mine = 0;
    loop {
        for _ in 0..64 {
            mine += 1;
            let counts = section.enter(1)?;
            if counts[1] != mine {
                return Err(format!("wrong result: {} times inside, not {mine}", counts[1]).into());
            }
        }
        if stop() {
            return Ok(());
        }
    }
}
