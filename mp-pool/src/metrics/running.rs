//! What runs at one moment.

use std::fmt;
use std::time::{Duration, Instant};

use crate::calls::job::Job;
use crate::clock;
use crate::workers::state::{State, Worker};

/// How often to look again, if the worker went on meanwhile.
const LOOKS: usize = 4;

/// A task that a worker is at: see [`Pool::running`](crate::Pool::running).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RunningTask {
    /// The number of the worker, as [`current_worker`](crate::current_worker) gives it there.
    pub worker: usize,
    /// Its process id.
    pub pid: u32,
    /// Which task of its call it is, from 0.
    pub task: usize,
    /// How long it has been running: since it began, if its call has a [time-out](crate::Call::timeout); else since the pool gave it to
    /// the worker or last heard from that, which was earlier.
    pub running_for: Duration,
    /// Its last [note](crate::note()), if it has one.
    pub note: Option<u64>,
}

impl fmt::Display for RunningTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunningTask { worker, pid, task, running_for, note } = self;
        write!(f, "worker {worker} (pid {pid}): task {task}, for {running_for:.1?}")?;
        note.map_or(Ok(()), |note| write!(f, ", at note {note}"))
    }
}

impl Worker {
    /// The task that it is at.
    fn running(&self, worker: usize, now: Instant) -> Option<RunningTask> {
        let (pid, chunk) = (self.pid, self.first().filter(|_| self.ready)?);
        let since_heard = now.saturating_duration_since(self.since);
        let timed = chunk.job.terms.timeout.is_some();
        for _ in 0..LOOKS {
            let (word, note, since) = (self.watch.word(), self.watch.note(), self.watch.since());
            let running = |item: usize, running_for| {
                let task = chunk.first + item;
                RunningTask { worker, pid, task, running_for, note }
            };
            // The chunk word says nothing of a task that is alone and may take as long as it likes.
            if !timed && !word.is_of(chunk.id) && chunk.left() == 1 {
                return Some(running(chunk.reported, since_heard));
            }
            if !word.is_of(chunk.id) || word.is_done() {
                return None;
            }
            if self.watch.word() == word {
                let ran = Duration::from_nanos(clock::now().saturating_sub(since));
                return Some(running(word.next() - 1, if timed { ran } else { since_heard }));
            }
        }
        None
    }
}

impl State {
    /// What the workers are at of this call, or of any.
    pub(crate) fn running_of(&self, job: Option<&Job>) -> Vec<RunningTask> {
        let is_its = |worker: &Worker| {
            job.is_none_or(|job| worker.first().is_some_and(|chunk| std::ptr::eq(&*chunk.job, job)))
        };
        let now = Instant::now();
        let workers = self.workers.iter().enumerate().filter(|(_, worker)| is_its(worker));
        workers.filter_map(|(number, worker)| worker.running(number, now)).collect()
    }

    /// What the workers are at.
    pub(crate) fn running(&self) -> Vec<RunningTask> {
        self.running_of(None)
    }
}
