//! State of the workers and assignment of tasks, under one lock. No user code runs here, and nothing blocks.
//!
//! Calls are served in the order of submission, each by the worker with the least work. Only tasks of a
//! stream's [lanes](crate::tasks::lanes) prefer a worker: the last worker of the lane, unless it is missing,
//! or has work while another worker is idle. [`pending`](crate::slots::pending) has the states of a task.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::child::journal_words::PoolWords;
use crate::error::{BrokenPool, TaskError};
use crate::slots::backpressure::Backpressure;
use crate::slots::pending::PendingTasks;
use crate::slots::slot::WorkerSlot;
use crate::tasks::call_state::CallState;
use crate::tasks::source::LaneFilter;

/// Phase of the pool's life.
#[derive(Clone, Debug, Default)]
pub(crate) enum PoolPhase {
    #[default]
    Open,
    /// The pool accepts no more tasks.
    Closed,
    /// The pool drops its tasks, and ends its workers.
    Terminating,
    /// The pool drops its tasks and ends its workers, because no worker is alive.
    Broken(Arc<BrokenPool>),
}

impl PoolPhase {
    /// Returns the error with which unfinished tasks end in this phase, if any.
    pub(crate) fn error(&self) -> Option<TaskError> {
        match self {
            PoolPhase::Open | PoolPhase::Closed => None,
            PoolPhase::Terminating => Some(TaskError::Terminated),
            PoolPhase::Broken(why) => Some(TaskError::Broken(Arc::clone(why))),
        }
    }
}

/// State of a pool, protected by one lock.
#[derive(Default)]
pub(crate) struct PoolState {
    pub(crate) phase: PoolPhase,
    /// Wanted number of workers, which are in the first slots.
    pub(crate) wanted: usize,
    /// Number of slots in which a process was ever started. If another process is started in such a slot, it
    /// appends to the output files.
    pub(crate) ever_started: usize,
    pub(crate) workers: Vec<WorkerSlot>,
    /// Tasks that are not assigned to a worker.
    pub(crate) tasks: PendingTasks,
    /// Active while ready tasks wait for room for their messages.
    pub(crate) backpressure: Backpressure,
    /// Number of consecutive workers that died while they read a function, by function.
    pub(crate) reader_deaths: HashMap<u64, u32>,
    /// Last time at which a ready worker died, or began to create its state again. `None` if neither has
    /// happened.
    pub(crate) last_ready: Option<Instant>,
    /// Number of tasks without an outcome.
    pub(crate) unsettled: usize,
    /// Number of retries.
    pub(crate) retried: u64,
    /// Number of replaced workers.
    pub(crate) restarts: u64,
    /// `true` if all workers have ended, and no more will be started.
    pub(crate) over: bool,
    /// Counters for tools.
    pub(crate) words: Option<PoolWords>,
}

impl PoolState {
    /// Creates the state of a new pool.
    pub(crate) fn new(workers: Vec<WorkerSlot>) -> PoolState {
        PoolState { wanted: workers.len(), workers, ..PoolState::default() }
    }

    /// Publishes the counters for tools.
    pub(crate) fn publish(&self) {
        let PoolState { wanted, unsettled, retried, restarts, .. } = *self;
        if let Some(words) = &self.words {
            words.publish(0, [wanted as u64, unsettled as u64]);
            words.publish(6, [retried, restarts]);
        }
    }

    /// Publishes the counters for tools, with the numbers of tasks that are done, failed, lost and cancelled.
    pub(crate) fn publish_outcomes(&self, outcomes: [u64; 4]) {
        self.publish();
        self.words.iter().for_each(|words| words.publish(2, outcomes));
    }

    /// Returns the worker that most needs work.
    pub(crate) fn neediest(&self) -> Option<usize> {
        let neediest = self.workers.iter().enumerate().filter(|(_, worker)| worker.wants_tasks());
        neediest.min_by_key(|(_, worker)| worker.outstanding).map(|(number, _)| number)
    }

    /// Returns `true` if this worker should read a function before it receives tasks of the function: its
    /// process replaces another process, and another worker, which knows the function, can run the tasks
    /// earlier.
    pub(crate) fn reads_first(&self, worker: usize, code: u64) -> bool {
        let knows =
            |other: &WorkerSlot| other.ready && !other.suspect && other.is_staying() && other.knows(code);
        self.workers[worker].is_new && self.workers.iter().any(knows)
    }

