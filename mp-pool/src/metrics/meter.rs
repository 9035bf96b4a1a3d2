//! Counters and timers of a pool's tasks: outcomes, waiting times and run times.
//!
//! The pool's thread derives all values from the replies, so no extra messages are sent. Tasks that a worker
//! answers together are counted with their mean time, which makes the cost for a short task negligible.

use std::time::Duration;

use crate::error::TaskError;

/// Number of buckets. Each power of two has eight buckets, so values are accurate to an eighth.
const BUCKETS: usize = 496;

/// Histogram of durations in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    buckets: Box<[u64; BUCKETS]>,
    pub(crate) count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: Box::new([0; BUCKETS]), count: 0, max: 0 }
    }
}

impl Histogram {
    /// Returns the bucket of a value. Values below eight have a bucket each.
    fn bucket(nanos: u64) -> usize {
        match nanos.checked_ilog2() {
            Some(power @ 3..) => (power as usize - 2) * 8 + ((nanos >> (power - 3)) & 7) as usize,
            _ => nanos as usize,
        }
    }

    /// Returns the largest value of a bucket.
    fn largest(bucket: usize) -> u64 {
        match bucket.checked_sub(8) {
            Some(above) => {
                let (shift, eighth) = (above / 8, above % 8);
                ((8 + eighth as u64) << shift) + ((1 << shift) - 1)
            }
            None => bucket as u64,
        }
    }

    pub(crate) fn add(&mut self, took: Duration, times: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[Self::bucket(nanos)] += times;
        self.count += times;
        self.max = self.max.max(nanos);
    }

    /// Returns the time that `percent` percent of the values do not exceed.
    pub(crate) fn percentile(&self, percent: u64) -> Duration {
        let mut left = (u128::from(self.count) * u128::from(percent)).div_ceil(100) as u64;
        for (bucket, count) in self.buckets.iter().enumerate() {
            if left <= *count && left > 0 {
                return Duration::from_nanos(Self::largest(bucket).min(self.max));
            }
            left = left.saturating_sub(*count);
        }
        Duration::from_nanos(self.max)
    }
}

/// Numbers of tasks by outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TaskCounts {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) lost: u64,
    pub(crate) cancelled: u64,
}

/// All counters since the pool was created.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    pub(crate) ends: TaskCounts,
    pub(crate) waiting: Histogram,
    pub(crate) running: Histogram,
}

impl TaskCounts {
    /// Returns the counts of `tasks` tasks that all ended with `error`, or with a result if `None`.
    pub(crate) fn of(error: Option<&TaskError>, tasks: u64) -> TaskCounts {
        use TaskError::{Broken, Cancelled, Closed, Interrupted, Terminated, WorkerLost};
        let mut ends = TaskCounts::default();
        *match error {
            None => &mut ends.done,
            Some(WorkerLost(_)) => &mut ends.lost,
            Some(Cancelled | Interrupted | Terminated | Closed { .. } | Broken(_)) => &mut ends.cancelled,
            Some(_) => &mut ends.failed,
        } = tasks;
        ends
    }

    pub(crate) fn add(&mut self, more: TaskCounts) {
        self.done += more.done;
        self.failed += more.failed;
        self.lost += more.lost;
        self.cancelled += more.cancelled;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_value_falls_into_its_bucket() {
        for power in 0..64 {
            for value in [1_u64 << power, (1 << power) + (1 << power >> 1), (2_u64 << power).wrapping_sub(1)]
            {
                let bucket = Histogram::bucket(value);
                assert!(bucket < BUCKETS && value <= Histogram::largest(bucket), "{value} {bucket}");
                assert!(bucket == 0 || value > Histogram::largest(bucket - 1), "{value} {bucket}");
            }
        }
        assert_eq!((Histogram::bucket(0), Histogram::bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn metric_percentiles_are_exact_to_an_eighth() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(50), Duration::ZERO);
        (1..=1000).for_each(|ms| histogram.add(Duration::from_millis(ms), 1));
        for (percent, exact) in [(50, 500), (90, 900), (99, 990)] {
            let (exact, found) = (Duration::from_millis(exact), histogram.percentile(percent));
            assert!(found >= exact && found <= exact + exact / 8, "{percent}: {found:?}");
        }
        assert_eq!((histogram.percentile(100), histogram.count), (Duration::from_secs(1), 1000));
    }
}
