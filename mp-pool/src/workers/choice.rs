//! Choice of the worker and the call for the next tasks.
//!
//! Calls are served in the order of submission, each by the worker with the least work. Only tasks of a
//! stream's [lanes](crate::calls::lanes) prefer a worker: the last worker of the lane, unless it is missing,
//! or has work while another worker is idle.

use std::sync::Arc;

use crate::calls::job::Job;
use crate::calls::lanes::Takes;
use crate::workers::state::{State, Worker};

/// Next assignment.
pub(crate) struct Next {
    pub(crate) worker: usize,
    pub(crate) job: Arc<Job>,
    /// Tasks of the call that this worker may take.
    pub(crate) takes: Option<Takes>,
}

impl State {
    /// Returns the next call for this worker, or, if all tasks belong to lanes of other workers, for another
    /// worker that wants tasks.
    pub(crate) fn next_job(&mut self, worker: usize) -> Option<Next> {
        while self.jobs.front().is_some_and(|job| job.left() == 0) {
            self.sent.extend(self.jobs.pop_front());
        }
        if self.jobs.is_empty() {
            return None;
        }
        self.job_for(worker).or_else(|| {
            let mut others: Vec<usize> = (0..self.workers.len()).collect();
            others.retain(|other| *other != worker && self.workers[*other].wants());
            others.sort_by_key(|other| self.workers[*other].outstanding);
            others.into_iter().find_map(|other| self.job_for(other))
        })
    }

    fn job_for(&self, worker: usize) -> Option<Next> {
        self.jobs.iter().find_map(|job| {
            let takes = job.has_lanes().then(|| self.takes(worker));
            let has = takes.as_ref().map_or_else(|| job.left() > 0, |takes| job.has_for(takes));
            has.then(|| Next { worker, job: Arc::clone(job), takes })
        })
    }

    /// Returns the lanes that this worker may take: those of missing workers, and, while it is idle, those of
    /// busy workers.
    fn takes(&self, worker: usize) -> Takes {
        let idle = self.workers[worker].outstanding == 0;
        let is_gone = |other: &Worker| !other.ready || other.suspect || !other.stays();
        // Another thread that feeds an idle worker may be about to give it the first task of its lane.
        let is_busy = |other: &Worker| !other.is_idle() && (other.outstanding > 0 || !other.feeding);
        let may = |other: &Worker| is_gone(other) || idle && is_busy(other);
        Takes { worker, lanes_of: self.workers.iter().map(may).collect() }
    }
}

#[cfg(test)]
mod tests {
    use mp_queue::Queue;

    use super::*;
    use crate::watch::Watch;

    #[test]
    fn a_worker_may_have_the_lanes_of_those_that_are_gone_and_if_it_is_idle_of_those_that_are_busy() {
        let worker = || {
            let mut worker = Worker::new(Queue::unbounded().unwrap(), Watch::new().unwrap());
            worker.ready = true;
            worker
        };
        let mut state = State::new(vec![worker(), worker(), worker(), worker(), worker()]);
        state.workers[2].outstanding = 1;
        state.workers[3].ready = false;
        state.workers[4].feeding = true;
        assert_eq!(state.takes(0).lanes_of, [false, false, true, true, false]);
        assert_eq!(state.takes(2).lanes_of, [false, false, false, true, false], "it has work");
    }
}
