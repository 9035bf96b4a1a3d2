//! Snapshot of the running tasks.

use std::fmt;
use std::time::{Duration, Instant};

use crate::child::clock;
use crate::slots::slot::WorkerSlot;
use crate::slots::state::PoolState;
use crate::tasks::call_state::CallState;

/// Number of attempts at a consistent read of the shared words, which the worker may change meanwhile.
const READ_ATTEMPTS: usize = 4;

/// Task that a worker is running. Returned by [`Pool::running`](crate::Pool::running).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RunningTask {
    /// Number of the worker. In the worker, [`current_worker`](crate::current_worker) returns this number.
    pub worker: usize,
    /// Process id of the worker.
    pub pid: u32,
    /// Index of the task in its call, from 0.
    pub task: usize,
    /// Run time of the task. If its call has a [time-out](crate::Call::timeout), counted from the start of
    /// the task. Otherwise counted from an earlier time: when the pool sent the task to the worker, or last
    /// received a reply of this worker.
    pub running_for: Duration,
    /// Last [note](crate::note()) of the task, if any.
    pub note: Option<u64>,
}

impl fmt::Display for RunningTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunningTask { worker, pid, task, running_for, note } = self;
        write!(f, "worker {worker} (pid {pid}): task {task}, for {running_for:.1?}")?;
        note.map_or(Ok(()), |note| write!(f, ", at note {note}"))
    }
}

impl WorkerSlot {
    /// Returns the running task of this worker.
    fn running(&self, worker: usize, now: Instant) -> Option<RunningTask> {
        let (pid, chunk) = (self.pid, self.first().filter(|_| self.ready)?);
        let since_heard = now.saturating_duration_since(self.since);
        let timed = chunk.job.options.timeout.is_some();
        for _ in 0..READ_ATTEMPTS {
            let (word, note, since) =
                (self.shared_words.word(), self.shared_words.note(), self.shared_words.since());
            let running = |item: usize, running_for| {
                let task = chunk.first + item;
                RunningTask { worker, pid, task, running_for, note }
            };
            // The chunk word is not set for a single task without a time-out.
            if !timed && !word.is_of(chunk.id) && chunk.remaining() == 1 {
                return Some(running(chunk.reported, since_heard));
            }
            if !word.is_of(chunk.id) || word.is_done() {
                return None;
            }
            if self.shared_words.word() == word {
                let ran = Duration::from_nanos(clock::now().saturating_sub(since));
                return Some(running(word.next() - 1, if timed { ran } else { since_heard }));
            }
        }
        None
    }
}

impl PoolState {
    /// Returns the running tasks of this call, or of all calls.
    pub(crate) fn running_of(&self, job: Option<&CallState>) -> Vec<RunningTask> {
        let is_its = |worker: &WorkerSlot| {
            job.is_none_or(|job| worker.first().is_some_and(|chunk| std::ptr::eq(&*chunk.job, job)))
        };
        let now = Instant::now();
        let workers = self.workers.iter().enumerate().filter(|(_, worker)| is_its(worker));
        workers.filter_map(|(number, worker)| worker.running(number, now)).collect()
    }
}
