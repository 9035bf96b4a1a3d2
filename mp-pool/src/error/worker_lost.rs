//! Error of a task whose worker has ended.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use mp_spawn::{ExitDetail, ExitReport, ExitStatus, ProcessName, ProcessRaised};
use serde::{Deserialize, Serialize};

use crate::error::attempts::Attempts;
use crate::error::pool_error::of_pool;

/// Error returned when a worker process ended while it had a task.
///
/// ```
/// use mp_pool::{Pool, TaskError};
/// use mp_spawn::Stdio;
///
/// fn solve(x: f64) -> f64 {
///     eprintln!("solving for {x}");
///     std::process::abort()
/// }
///
/// let pool = Pool::builder().processes(1).stderr(Stdio::Capture).build()?;
/// let Err(TaskError::WorkerLost(lost)) = pool.apply(solve, 0.5) else { panic!("it can't be solved") };
/// assert_eq!(lost.stderr.as_deref(), Some("solving for 0.5"));
/// // worker 0 (pid 77) had this task when it was killed by SIGABRT (signal 6)
/// //   the last lines of its stderr:
/// //     solving for 0.5
/// println!("{lost}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerLost {
    /// Number of the worker.
    pub worker: usize,
    /// Process id of the worker.
    pub pid: u32,
    /// [Name](crate::PoolBuilder::name) of the pool, if any.
    #[serde(with = "mp_core::serde_with::shared::text")]
    pub pool: Option<Arc<str>>,
    /// Exit code or signal.
    pub exit: ExitStatus,
    /// Further details, if known.
    pub detail: Option<ExitDetail>,
    /// Last lines of the worker's stderr, if it is captured (see
    /// [`PoolBuilder::stderr`](crate::PoolBuilder::stderr)) and not empty. May include output of earlier
    /// tasks.
    pub stderr: Option<String>,
    /// Attempts at the task: more than one if it was retried.
    pub attempts: Attempts,
    /// Last [note](crate::note()) of the task, if any: its progress.
    pub note: Option<u64>,
}

impl fmt::Display for WorkerLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkerLost { worker, pid, pool, exit, detail, stderr, attempts, note } = self;
        let end = ExitReport { exit: *exit, detail: detail.as_ref(), stderr: stderr.as_deref() };
        write!(f, "worker {worker} (pid {pid}){} had this task", of_pool(pool))?;
        attempts.fmt(f)?;
        if let Some(note) = note {
            write!(f, ", at note {note},")?;
        }
        write!(f, " when it {end}")
    }
}

/// Error returned when the function of a task returned an error or panicked. Dereferences to
/// [`ProcessRaised`], and records the attempts.
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskRaised {
    /// The error or panic.
    pub raised: ProcessRaised,
    /// Attempts at the task.
    pub attempts: Attempts,
    /// Last [note](crate::note()) of the task, if any: its progress.
    pub note: Option<u64>,
}

/// Returns `worker 3 (pid 77)`, with the name of its process if its pool has one.
pub(crate) fn worker_named(worker: usize, who: &ProcessName) -> String {
    let ProcessName { name, pid, .. } = who;
    if *name == format!("pool-worker-{worker}") {
        return format!("worker {worker} (pid {pid})");
    }
    format!("worker {worker} ({name}, pid {pid})")
}

impl TaskRaised {
    pub(crate) fn new(raised: ProcessRaised, note: u64) -> Self {
        let note = Some(note).filter(|note| *note != 0);
        TaskRaised { raised, attempts: Attempts::default(), note }
    }
}

impl Deref for TaskRaised {
    type Target = ProcessRaised;

    fn deref(&self) -> &ProcessRaised {
        &self.raised
    }
}

impl fmt::Display for TaskRaised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProcessRaised { who, .. } = &self.raised;
        let text = if f.alternate() { format!("{:#}", self.raised) } else { self.raised.to_string() };
        match (who.rank, text.strip_prefix(&who.to_string())) {
            (Some(worker), Some(rest)) => write!(f, "{}{rest}", worker_named(worker, who))?,
            _ => f.write_str(&text)?,
        }
        fmt::Display::fmt(&self.attempts, f)
    }
}

mp_core::readable_debug!(TaskRaised);

impl std::error::Error for TaskRaised {}
