//! Snapshot of a pool's statistics.

use std::fmt;
use std::time::{Duration, Instant};

use crate::metrics::meter::{Histogram, Meter, TaskCounts};
use crate::slots::slot::{SentMessage, WorkerSlot};
use crate::slots::state::PoolState;
use mp_core::quantity;

/// Statistics of a pool, returned by [`Pool::metrics`](crate::Pool::metrics). Displayed as a line with the
/// numbers of tasks, a line for each kind of time, and a line for each worker.
///
/// Each submitted task is counted once: in `queued`, in `running`, or by its outcome.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PoolMetrics {
    /// [Name](crate::PoolBuilder::name) of the pool, if any.
    pub name: Option<String>,
    /// Number of tasks that have not begun.
    pub queued: usize,
    /// Number of tasks that workers are running.
    pub running: usize,
    /// Number of tasks with a result.
    pub done: u64,
    /// Number of tasks that ended with an error, a panic or a time-out, or whose arguments or result could
    /// not be sent.
    pub failed: u64,
    /// Number of tasks that were lost with their worker.
    pub lost: u64,
    /// Number of tasks that were cancelled, refused, or ended with the pool.
    pub cancelled: u64,
    /// Number of retries.
    pub retried: u64,
    /// Number of replaced workers.
    pub restarts: u64,
    /// Waiting times of answered tasks: from the call until the task began.
    pub waiting: Latencies,
    /// Run times of answered tasks.
    pub running_time: Latencies,
    /// Workers by number, including workers that [end](crate::Pool::resize) after their task.
    pub workers: Vec<WorkerMetrics>,
    /// Workers that can't start, by number, with the reasons.
    pub failed_starts: Vec<FailedStarts>,
}

/// Worker that can't start: each process that was started for it has failed before it was ready.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailedStarts {
    /// Number of the worker.
    pub worker: usize,
    /// Number of failed starts in a row.
    pub starts: u32,
    /// Reason of the last failure.
    pub why: String,
}

impl fmt::Display for FailedStarts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailedStarts { worker, starts, why } = self;
        let tries = if *starts == 1 { "a start has".to_owned() } else { format!("{starts} starts have") };
        write!(f, "worker {worker} can't begin: {tries} failed, the last one: {why}")
    }
}

/// Latency statistics of answered tasks, accurate to an eighth. Tasks that were answered together are counted
/// with their mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Latencies {
    /// Number of tasks measured.
    pub count: u64,
    /// Median latency.
    pub p50: Duration,
    /// 90th percentile.
    pub p90: Duration,
    /// 99th percentile.
    pub p99: Duration,
    /// Longest latency, exact.
    pub max: Duration,
}

impl Latencies {
    pub(crate) fn of(times: &Histogram) -> Latencies {
        let [p50, p90, p99, max] = [50, 90, 99, 100].map(|percent| times.percentile(percent));
        Latencies { count: times.count, p50, p90, p99, max }
    }
}

/// State of a worker of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WorkerState {
    /// The worker has no process. A process is started if the pool still wants this worker.
    Absent,
    /// The process was started and is not ready yet.
    Starting,
    /// The worker has no task.
    Idle,
    /// The worker has a task.
    Busy,
}

/// Statistics of one worker of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WorkerMetrics {
    /// Number of the worker. In the worker, [`current_worker`](crate::current_worker) returns this number.
    pub worker: usize,
    /// Process id of the worker; 0 if it has no process.
    pub pid: u32,
    /// State of the worker.
    pub state: WorkerState,
    /// Number of tasks that were sent to the worker and not answered, including the running one.
    pub tasks: usize,
    /// Time since the worker began its task, or the first of several unanswered tasks; zero if it has no
    /// task.
    pub busy_for: Duration,
}

impl WorkerSlot {
    /// Returns the failed starts of this worker, if it can't start.
    pub(crate) fn failed_to_start(&self, worker: usize) -> Option<FailedStarts> {
        let starts = self.failed_starts;
        (starts > 0 && !self.ready).then(|| FailedStarts { worker, starts, why: self.failed_why.clone() })
    }

    /// Returns the statistics of this worker.
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
        let tasks = self.unanswered.iter().map(|sent| match sent {
            SentMessage::Chunk { chunk, .. } => chunk.remaining(),
            SentMessage::FunctionChange { .. } => 0,
        });
        WorkerMetrics { worker, pid, state, tasks: tasks.sum(), busy_for }
    }
}

impl PoolState {
    /// Returns the statistics of all workers.
    fn metrics(&self) -> Vec<WorkerMetrics> {
        let now = Instant::now();
        let places = self.workers.iter().take(self.slot_count()).enumerate();
        places.map(|(number, worker)| worker.metrics(number, now)).collect()
    }
}

impl PoolMetrics {
    pub(crate) fn of(meter: &Meter, state: &PoolState) -> PoolMetrics {
        let TaskCounts { done, failed, lost, cancelled } = meter.ends;
        let PoolState { unsettled, retried, restarts, .. } = *state;
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
        let replaced = quantity(restarts, "worker");
        write!(f, "{cancelled} cancelled; {retried} tried again, {replaced} replaced")?;
        write!(f, "\nwaiting: {}\nrunning: {}", self.waiting, self.running_time)?;
        self.workers.iter().try_for_each(|worker| write!(f, "\n{worker}"))?;
        self.failed_starts.iter().try_for_each(|failed| write!(f, "\n{failed}"))
    }
}
