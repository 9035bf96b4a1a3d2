//! Points in time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Failure;
use crate::reduce::Reduce;

/// What a [`SystemTime`] travels as: how far from the beginning of 1970, and whether before it, which serde's own implementation refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SinceEpoch {
    before: bool,
    by: Duration,
}

impl Reduce for SystemTime {
    type Handle = SinceEpoch;
    fn reduce(&self) -> Result<SinceEpoch, Failure> {
        Ok(match self.duration_since(UNIX_EPOCH) {
            Ok(by) => SinceEpoch { before: false, by },
            Err(before) => SinceEpoch { before: true, by: before.duration() },
        })
    }
    fn rebuild(SinceEpoch { before, by }: SinceEpoch) -> Result<Self, Failure> {
        let time = if before { UNIX_EPOCH.checked_sub(by) } else { UNIX_EPOCH.checked_add(by) };
        time.ok_or_else(|| format!("no clock has a time {by:?} away from 1970").into())
    }
}

/// What an [`Instant`] travels as: the time of the clock CLOCK_MONOTONIC, which all processes of a machine share (`clock_gettime(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MonotonicTime(Duration);

/// The instant at which the clock began. The standard library tells it nowhere but in `Debug`, which may change; so what is found there
/// has to lie between two readings of the clock. Else it is the first of these, less than a microsecond off as a rule.
fn beginning() -> Option<Instant> {
    let before = mp_core::monotonic();
    let now = Instant::now();
    let after = mp_core::monotonic();
    let shown = format!("{now:?}");
    let mut numbers = shown.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u64>().ok());
    let exact = match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(seconds), Some(nanos @ 0..1_000_000_000), None) => Some(Duration::new(seconds, nanos as u32)),
        _ => None,
    };
    now.checked_sub(exact.filter(|exact| (before..=after).contains(exact)).unwrap_or(before))
}

/// The same instant to all processes of the machine, unless one is in a time namespace of its own.
impl Reduce for Instant {
    type Handle = MonotonicTime;
    fn reduce(&self) -> Result<MonotonicTime, Failure> {
        let since = beginning().and_then(|beginning| self.checked_duration_since(beginning));
        since.map(MonotonicTime).ok_or_else(|| "an instant before the clock began".into())
    }
    fn rebuild(MonotonicTime(since): MonotonicTime) -> Result<Self, Failure> {
        let instant = beginning().and_then(|beginning| beginning.checked_add(since));
        instant.ok_or_else(|| format!("no clock has an instant {since:?} after it began").into())
    }
}
