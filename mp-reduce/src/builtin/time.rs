//! [`Reduce`] for points in time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::BoxError;
use crate::reduce::Reduce;

/// Serialized [`SystemTime`]: the distance from the beginning of 1970. The time may be before 1970. The
/// implementation of serde refuses such a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SinceEpoch {
    before: bool,
    by: Duration,
}

impl Reduce for SystemTime {
    type Handle = SinceEpoch;
    fn reduce(&self) -> Result<SinceEpoch, BoxError> {
        Ok(match self.duration_since(UNIX_EPOCH) {
            Ok(by) => SinceEpoch { before: false, by },
            Err(before) => SinceEpoch { before: true, by: before.duration() },
        })
    }
    fn rebuild(SinceEpoch { before, by }: SinceEpoch) -> Result<Self, BoxError> {
        let time = if before { UNIX_EPOCH.checked_sub(by) } else { UNIX_EPOCH.checked_add(by) };
        time.ok_or_else(|| format!("no clock has a time {by:?} away from 1970").into())
    }
}

/// Serialized [`Instant`]: the time of CLOCK_MONOTONIC, which all processes of a machine share
/// (`clock_gettime(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MonotonicTime(Duration);

/// Returns the instant at which CLOCK_MONOTONIC was zero. The standard library gives access to the clock's
/// value of an `Instant` only in `Debug` output, whose format may change. So the parsed value is used only if
/// it lies between two readings of the clock. Otherwise the first reading is used, whose error is usually
/// less than 1 µs.
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

/// Sends an instant that is valid in all processes of the machine, except in another time namespace.
impl Reduce for Instant {
    type Handle = MonotonicTime;
    fn reduce(&self) -> Result<MonotonicTime, BoxError> {
        let since = beginning().and_then(|beginning| self.checked_duration_since(beginning));
        since.map(MonotonicTime).ok_or_else(|| "an instant before the clock began".into())
    }
    fn rebuild(MonotonicTime(since): MonotonicTime) -> Result<Self, BoxError> {
        let instant = beginning().and_then(|beginning| beginning.checked_add(since));
        instant.ok_or_else(|| format!("no clock has an instant {since:?} after it began").into())
    }
}
