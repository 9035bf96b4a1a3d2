//! Which worker is given tasks of which call.
//!
//! Calls are served in the order in which they have come, each by the worker that has least to do. Only the tasks of a stream's
//! [lanes](crate::calls::lanes) look for their worker: the one that had the lane last, unless it is not there, or has work while
//! another one has none.

use std::sync::Arc;

use crate::calls::job::Job;
use crate::calls::lanes::Takes;
use crate::workers::state::{State, Worker};

/// What is given out next, and to which worker.
pub(crate) struct Next {
    pub(crate) worker: usize,
    pub(crate) job: Arc<Job>,
    /// Which of its tasks that worker may have.
    pub(crate) takes: Option<Takes>,
}

impl State {
    /// The call whose tasks are given next to this worker; or to another one that wants some, if all that there are are of lanes of
    /// others.
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

    /// Of which workers this one may take the lanes: of those that are not there, and, as long as it has nothing to do, of those that
    /// have.
    fn takes(&self, worker: usize) -> Takes {
        let idle = self.workers[worker].outstanding == 0;
        let is_gone = |other: &Worker| !other.ready || other.suspect || !other.stays();
        let may = |other: &Worker| is_gone(other) || idle && !other.is_idle();
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
        let mut state = State::new(vec![worker(), worker(), worker(), worker()]);
        state.workers[2].outstanding = 1;
        state.workers[3].ready = false;
        assert_eq!(state.takes(0).lanes_of, [false, false, true, true]);
        assert_eq!(state.takes(2).lanes_of, [false, false, false, true], "it has work");
    }
}
