//! Metrics of a loader.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use mp_core::quantity;
use mp_pool::FailedStarts;

/// Number of batches whose times are retained.
const MOST_TIMES: usize = 1024;

/// Minimum number of batches from which advice is derived. The start of the workers distorts the times of
/// fewer batches.
const FEW: u64 = 10;

/// Time to make a batch below which workers don't pay off, because sending the batch to the trainer costs
/// more.
const SMALL: Duration = Duration::from_micros(50);

/// Limits of a small batch: maximum size in bytes, and upper bound of the time to make the batch. Eight small
/// batches are prefetched for each worker instead of two, unless the user sets a number. If threads sleep
/// between two batches, a batch costs two context switches, about 15 µs. Eight small batches need little
/// memory, and little work is lost if the loop ends.
const LITTLE: (usize, Duration) = (64 << 10, Duration::from_micros(200));

/// Counters of a running loader.
#[derive(Debug)]
pub(crate) struct LoaderMeter {
    /// Current counts and times, except for the percentiles of batch times and the counts of the pool.
    pub(crate) counts: LoaderMetrics,
    /// Size of the largest batch in bytes. `None` before the first batch.
    pub(crate) most_bytes: Option<usize>,
    took: VecDeque<Duration>,
    /// Moving average of the time to make a batch. The weight of each batch is 7/8 of the next batch's
    /// weight. A time above one millisecond counts as one millisecond, since the worker may not have had a
    /// processor.
    usual: Duration,
}

impl LoaderMeter {
    pub(crate) fn new(workers: usize, threads: usize) -> LoaderMeter {
        let counts = LoaderMetrics {
            workers,
            threads,
            batches: 0,
            samples: 0,
            bytes: 0,
            elapsed: Duration::ZERO,
            waited: Duration::ZERO,
            busy: Duration::ZERO,
            init: Duration::ZERO,
            ready: 0,
            in_flight: 0,
            batch_p50: Duration::ZERO,
            batch_p99: Duration::ZERO,
            failed: 0,
            skipped_samples: 0,
            skipped_batches: 0,
            restarts: 0,
            retried: 0,
            failed_starts: Vec::new(),
        };
        LoaderMeter { counts, most_bytes: None, took: VecDeque::new(), usual: Duration::ZERO }
    }

    /// Returns the maximum number of batches that are planned, running or ready for each worker. Used unless
    /// the user sets the number.
    pub(crate) fn prefetch(&self) -> usize {
        let (bytes, time) = LITTLE;
        // Columns outside shared memory count 0 bytes, and the length of their messages is unknown here.
        let are_small = self.most_bytes.is_some_and(|most| (1..=bytes).contains(&most));
        if are_small && self.usual < time { 8 } else { 2 }
    }

    /// Records the delivery of a batch at `now`, after a wait that began at `since`. `ready` of the
    /// `in_flight` other batches are ready. `counted` is the time of the iterator's previous delivery, and is
    /// set to `now`. Time between two iterators is not counted.
    pub(crate) fn record_delivery(
        &mut self,
        (since, now): (Instant, Instant),
        counted: &mut Instant,
        (ready, in_flight): (usize, usize),
    ) {
        let counts = &mut self.counts;
        (counts.ready, counts.in_flight) = (ready, in_flight);
        counts.waited += now.saturating_duration_since(since);
        counts.elapsed += now.saturating_duration_since(*counted);
        *counted = now;
    }

    pub(crate) fn record_batch(&mut self, took: Duration, began: Duration, bytes: usize) {
        self.counts.busy += took;
        let counts = took.min(Duration::from_millis(1));
        self.usual = if self.most_bytes.is_some() { self.usual * 7 / 8 + counts / 8 } else { counts };
        self.counts.init = self.counts.init.max(began);
        self.most_bytes = self.most_bytes.max(Some(bytes));
        if self.took.len() == MOST_TIMES {
            self.took.pop_front();
        }
        self.took.push_back(took);
    }

