//! How a pool is doing, at one moment.

use std::fmt;
use std::time::{Duration, Instant};

use crate::metrics::meter::{Ends, Histogram, Meter};
use crate::workers::state::{Given, State, Worker};

/// How a pool is doing: what [`Pool::metrics`](crate::Pool::metrics) gives. Its text is a line for the tasks, one each for their
/// times, and one for each worker.
///
/// Each task that was given to the pool is counted once: in `queued`, in `running`, or by its end.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolMetrics {
    /// The pool's [name](crate::PoolBuilder::name), if it has one.
    pub name: Option<String>,
    /// Tasks that have not begun.
    pub queued: usize,
    /// Tasks that workers are at.
    pub running: usize,
    /// Tasks with a result.
    pub done: u64,
    /// Tasks that ended by their error or panic or by a time-out, or whose arguments or result could not be sent.
    pub failed: u64,
    /// Tasks that were lost with their worker.
    pub lost: u64,
    /// Tasks that were cancelled, or refused or ended with the pool.
    pub cancelled: u64,
    /// How often a task was tried again.
    pub retried: u64,
    /// How often a worker was started in the place of another.
    pub restarts: u64,
    /// How long tasks waited that a worker has answered: from the call until they began.
    pub waiting: Latencies,
    /// How long they ran.
    pub running_time: Latencies,
    /// The workers, by their number; also those that [end](crate::Pool::resize) after their task.
    pub workers: Vec<WorkerMetrics>,
    /// Those that can't begin, by their number, and why.
    pub failed_starts: Vec<FailedStarts>,
}

/// A worker that can't begin: each process that was started in its place has failed before it was ready.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailedStarts {
    /// Its number.
    pub worker: usize,
    /// How many starts have failed in a row.
    pub starts: u32,
    /// Why the last one did.
    pub why: String,
}

impl fmt::Display for FailedStarts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailedStarts { worker, starts, why } = self;
        let tries = if *starts == 1 { "a start has".to_owned() } else { format!("{starts} starts have") };
        write!(f, "worker {worker} can't begin: {tries} failed, the last so: {why}")
    }
}

/// How long something took, of all tasks that a worker has answered: to an eighth of the time. Of tasks that were answered
/// together, each counts as their mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Latencies {
    /// How many tasks it is of.
    pub count: u64,
    /// What half of them did not exceed.
    pub p50: Duration,
    /// What 90 of a hundred did not exceed.
    pub p90: Duration,
    /// What 99 of a hundred did not exceed.
    pub p99: Duration,
    /// The longest, exactly.
    pub max: Duration,
}

impl Latencies {
    pub(crate) fn of(times: &Histogram) -> Latencies {
        let [p50, p90, p99, max] = [50, 90, 99, 100].map(|percent| times.percentile(percent));
        Latencies { count: times.count(), p50, p90, p99, max }
    }
}

/// What a worker of a pool is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WorkerState {
    /// No process is there: one will be started, if the pool still wants this worker.
    Absent,
    /// Its process was started, and is not ready yet.
    Starting,
    /// It has nothing to do.
    Idle,
    /// It has a task.
    Busy,
}

/// One worker of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// Its number, as [`current_worker`](crate::current_worker) gives it there.
    pub worker: usize,
    /// Its process id; 0 if no process is there.
    pub pid: u32,
    /// What it is doing.
    pub state: WorkerState,
    /// Tasks that it was given and has not answered, the one that it is at included.
    pub tasks: usize,
    /// How long it has been at its task, or at several that it has not answered yet; zero if it has none.
    pub busy_for: Duration,
}

impl Worker {
    /// Why it can't begin.
    pub(crate) fn failed_to_start(&self, worker: usize) -> Option<FailedStarts> {
        let starts = self.failed_starts;
        (starts > 0 && !self.ready).then(|| FailedStarts { worker, starts, why: self.failed_why.clone() })
    }

    /// What it is doing.
    fn metrics(&self, worker: usize, now: Instant) -> WorkerMetrics {
        let state = match (&self.process, self.ready, self.outstanding) {
            (None, ..) => WorkerState::Absent,
            (Some(_), false, _) => WorkerState::Starting,
            (Some(_), true, 0) => WorkerState::Idle,
            (Some(_), true, _) => WorkerState::Busy,
        };
        let pid = if state == WorkerState::Absent { 0 } else { self.pid };
        let since = (state == WorkerState::Busy).then_some(self.since);
        let busy_for = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let tasks = self.given.iter().map(|given| match given {
            Given::Task { chunk, .. } => chunk.left(),
            Given::Note { .. } => 0,
        });
        WorkerMetrics { worker, pid, state, tasks: tasks.sum(), busy_for }
    }
}

impl State {
    /// What the workers are doing.
    fn metrics(&self) -> Vec<WorkerMetrics> {
        let now = Instant::now();
        let places = self.workers.iter().take(self.places()).enumerate();
        places.map(|(number, worker)| worker.metrics(number, now)).collect()
    }
}

impl PoolMetrics {
    pub(crate) fn of(meter: &Meter, state: &State) -> PoolMetrics {
        let Ends { done, failed, lost, cancelled } = meter.ends;
        let State { unsettled, retried, restarts, .. } = *state;
        let workers = state.metrics();
        let places = state.workers.iter().take(state.wanted).enumerate();
        let failed_starts = places.filter_map(|(number, worker)| worker.failed_to_start(number)).collect();
        let busy = workers.iter().filter(|worker| worker.state == WorkerState::Busy).count();
        let running = busy.min(unsettled);
        let queued = unsettled - running;
        let (waiting, running_time) = (Latencies::of(&meter.waiting), Latencies::of(&meter.running));
        PoolMetrics {
            name: None,
            queued,
            running,
            done,
            failed,
            lost,
            cancelled,
            retried,
            restarts,
            waiting,
            running_time,
            workers,
            failed_starts,
        }
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latencies { p50, p90, p99, max, .. } = self;
        write!(f, "p50 {p50:.1?}, p90 {p90:.1?}, p99 {p99:.1?}, longest {max:.1?}")
    }
}

impl fmt::Display for WorkerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkerMetrics { worker, pid, state, tasks, busy_for } = self;
        match state {
            WorkerState::Absent => write!(f, "worker {worker}: no process"),
            WorkerState::Starting => write!(f, "worker {worker} (pid {pid}): starting"),
            WorkerState::Idle => write!(f, "worker {worker} (pid {pid}): idle"),
            WorkerState::Busy => {
                write!(f, "worker {worker} (pid {pid}): busy for {busy_for:.1?}, {tasks} to answer")
            }
        }
    }
}

impl fmt::Display for PoolMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolMetrics { queued, running, done, failed, lost, cancelled, retried, restarts, .. } = self;
        if let Some(name) = &self.name {
            write!(f, "pool {name:?}: ")?;
        }
        write!(f, "{running} running, {queued} queued, {done} done, {failed} failed, {lost} lost, ")?;
        write!(f, "{cancelled} cancelled; {retried} tried again, {restarts} workers replaced")?;
        write!(f, "\nwaiting: {}\nrunning: {}", self.waiting, self.running_time)?;
        self.workers.iter().try_for_each(|worker| write!(f, "\n{worker}"))?;
        self.failed_starts.iter().try_for_each(|failed| write!(f, "\n{failed}"))
    }
}
