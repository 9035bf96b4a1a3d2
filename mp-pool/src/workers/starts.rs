//! When a worker is started again whose place is empty, and when the pool is given up.

use std::time::{Duration, Instant};

use mp_spawn::Backoff;

use crate::workers::state::{State, Worker};

/// Starts that may fail in a row, in each place, before the pool is given up,
const MOST_FAILED_STARTS: u32 = 5;
/// and for how long none of its workers may be ready before that counts, if one ever was.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// How long to wait before the second start; doubled each time.
const FIRST_BACK_OFF: Duration = Duration::from_millis(10);
/// The longest wait before a start.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(1);
/// The same for a place in which [`MOST_FAILED_STARTS`] have failed in a row while another worker does the tasks: the first wait, doubled each time,
const FIRST_LONG_BACK_OFF: Duration = Duration::from_secs(2);
/// and the longest.
const LONGEST_LONG_BACK_OFF: Duration = Duration::from_secs(60);

/// How long to wait after this many failures in a row.
pub(crate) fn back_off(failures: u32) -> Duration {
    Backoff::new(FIRST_BACK_OFF).max(LONGEST_BACK_OFF).jitter(0.0).before(failures.saturating_add(1))
}

/// How long to wait after this many starts in a row have failed, and whether another worker does the tasks meanwhile.
fn back_off_of_starts(failures: u32, others_work: bool) -> Duration {
    let beyond = failures.checked_sub(MOST_FAILED_STARTS).filter(|_| others_work);
    match beyond {
        None => back_off(failures),
        Some(beyond) => {
            let long = Backoff::new(FIRST_LONG_BACK_OFF).max(LONGEST_LONG_BACK_OFF).jitter(0.0);
            long.before(beyond.saturating_add(2))
        }
    }
}

impl Worker {
    /// It could not be started, or has died before it was ready: later each time. Whether that is to be told, which is so once, when
    /// others do the tasks: else the pool is broken off, and says it.
    pub(crate) fn start_failed(&mut self, now: Instant, why: String, others_work: bool) -> bool {
        self.failed_starts = self.failed_starts.saturating_add(1);
        (self.failed_at, self.failed_why) = (Some(now), why);
        self.restart_at = Some(now + back_off_of_starts(self.failed_starts, others_work));
        let tell = others_work && self.failed_starts >= MOST_FAILED_STARTS && !self.told;
        self.told |= tell;
        tell
    }
}

impl State {
    /// Whether there is no use in starting workers again: all places have failed so often, and the pool either never worked, or
    /// each has failed once more after that long. What once worked may lack memory, or processes, for a while.
    pub(crate) fn is_hopeless(&self) -> bool {
        let patient_until = self.last_ready.map(|at| at + TIME_LIMIT);
        let late = |at: Option<Instant>| patient_until.is_none_or(|until| at.is_some_and(|at| at >= until));
        self.workers
            .iter()
            .take(self.wanted)
            .all(|worker| worker.failed_starts >= MOST_FAILED_STARTS && late(worker.failed_at))
    }

    /// Whether a worker beside this one is ready.
    pub(crate) fn others_work(&self, but: usize) -> bool {
        self.workers
            .iter()
            .enumerate()
            .any(|(number, worker)| number != but && worker.ready && worker.stays())
    }

    /// If no worker is ready, none is waited for as long as if others did the tasks.
    pub(crate) fn hurry(&mut self, now: Instant) {
        if !self.workers.iter().any(|worker| worker.ready && worker.stays()) {
            let soon = now + LONGEST_BACK_OFF;
            let waiting = self.workers.iter_mut().filter_map(|worker| worker.restart_at.as_mut());
            waiting.for_each(|at| *at = soon.min(*at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::state::tests::worker;

    /// A place in which no worker can begin costs little while others do the tasks, and is tried often again when none does.
    #[test]
    fn a_place_where_each_start_fails_is_tried_at_longer_and_longer_intervals_and_told_of_once() {
        let (now, why) = (Instant::now(), || "no device".to_owned());
        let mut state = State::new(vec![worker(), worker()]);
        state.workers[1].bury();
        let mut waits = Vec::new();
        let mut told = Vec::new();
        for _ in 0..12 {
            let others_work = state.others_work(1);
            told.push(state.workers[1].start_failed(now, why(), others_work));
            state.hurry(now);
            waits.push(state.workers[1].restart_at.unwrap() - now);
        }
        let millis: Vec<u128> = waits.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [10, 20, 40, 80, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000, 60_000]);
        assert_eq!(told.iter().position(|told| *told), Some(4));
        assert_eq!(told.iter().filter(|told| **told).count(), 1);
        // The other one ends.
        state.workers[0].bury();
        state.hurry(now);
        assert_eq!(state.workers[1].restart_at, Some(now + LONGEST_BACK_OFF));
        assert!(!state.others_work(1) && !state.workers[1].start_failed(now, why(), false));
        assert_eq!(state.workers[1].restart_at, Some(now + LONGEST_BACK_OFF));
        // A worker that has begun there: another row.
        state.workers[1].is_ready_now(now);
        assert_eq!(state.workers[1].failed_starts, 0);
    }
}
