//! What a program hears of a supervised process.

use std::fmt;
use std::time::Duration;

use mp_core::user_code::Apart;

use crate::error::SpawnError;
use crate::error::exit_status::ExitStatus;

/// Something that happened to a supervised process: see [`ProcessBuilder::on_event`](crate::ProcessBuilder::on_event). Its
/// `Display` is a line for a log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProcessEvent {
    /// It was started.
    Started {
        /// Its name.
        name: String,
        /// The process id that it has this time.
        pid: u32,
        /// Which start it was; the first is 1.
        attempt: u32,
    },
    /// It could not be started. That counts as a failure. (Of the first start it is the error of `spawn`, and no event.)
    NotStarted {
        /// Its name.
        name: String,
        /// Which start it was.
        attempt: u32,
        /// The reason.
        error: SpawnError,
    },
    /// It has ended, and was reaped.
    Exited {
        /// Its name.
        name: String,
        /// The process id that it had.
        pid: u32,
        /// Which start it was.
        attempt: u32,
        /// How it ended.
        exit: ExitStatus,
        /// How it failed, if it did.
        error: Option<SpawnError>,
    },
    /// It is to be started again.
    Restarting {
        /// Its name.
        name: String,
        /// Which start that is going to be.
        attempt: u32,
        /// How long it waits before that.
        after: Duration,
    },
    /// It has failed and is not started again: the last event. (If it ends otherwise, that is the last one.)
    GaveUp {
        /// What [`join`](crate::Process::join) returns: a [`SpawnError::GaveUp`], with all that came before.
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

/// Hears of a process.
pub(crate) type Listener = Apart<Box<dyn Fn(ProcessEvent) + Send + Sync>>;
