//! What is known about the process of one rank, and how it is doing.

use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::error::SpawnError;
use crate::error::exit_status::{ExitStatus, Signal};
use crate::io::captured::Streams;
use crate::parent::restart::supervised::Supervision;
use crate::protocol::payload::Received;
use crate::sys::pid_number;
use crate::sys::process_handle::Handle;

/// How a process is doing.
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
    /// It runs.
    Running,
    /// It ended without a failure: its function returned, or it called `exit(0)`.
    Ended,
    /// It failed. Its process may still be on its way out.
    Failed(SpawnError),
    /// It has ended and waits to be started again, or is being started: see [`Restart`](crate::Restart).
    Restarting {
        /// Which start comes next; the first was 1.
        attempt: u32,
        /// How its last process failed, if it did.
        error: Option<SpawnError>,
    },
    /// It was ended because another one failed, or because it is no longer wanted; this is the last signal that it got.
    EndedByUs(Signal),
}

/// A process that has not been reaped.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) handle: Arc<Handle>,
    /// Its number with the supervisor.
    pub(crate) id: u64,
    /// Until then the supervisor doesn't listen to it, so that only its end changes anything; later, a caller that asks makes
    /// the supervisor listen.
    pub(crate) alone_until: Option<Instant>,
}

impl Running {
    /// Until when it is left alone; `None` if that time is over.
    pub(crate) fn alone(&self) -> Option<Instant> {
        self.alone_until.filter(|until| Instant::now() < *until)
    }
}

/// What is known about the process of one rank.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) name: String,
    pub(crate) pid: Option<Pid>,
    /// While the process has not been reaped.
    pub(crate) running: Option<Running>,
    /// The time and the error of its failure.
    pub(crate) failure: Option<(u64, SpawnError)>,
    /// The time of the first and the name of the last signal that ended it for another one's sake.
    pub(crate) ending: Option<(u64, Signal)>,
    /// The last signal that the program sent to this one alone.
    pub(crate) asked: Option<Signal>,
    /// How it ended.
    pub(crate) exit: Option<ExitStatus>,
    /// Whether it had reported that it is a worker, if it has ended.
    pub(crate) begun: bool,
    /// Whether the program got its failure.
    pub(crate) told: bool,
    /// What its function returned.
    pub(crate) value: Option<Received>,
    /// Whether a caller has asked for that.
    pub(crate) value_taken: bool,
    pub(crate) streams: Streams,
    pub(crate) over: bool,
    /// Of a process that may be started again.
    pub(crate) supervision: Option<Box<Supervision>>,
}

impl Rank {
    pub(crate) fn new(name: String) -> Rank {
        Rank {
            name,
            pid: None,
            running: None,
            failure: None,
            ending: None,
            asked: None,
            exit: None,
            begun: false,
            told: false,
            value: None,
            value_taken: false,
            streams: Streams::default(),
            over: false,
            supervision: None,
        }
    }

    /// How it ended. A supervised process has not, as long as it may be started again.
    pub(crate) fn end(&self) -> Option<ExitStatus> {
        self.exit.filter(|_| self.over || self.supervision.is_none())
    }

    pub(crate) fn status(&self) -> ProcessStatus {
        if let Some(supervision) = self.supervision.as_ref().filter(|_| !self.over) {
            return supervision.status(self.failure.as_ref().map(|(_, error)| error));
        }
        match (&self.failure, self.over, self.ending) {
            (Some((_, error)), ..) => ProcessStatus::Failed(error.clone()),
            (None, false, _) => ProcessStatus::Running,
            (None, true, Some((_, signal))) => ProcessStatus::EndedByUs(signal),
            (None, true, None) => ProcessStatus::Ended,
        }
    }

    /// The program gets its state: a failure is not to be printed at the exit any more.
    pub(crate) fn tell(&mut self) {
        self.told |= self.failure.is_some();
    }

    /// Its process id; 0 before it has one.
    pub(crate) fn number(&self) -> u32 {
        self.pid.map_or(0, pid_number)
    }

    /// How it is doing, in a line.
    pub(crate) fn describe(&self) -> String {
        let pid = self.number();
        match self.status() {
            ProcessStatus::Running => format!("{} (pid {pid}): running", self.name),
            ProcessStatus::Ended => format!("{} (pid {pid}): ended", self.name),
            ProcessStatus::Failed(error) => error.to_string(),
            ProcessStatus::Restarting { attempt, .. } => {
                format!("{}: to be started (attempt {attempt})", self.name)
            }
            ProcessStatus::EndedByUs(signal) => {
                format!("{} (pid {pid}): ended by us with {signal}", self.name)
            }
        }
    }

    /// Sends a signal, unless the process is over.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        let Some(Running { handle, .. }) = &self.running else { return Ok(()) };
        let signal = if signal == Signal::KILL {
            rustix::process::Signal::KILL
        } else {
            rustix::process::Signal::TERM
        };
        match handle.signal(signal) {
            Err(Errno::SRCH) => Ok(()),
            result => result,
        }
    }
}
