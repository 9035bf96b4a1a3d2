//! Status and events of a process.

use std::fmt;
use std::time::Duration;

use mp_core::user_code::UserValue;
use serde::{Deserialize, Serialize};

use crate::error::{ExitStatus, Signal, SpawnError};

/// Event of a supervised process: see [`ProcessBuilder::on_event`](crate::ProcessBuilder::on_event). Its
/// `Display` is a line for a log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProcessEvent {
    /// The process was started.
    Started {
        /// Name of the process.
        name: String,
        /// Process id of this start.
        pid: u32,
        /// Number of the start, counted from 1.
        attempt: u32,
    },
    /// The process could not be started, which counts as a failure. (If the first start fails, `spawn`
    /// returns the error, and there is no event.)
    NotStarted {
        /// Name of the process.
        name: String,
        /// Number of the start.
        attempt: u32,
        /// Error of the start.
        error: SpawnError,
    },
    /// The process has ended, and was reaped.
    Exited {
        /// Name of the process.
        name: String,
        /// Process id of the process that has ended.
        pid: u32,
        /// Number of the start.
        attempt: u32,
        /// Exit status.
        exit: ExitStatus,
        /// Failure of the process, if it failed.
        error: Option<SpawnError>,
    },
    /// The process is going to be restarted.
    Restarting {
        /// Name of the process.
        name: String,
        /// Number of the next start.
        attempt: u32,
        /// Delay before the next start.
        after: Duration,
    },
    /// The process has failed and is not restarted. This is the last event. (If the process ends in another
    /// way, the event of that end is the last one.)
    GaveUp {
        /// Error that [`join`](crate::Process::join) returns: a [`SpawnError::GaveUp`], with all earlier
        /// failures.
        error: SpawnError,
    },
}

impl fmt::Display for ProcessEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessEvent::Started { name, pid, attempt } => {
                write!(f, "{name} was started (pid {pid}, attempt {attempt})")
            }
            ProcessEvent::NotStarted { name, attempt, error } => {
                write!(f, "{name} could not be started (attempt {attempt}): {error}")
            }
            ProcessEvent::Exited { name, attempt, error: Some(error), .. } => {
                write!(f, "attempt {attempt} of {name} failed: {error}")
            }
            ProcessEvent::Exited { name, pid, attempt, exit, error: None } => {
                write!(f, "{name} (pid {pid}, attempt {attempt}) {exit}")
            }
            ProcessEvent::Restarting { name, attempt, after } => {
                write!(f, "attempt {attempt} of {name} follows in {after:.1?}")
            }
            ProcessEvent::GaveUp { error } => error.fmt(f),
        }
    }
}

/// Callback for the events of a process.
pub(crate) type EventListener = UserValue<Box<dyn Fn(ProcessEvent) + Send + Sync>>;

/// Status of a process.
///
/// ```
/// use mp_spawn::{SpawnOptions, ProcessStatus, start_processes};
///
/// let context = start_processes(|_rank: usize, (): ()| {}, (), SpawnOptions::nprocs(1))?;
/// context.wait()?;
/// assert!(matches!(context.status(0)?, ProcessStatus::Ended));
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ProcessStatus {
    /// The process runs.
    Running,
    /// The process ended without a failure: its function returned, or it called `exit(0)`.
    Ended,
    /// The process failed. It may not have exited yet.
    Failed(SpawnError),
    /// The process has ended and waits for a restart, or is being started: see [`Restart`](crate::Restart).
    Restarting {
        /// Number of the next start, or of the start in progress. The first start was 1.
        attempt: u32,
        /// Failure of the previous start or of its process, if either failed.
        error: Option<SpawnError>,
    },
    /// The process was ended because another process failed, or because it was no longer needed. Contains the
    /// last signal that was sent.
    Terminated(Signal),
}