    pub(crate) fn metrics(&self) -> LoaderMetrics {
        let mut took: Vec<Duration> = self.took.iter().copied().collect();
        took.sort_unstable();
        let at =
            |share: usize| took.get((took.len() * share / 100).min(took.len().saturating_sub(1))).copied();
        LoaderMetrics {
            batch_p50: at(50).unwrap_or_default(),
            batch_p99: at(99).unwrap_or_default(),
            ..self.counts.clone()
        }
    }
}

/// Metrics of a loader, returned by [`DataLoader::metrics`](crate::DataLoader::metrics). The last sentence of
/// its `Display` reports whether the training process waits for batches.
///
/// Counters start when the loader is made. A saved state has no counters. Delivered and skipped batches are
/// counted when the iterator reaches them, so the counts of a resumed epoch add up to the counts of an
/// uninterrupted epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoaderMetrics {
    /// Number of workers.
    pub workers: usize,
    /// Number of threads of each worker for rows.
    pub threads: usize,
    /// Number of delivered batches.
    pub batches: u64,
    /// Number of samples in delivered batches.
    pub samples: u64,
    /// Bytes of shared memory of delivered batches.
    pub bytes: u64,
    /// Time of iteration: for each iterator, from the first call to the last delivery. Time between two
    /// epochs, such as a validation, is excluded.
    pub elapsed: Duration,
    /// Total time spent waiting for batches. A wait in `next_timeout` that returns without a batch is counted
    /// with the next delivery.
    pub waited: Duration,
    /// Total time in which workers made batches.
    pub busy: Duration,
    /// Longest time in which a worker decoded the dataset and ran [`Dataset::init`](crate::Dataset::init).
    pub init: Duration,
    /// Number of batches that were ready at the last delivery.
    pub ready: usize,
    /// Number of batches that were planned, running or ready at the last delivery.
    pub in_flight: usize,
    /// Median time to make a batch, of the last 1024.
    pub batch_p50: Duration,
    /// 99th percentile of the time to make a batch, of the last 1024.
    pub batch_p99: Duration,
    /// Number of batches for which the iterator returned an error.
    pub failed: u64,
    /// Number of skipped samples. Includes samples of batches that were skipped because all of their samples
    /// were skipped.
    pub skipped_samples: u64,
    /// Number of skipped batches.
    pub skipped_batches: u64,
    /// Number of workers that replaced other workers.
    pub restarts: u64,
    /// Number of times that a batch was made again.
    pub retried: u64,
    /// Workers that fail to start, with the cause, for example an error of `Dataset::init`. The other workers
    /// make the batches.
    pub failed_starts: Vec<FailedStarts>,
}

impl LoaderMetrics {
    /// Returns the share of the time spent waiting for batches, from 0 to 1.
    #[must_use]
    pub fn waiting_share(&self) -> f64 {
        share(self.waited, self.elapsed, 1)
    }

    /// Returns the share of the workers' time in which they made batches, from 0 to 1. Workers that fail to
    /// start are excluded.
    #[must_use]
    pub fn busy_share(&self) -> f64 {
        let begun = self.workers.saturating_sub(self.failed_starts.len());
        share(self.busy, self.elapsed, begun.max(1))
    }
}

fn share(contents: Duration, whole: Duration, times: usize) -> f64 {
    if whole.is_zero() {
        0.0
    } else {
        (contents.as_secs_f64() / whole.as_secs_f64() / times as f64).clamp(0.0, 1.0)
    }
}