    /// Records that there was no room for the message of a task, after `found` messages were allocated.
    /// Returns `true` if the shortage must be reported: see [`Backpressure::lacks_room`].
    pub(crate) fn lacks_room(&mut self, now: Instant, found: usize) -> bool {
        let idle = self.workers.iter().all(|worker| worker.outstanding == 0);
        self.backpressure.lacks_room(now, found, idle)
    }

    /// Returns the time of the next attempt to create messages. Returns `None` if no worker needs tasks: the
    /// next reply then wakes the pool's thread.
    pub(crate) fn next_room(&self) -> Option<Instant> {
        let wanted = !self.tasks.ready.is_empty() && self.neediest().is_some();
        self.backpressure.due().filter(|_| wanted)
    }

    /// Returns `true` if the next attempt to pack tasks is not due.
    pub(crate) fn waits_for_room(&mut self, now: Instant) -> bool {
        if self.tasks.ready.is_empty() {
            // The waiting tasks have ended, for example because they were cancelled.
            self.backpressure.clear();
        }
        self.backpressure.due().is_some_and(|due| now < due)
    }

    /// Returns `true` if a worker has a process.
    pub(crate) fn has_workers(&self) -> bool {
        self.workers.iter().any(|worker| worker.process.is_some())
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, PoolPhase::Open)
    }

    /// Returns `true` if workers that die are replaced.
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.phase, PoolPhase::Open) || matches!(self.phase, PoolPhase::Closed) && self.unsettled > 0
    }
}

/// Call from which a worker receives its next tasks.
pub(crate) struct TaskAssignment {
    pub(crate) worker: usize,
    pub(crate) job: Arc<CallState>,
    /// Lanes of which the worker may receive tasks. `None` if tasks of the call have no lanes.
    pub(crate) filter: Option<LaneFilter>,
}

impl PoolState {
    /// Chooses the call of the next tasks for this worker. If all waiting tasks belong to lanes of other
    /// workers, chooses a call for another worker that needs tasks.
    pub(crate) fn next_assignment(&mut self, worker: usize) -> Option<TaskAssignment> {
        self.tasks.drop_drained_calls();
        if self.tasks.calls.is_empty() {
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
        // The filter is equal for all calls.
        let mut filter = None;
        self.tasks.calls.iter().find_map(|job| {
            let (source, has_lanes) = (&job.source, job.source.has_lanes());
            let has = if has_lanes {
                source.has_task_for(filter.get_or_insert_with(|| self.lane_filter(worker)))
            } else {
                source.remaining() > 0
            };
            has.then(|| {
                let filter = filter.take().filter(|_| has_lanes);
                TaskAssignment { worker, job: Arc::clone(job), filter }
            })
        })
    }

    /// Returns the lanes that this worker may take: lanes of missing workers and, while this worker is idle,
    /// lanes of busy workers.
    fn lane_filter(&self, worker: usize) -> LaneFilter {
        let idle = self.workers[worker].outstanding == 0;
        let is_gone = |other: &WorkerSlot| !other.ready || other.suspect || !other.is_staying();
        // Another thread that feeds an idle worker may be about to give it the first task of its lane.
        let is_busy = |other: &WorkerSlot| !other.is_idle() && (other.outstanding > 0 || !other.feeding);
        let may = |other: &WorkerSlot| is_gone(other) || idle && is_busy(other);
        LaneFilter { worker, lanes_of: self.workers.iter().map(may).collect() }
    }
}

#[cfg(test)]
mod tests {
    use mp_queue::Queue;

    use super::*;
    use crate::child::journal_words::WorkerWords;

    #[test]
    fn lane_filter_allows_lanes_of_missing_workers() {
        let worker = || {
            let mut worker = WorkerSlot::new(Queue::unbounded().unwrap(), WorkerWords::new().unwrap());
            worker.ready = true;
            worker
        };
        let mut state = PoolState::new(vec![worker(), worker(), worker(), worker(), worker()]);
        state.workers[2].outstanding = 1;
        state.workers[3].ready = false;
        state.workers[4].feeding = true;
        assert_eq!(state.lane_filter(0).lanes_of, [false, false, true, true, false]);
        assert_eq!(state.lane_filter(2).lanes_of, [false, false, false, true, false], "worker 2 is busy");
    }
}
