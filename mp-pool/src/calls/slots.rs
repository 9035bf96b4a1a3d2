//! The outcomes of one call so far, as they are handed out; and what the threads that wait for them wait for.

use std::collections::HashMap;
use std::io::PipeWriter;
use std::task::Waker;
use std::time::Instant;

use mp_core::user_code::Apart;

use crate::calls::brought::Brought;
use crate::calls::outcomes::Run;
use crate::calls::runs::Runs;
use crate::calls::tickets::Tickets;
use crate::error::attempts::Attempts;

/// How outcomes are handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// By the index of the task.
    AsGiven,
    /// As they come.
    AsDone,
}

/// How far a call is.
///
/// ```
/// let pool = mp_pool::Pool::new(2)?;
/// let squares = pool.map_async(|x: u64| x * x, 0..100);
/// squares.wait();
/// assert_eq!((squares.progress().done, squares.progress().total), (100, 100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// Tasks that are done, well or not.
    pub done: usize,
    /// Those among them that have no result.
    pub failed: usize,
    /// All tasks.
    pub total: usize,
}

/// The outcomes so far.
pub(crate) struct Slots {
    pub(super) order: Order,
    /// The index of the first task whose outcome was not handed out.
    pub(super) base: usize,
    /// In the order of their tasks, or as they came.
    pub(super) runs: Runs,
    pub(super) progress: Progress,
    pub(super) brought: Brought,
    pub(super) wakers: Vec<Apart<Waker>>,
    pub(super) on_done: Option<Apart<Box<dyn FnOnce() + Send>>>,
    /// Dropped when all is done: then the other end is readable.
    pub(super) done_pipe: Option<PipeWriter>,
    pub(super) waiters: Waiters,
    /// Of tasks that are tried again: how their attempts failed.
    pub(crate) failed: HashMap<usize, Attempts>,
    /// Of a stream: takes the place of `runs`.
    pub(crate) tickets: Option<Tickets>,
}

/// Threads that wait for outcomes: what they have to be woken for.
#[derive(Default)]
pub(super) struct Waiters {
    /// Those that are to look at each change.
    pub(super) all: usize,
    /// Of one that takes results while tasks are done: how many have to be done before it is woken. To wake it for each few of them takes
    /// longer than to read them.
    pub(super) some: Option<usize>,
}

/// Into how many parts the results of a call are divided, for a thread that takes them while others come.
pub(super) const PARTS: usize = 32;
/// How many runs of results are left to lie in memory before that.
pub(super) const MANY_RUNS: usize = 256;

/// Why nothing is pushed into a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// As many are on their way as may be.
    Full,
    Closed,
}

impl Slots {
    /// Tasks will come; the index of the first.
    pub(super) fn expect(&mut self, tasks: usize) -> usize {
        self.progress.total += tasks;
        self.brought.add(tasks, Instant::now())
    }

    /// Of a stream: how many tasks were pushed whose outcomes were not taken.
    pub(crate) fn under_way(&self) -> usize {
        self.tickets.as_ref().map_or(0, |tickets| self.progress.total - tickets.count_taken())
    }

    /// Of a stream: whether a task may be pushed.
    pub(crate) fn has_room(&self) -> Result<(), Refused> {
        match &self.tickets {
            Some(tickets) if tickets.closed => Err(Refused::Closed),
            Some(tickets) if self.under_way() >= tickets.most => Err(Refused::Full),
            Some(_) => Ok(()),
            None => Err(Refused::Closed),
        }
    }

    /// Of a stream: whether nothing is to be taken any more.
    pub(crate) fn is_over(&self) -> bool {
        self.under_way() == 0 && self.tickets.as_ref().is_none_or(|tickets| tickets.closed)
    }

    /// The next outcomes, in the order of this call.
    pub(crate) fn next(&mut self) -> Option<Run> {
        let run = if self.has_next() { self.runs.pop_first() } else { None };
        self.base += run.as_ref().map_or(0, |run| run.count);
        run
    }

    pub(crate) fn has_next(&self) -> bool {
        self.runs.first().is_some_and(|run| self.order == Order::AsDone || run.first == self.base)
    }

    /// Whether this number of tasks is done, or so much is there that it is better taken soon.
    pub(super) fn has(&self, done: usize) -> bool {
        self.progress.done >= done || self.runs.len() >= MANY_RUNS && self.has_next()
    }

    /// Whether all outcomes were handed out.
    pub(crate) fn is_empty(&self) -> bool {
        self.base == self.progress.total
    }

    /// Notes what came of tasks; when the first was brought, if they had no outcome yet.
    pub(super) fn settle(&mut self, run: Run) -> Option<Instant> {
        let (first, count) = (run.first, run.count);
        let failed = if run.has_failed() { count } else { 0 };
        if let Some(tickets) = &mut self.tickets {
            if !tickets.add(run) {
                return None;
            }
        } else if self.order == Order::AsDone {
            self.runs.push(run);
        } else if !self.runs.insert(run, self.base, self.progress.total) {
            return None;
        }
        if !self.failed.is_empty() {
            (first..first + count).for_each(|index| _ = self.failed.remove(&index));
        }
        self.progress.done += count;
        self.progress.failed += failed;
        Some(self.brought.settled(first, count).unwrap_or_else(Instant::now))
    }

    pub(crate) fn all_done(&self) -> bool {
        self.progress.done == self.progress.total
    }
    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }
    pub(super) fn will_wake(&self, waker: &Waker) -> bool {
        self.wakers.iter().any(|known| known.get().is_some_and(|known| known.will_wake(waker)))
    }
}