impl fmt::Display for LoaderMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (waited, busy) = (100.0 * self.waiting_share(), 100.0 * self.busy_share());
        let rate =
            if self.elapsed.is_zero() { 0.0 } else { self.samples as f64 / self.elapsed.as_secs_f64() };
        writeln!(
            f,
            "{}, {}, {:.1} MB in {:.1?}: {rate:.0} samples a second",
            quantity(self.batches, "batch"),
            quantity(self.samples, "sample"),
            self.bytes as f64 / 1e6,
            self.elapsed
        )?;
        writeln!(
            f,
            "a batch took {:.1?} (p99 {:.1?}), a worker {:.1?} to begin; {} of {} batches in flight were \
             ready",
            self.batch_p50, self.batch_p99, self.init, self.ready, self.in_flight
        )?;
        if self.failed + self.skipped_samples + self.skipped_batches + self.restarts + self.retried > 0 {
            writeln!(
                f,
                "{}, {} and {} left out, {} begun again, {} replaced",
                quantity(self.failed, "error"),
                quantity(self.skipped_samples, "sample"),
                quantity(self.skipped_batches, "batch"),
                quantity(self.retried, "batch"),
                quantity(self.restarts, "worker")
            )?;
        }
        self.failed_starts.iter().try_for_each(|failed| writeln!(f, "{failed}"))?;
        match self.workers {
            _ if self.batches == 0 => return f.write_str("no batch was taken yet"),
            0 if self.batches >= FEW => {
                return write!(
                    f,
                    "the trainer made the batches itself, {waited:.0} % of the time: add workers"
                );
            }
            _ => write!(f, "the trainer waited {waited:.0} % of the time")?,
        }
        if self.batches < FEW {
            f.write_str("; so few batches don't say what to change")
        } else if waited < 5.0 {
            f.write_str(": the loader is not the limit")
        } else if !self.failed_starts.is_empty() {
            let (failed, all) = (self.failed_starts.len(), self.workers);
            write!(f, ", and {failed} of {all} workers can't begin: repair that first")
        } else if busy < 60.0 && self.batch_p50 < SMALL {
            let why = "batches that are made quicker than they travel";
            write!(f, ", for {why}: make them larger, or without workers")
        } else if busy < 60.0 {
            write!(f, ", and workers were busy only {busy:.0} %: prefetch more")
        } else {
            write!(f, ", and workers were busy {busy:.0} %: add workers")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_millis(10);

    /// Delivers batches of `workers` workers that take 10 ms each, in epochs that begin a second after each
    /// other.
    fn text(workers: usize, epochs: u32, batches: u32) -> (Duration, String) {
        let (begun, mut meter) = (Instant::now(), LoaderMeter::new(workers, 1));
        for epoch in 0..epochs {
            let mut now = begun + epoch * Duration::from_secs(1);
            let mut counted = now;
            for _ in 0..batches {
                meter.record_batch(TEN, TEN, 1);
                meter.record_delivery((now, now + TEN), &mut counted, (0, 1));
                meter.counts.batches += 1;
                now += TEN;
            }
        }
        let metrics = meter.metrics();
        (metrics.elapsed, metrics.to_string())
    }

    #[test]
    fn time_between_epochs_is_not_in_loader_metrics() {
        let (elapsed, text) = text(1, 3, 20);
        assert_eq!(elapsed, 60 * TEN);
        assert!(text.contains("waited 100 %") && text.ends_with("busy 100 %: add workers"), "{text}");
    }

    #[test]
    fn small_quick_batches_are_prefetched_more() {
        let quick = Duration::from_micros(20);
        let after = |batches: &[(Duration, usize)]| {
            let mut meter = LoaderMeter::new(1, 1);
            batches.iter().for_each(|(took, bytes)| meter.record_batch(*took, TEN, *bytes));
            meter.prefetch()
        };
        assert_eq!(after(&[]), 2);
        assert_eq!(after(&[(quick, 8)]), 8);
        assert_eq!(after(&[(TEN, 8)]), 2);
        assert_eq!(after(&[(quick, 64 << 10), (quick, (64 << 10) + 1)]), 2);
        // A single slow batch has no effect: a worker may wait for a processor, or the first batch may open
        // files.
        assert_eq!(after(&[(quick, 8), (TEN, 8), (quick, 8)]), 8);
        assert_eq!(after(&[&[(TEN, 8)][..], &[(quick, 8); 20]].concat()), 8);
        assert_eq!(after(&[&[(quick, 8)][..], &[(TEN, 8); 2]].concat()), 2);
    }

    #[test]
    fn loader_metrics_of_few_batches_yield_no_advice() {
        for workers in [0, 1, 4] {
            let few = text(workers, 1, 9).1;
            assert!(few.ends_with("so few batches don't say what to change"), "{few}");
            assert!(!text(workers, 1, 10).1.contains("so few"));
        }
        assert!(text(4, 1, 20).1.ends_with("prefetch more"));
    }
}
