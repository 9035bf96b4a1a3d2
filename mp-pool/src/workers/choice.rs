//! Choice of the worker and the call for the next tasks.
//!
//! Calls are served in the order of submission, each by the worker with the least work. Only tasks of a
//! stream's [lanes](crate::tasks::lanes) prefer a worker: the last worker of the lane, unless it is missing,
//! or has work while another worker is idle.

use std::sync::Arc;

use crate::tasks::call_state::CallState;
use crate::tasks::source::LaneFilter;
use crate::workers::state::PoolState;
use crate::workers::worker::Worker;

/// Next assignment.
pub(crate) struct TaskAssignment {
    pub(crate) worker: usize,
    pub(crate) job: Arc<CallState>,
    /// Tasks of the call that this worker may take.
    pub(crate) filter: Option<LaneFilter>,
}

impl PoolState {
    /// Returns the next call for this worker, or, if all tasks belong to lanes of other workers, for another
    /// worker that wants tasks.
    pub(crate) fn next_assignment(&mut self, worker: usize) -> Option<TaskAssignment> {
        while self.jobs.front().is_some_and(|job| job.remaining() == 0) {
            self.drained_calls.extend(self.jobs.pop_front());
        }
        if self.jobs.is_empty() {
            return None;
        }
        self.assignment_for(worker).or_else(|| {
            let mut others: Vec<usize> = (0..self.workers.len()).collect();
            others.retain(|other| *other != worker && self.workers[*other].wants_tasks());
            others.sort_by_key(|other| self.workers[*other].outstanding);
            others.into_iter().find_map(|other| self.assignment_for(other))
        })
    }

    fn assignment_for(&self, worker: usize) -> Option<TaskAssignment> {
        self.jobs.iter().find_map(|job| {
            let filter = job.has_lanes().then(|| self.lane_filter(worker));
            let has = filter.as_ref().map_or_else(|| job.remaining() > 0, |filter| job.has_task_for(filter));
            has.then(|| TaskAssignment { worker, job: Arc::clone(job), filter })
        })
    }

    /// Returns the lanes that this worker may take: those of missing workers, and, while it is idle, those of
    /// busy workers.
    fn lane_filter(&self, worker: usize) -> LaneFilter {
        let idle = self.workers[worker].outstanding == 0;
        let is_gone = |other: &Worker| !other.ready || other.suspect || !other.is_staying();
        // Another thread that feeds an idle worker may be about to give it the first task of its lane.
        let is_busy = |other: &Worker| !other.is_idle() && (other.outstanding > 0 || !other.feeding);
        let may = |other: &Worker| is_gone(other) || idle && is_busy(other);
        LaneFilter { worker, lanes_of: self.workers.iter().map(may).collect() }
    }
}

#[cfg(test)]
mod tests {
    use mp_queue::Queue;

    use super::*;
    use crate::worker::journal_words::WorkerWords;

    #[test]
    fn lane_filter_allows_lanes_of_missing_workers() {
        let worker = || {
            let mut worker = Worker::new(Queue::unbounded().unwrap(), WorkerWords::new().unwrap());
            worker.ready = true;
            worker
        };
        let mut state = PoolState::new(vec![worker(), worker(), worker(), worker(), worker()]);
        state.workers[2].outstanding = 1;
        state.workers[3].ready = false;
        state.workers[4].feeding = true;
        assert_eq!(state.lane_filter(0).lanes_of, [false, false, true, true, false]);
        assert_eq!(state.lane_filter(2).lanes_of, [false, false, false, true, false], "it has work");
    }
}
