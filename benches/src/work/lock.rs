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

/// Measures `lock_uncontended`. Returns the time of one entry in ns.
///
/// # Errors
/// Returns an error for a wrong count, or the lock's error.
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

/// Measures `lock_contended` in this process. Begins when the other process has warmed up, and enters
/// `full / 2` times. Returns the time in ns for each entry of either process. The caller ends the other
/// process.
///
/// # Errors
/// Returns an error for a wrong count or if the other process doesn't begin, or the lock's error.
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
    // The other process warms up meanwhile.
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

/// Runs the other process of `lock_contended`: enters until `stop` returns `true`.
///
/// # Errors
/// Returns an error for a wrong count, or the lock's error.
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
