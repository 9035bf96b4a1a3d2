//! Restart delays of workers, and the condition on which the pool breaks.

use std::time::{Duration, Instant};

use mp_spawn::Backoff;

use crate::slots::slot::WorkerSlot;
use crate::slots::state::PoolState;

/// Number of consecutive failed starts of each worker after which the pool may break.
const MOST_FAILED_STARTS: u32 = 5;
/// Time without a ready worker after which the pool breaks, if a worker was ever ready.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Delay before the second start. The delay is doubled before each further start.
const FIRST_BACK_OFF: Duration = Duration::from_millis(10);
/// Maximum delay before a start.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(1);
/// First delay after [`MOST_FAILED_STARTS`] consecutive failures of a worker while other workers run the
/// tasks. The delay is doubled after each further failure.
const FIRST_LONG_BACK_OFF: Duration = Duration::from_secs(2);
/// Maximum delay before a start while other workers run the tasks.
const LONGEST_LONG_BACK_OFF: Duration = Duration::from_secs(60);

/// Returns the delay after this number of consecutive failures.
pub(crate) fn back_off(failures: u32) -> Duration {
    Backoff::new(FIRST_BACK_OFF).max(LONGEST_BACK_OFF).jitter(0.0).before(failures.saturating_add(1))
}

/// Returns the delay after this number of consecutive failed starts. It is longer if other workers run the
/// tasks.
fn back_off_of_starts(failures: u32, has_other_ready: bool) -> Duration {
    let beyond = failures.checked_sub(MOST_FAILED_STARTS).filter(|_| has_other_ready);
    match beyond {
        None => back_off(failures),
        Some(beyond) => {
            let long = Backoff::new(FIRST_LONG_BACK_OFF).max(LONGEST_LONG_BACK_OFF).jitter(0.0);
            long.before(beyond.saturating_add(2))
        }
    }
}

impl WorkerSlot {
    /// Records that the worker could not be started, or died before it was ready, and schedules the next
    /// start. Returns `true` if the failures must be reported, which happens once, while other workers run
    /// the tasks. Without other workers, the pool breaks, and its error reports the failures.
    pub(crate) fn start_failed(&mut self, now: Instant, why: String, has_other_ready: bool) -> bool {
        self.failed_starts = self.failed_starts.saturating_add(1);
        (self.failed_at, self.failed_why) = (Some(now), why);
        self.restart_at = Some(now + back_off_of_starts(self.failed_starts, has_other_ready));
        let report =
            has_other_ready && self.failed_starts >= MOST_FAILED_STARTS && !self.start_failures_reported;
        self.start_failures_reported |= report;
        report
    }
}

impl PoolState {
    /// Returns `true` if starting workers again is useless: all workers have failed too often, and either
    /// none was ever ready, or each has failed once more after the time limit. A pool that once worked may
    /// temporarily lack memory or processes.
    pub(crate) fn is_hopeless(&self) -> bool {
        let patient_until = self.last_ready.map(|at| at + TIME_LIMIT);
        let late = |at: Option<Instant>| patient_until.is_none_or(|until| at.is_some_and(|at| at >= until));
        self.workers
            .iter()
            .take(self.wanted)
            .all(|worker| worker.failed_starts >= MOST_FAILED_STARTS && late(worker.failed_at))
    }

    /// Returns `true` if another worker is ready.
    pub(crate) fn has_other_ready(&self, but: usize) -> bool {
        self.workers
            .iter()
            .enumerate()
            .any(|(number, worker)| number != but && worker.ready && worker.is_staying())
    }

    /// If no worker is ready, makes the next start of each waiting worker due within [`LONGEST_BACK_OFF`].
    /// Workers may have longer delays, which were set while other workers ran the tasks.
    pub(crate) fn shorten_delays(&mut self, now: Instant) {
        if !self.workers.iter().any(|worker| worker.ready && worker.is_staying()) {
            let soon = now + LONGEST_BACK_OFF;
            let waiting = self.workers.iter_mut().filter_map(|worker| worker.restart_at.as_mut());
            waiting.for_each(|at| *at = soon.min(*at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::slot::tests::worker;

    /// While other workers run the tasks, starts that fail get longer and longer delays. When no worker is
    /// ready, the delays are short again.
    #[test]
    fn failed_worker_starts_back_off_and_report_once() {
        let (now, why) = (Instant::now(), || "no device".to_owned());
        let mut state = PoolState::new(vec![worker(), worker()]);
        state.workers[1].bury();
        let mut waits = Vec::new();
        let mut reported = Vec::new();
        for _ in 0..12 {
            let has_other_ready = state.has_other_ready(1);
            reported.push(state.workers[1].start_failed(now, why(), has_other_ready));
            state.shorten_delays(now);
            waits.push(state.workers[1].restart_at.unwrap() - now);
        }
        let millis: Vec<u128> = waits.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [10, 20, 40, 80, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]);
        assert_eq!(reported.iter().position(|reported| *reported), Some(4));
        assert_eq!(reported.iter().filter(|reported| **reported).count(), 1);
        // The other worker ends.
        state.workers[0].bury();
        state.shorten_delays(now);
        assert_eq!(state.workers[1].restart_at, Some(now + LONGEST_BACK_OFF));
        assert!(!state.has_other_ready(1) && !state.workers[1].start_failed(now, why(), false));
        assert_eq!(state.workers[1].restart_at, Some(now + LONGEST_BACK_OFF));
        // A worker becomes ready, which resets the count.
        state.workers[1].mark_ready(now);
        assert_eq!(state.workers[1].failed_starts, 0);
    }
}
