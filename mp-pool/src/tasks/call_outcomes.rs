//! Outcomes of one call, and the threads that wait for them.

use std::collections::HashMap;
use std::io::PipeWriter;
use std::task::Waker;
use std::time::Instant;

use mp_core::user_code::UserValue;

use crate::error::Attempts;
use crate::tasks::outcome_run::{OutcomeRun, OutcomeRuns};
use crate::tasks::stream_outcomes::TicketOutcomes;
use crate::tasks::submission_times::SubmissionTimes;

/// Order in which outcomes are returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ResultOrder {
    /// Order of the task indices.
    Submission,
    /// Order of arrival.
    Completion,
}

/// Progress of a call.
///
/// ```
/// let pool = mp_pool::Pool::new(2)?;
/// let squares = pool.map_async(|x: u64| x * x, 0..100);
/// squares.wait();
/// assert_eq!((squares.progress().done, squares.progress().total), (100, 100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// Number of tasks that are done, with or without a result.
    pub done: usize,
    /// Number of done tasks without a result.
    pub failed: usize,
    /// Number of all tasks.
    pub total: usize,
}

/// Outcomes that have arrived.
pub(crate) struct CallOutcomes {
    pub(super) order: ResultOrder,
    /// Index of the first task whose outcome was not taken.
    pub(super) base: usize,
    /// Outcomes in the order of their tasks or of arrival.
    pub(super) runs: OutcomeRuns,
    pub(crate) progress: Progress,
    pub(super) submitted: SubmissionTimes,
    pub(super) wakers: Vec<UserValue<Waker>>,
    pub(super) on_done: Option<UserValue<Box<dyn FnOnce() + Send>>>,
    /// Writing end of a pipe. Dropped when all tasks are done, which makes the reading end readable.
    pub(super) done_pipe: Option<PipeWriter>,
    pub(super) waiters: OutcomeWaiters,
    /// Failures of earlier attempts at tasks that are retried.
    pub(crate) failed: HashMap<usize, Attempts>,
    /// Outcomes of a stream. If set, `runs` is not used.
    pub(crate) tickets: Option<TicketOutcomes>,
}

/// Threads that wait for outcomes, and their conditions.
#[derive(Default)]
pub(super) struct OutcomeWaiters {
    /// Number of threads that are woken at each change.
    pub(super) all: usize,
    /// Number of done tasks at which one further thread is woken. That thread takes results while tasks run:
    /// a wake-up for every few results would take longer than reading the results.
    pub(super) some: Option<usize>,
}

/// Number of parts in which a thread takes the results of a call while tasks run.
pub(super) const PARTS: usize = 32;
/// Number of untaken runs of outcomes at which a thread that takes results is woken early. The limit prevents
/// the runs from filling the memory.
pub(super) const MANY_RUNS: usize = 256;

/// Reason why a push is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PushRefusal {
    /// The limit of tasks in flight is reached.
    Full,
    Closed,
}

impl CallOutcomes {
    /// Adds tasks, and returns the index of the first.
    pub(super) fn expect(&mut self, tasks: usize) -> usize {
        self.progress.total += tasks;
        self.submitted.add(tasks, Instant::now())
    }

    /// For a stream: returns the number of tasks whose outcomes were not taken.
    pub(crate) fn in_flight(&self) -> usize {
        self.tickets.as_ref().map_or(0, |tickets| self.progress.total - tickets.count_taken())
    }

    /// For a stream: checks that a task may be pushed.
    pub(crate) fn check_room(&self) -> Result<(), PushRefusal> {
        match &self.tickets {
            Some(tickets) if tickets.closed => Err(PushRefusal::Closed),
            Some(tickets) if self.in_flight() >= tickets.most => Err(PushRefusal::Full),
            Some(_) => Ok(()),
            None => Err(PushRefusal::Closed),
        }
    }

    /// For a stream: returns `true` if the stream is closed and all outcomes were taken.
    pub(crate) fn is_over(&self) -> bool {
        self.in_flight() == 0 && self.tickets.as_ref().is_none_or(|tickets| tickets.closed)
    }

    /// Takes the next outcomes, in the order of this call.
    pub(crate) fn next(&mut self) -> Option<OutcomeRun> {
        let run = if self.has_next() { self.runs.pop_first() } else { None };
        self.base += run.as_ref().map_or(0, |run| run.count);
        run
    }

    pub(crate) fn has_next(&self) -> bool {
        self.runs.first().is_some_and(|run| self.order == ResultOrder::Completion || run.first == self.base)
    }

    /// Returns `true` if `done` tasks are done, or if [`MANY_RUNS`] runs are stored and the next one can be
    /// taken.
    pub(super) fn has(&self, done: usize) -> bool {
        self.progress.done >= done || self.runs.len() >= MANY_RUNS && self.has_next()
    }

    /// Returns `true` if all outcomes were taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.base == self.progress.total
    }

    /// Stores outcomes. Returns the submission time of the first task, or `None` if a task had an outcome
    /// already.
    pub(super) fn settle(&mut self, run: OutcomeRun) -> Option<Instant> {
        let (first, count) = (run.first, run.count);
        let failed = if run.error().is_some() { count } else { 0 };
        if let Some(tickets) = &mut self.tickets {
            if !tickets.add(run) {
                return None;
            }
        } else if self.order == ResultOrder::Completion {
            self.runs.push(run);
        } else if !self.runs.insert(run, self.base, self.progress.total) {
            return None;
        }
        if !self.failed.is_empty() {
            (first..first + count).for_each(|index| _ = self.failed.remove(&index));
        }
        self.progress.done += count;
        self.progress.failed += failed;
        Some(self.submitted.settled(first, count).unwrap_or_else(Instant::now))
    }

    pub(crate) fn all_done(&self) -> bool {
        self.progress.done == self.progress.total
    }
    pub(super) fn will_wake(&self, waker: &Waker) -> bool {
        self.wakers.iter().any(|known| known.get().is_some_and(|known| known.will_wake(waker)))
    }
}
