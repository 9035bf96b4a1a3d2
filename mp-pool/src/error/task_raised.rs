//! Error of a task whose function returned an error or panicked.

use std::fmt;
use std::ops::Deref;

use mp_spawn::{ProcessName, ProcessRaised};
use serde::{Deserialize, Serialize};

use crate::error::attempts::Attempts;

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
