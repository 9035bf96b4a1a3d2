//! State of the process of one rank.

use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::Pid;

use crate::error::{ExitStatus, Signal, SpawnError};
use crate::io::streams::OutputStreams;
use crate::parent::restart::event::{ProcessEvent, ProcessStatus};
use crate::parent::restart::supervision::{RestartPhase, Supervision};
use crate::protocol::payload::ReceivedValue;
use crate::sys::{ProcessHandle, pid_number};

/// Process that has not been reaped.
#[derive(Clone, Debug)]
pub(crate) struct RunningProcess {
    pub(crate) handle: Arc<ProcessHandle>,
    /// Number of the process in the supervisor.
    pub(crate) id: u64,
    /// Time until which the supervisor does not watch the messages of the process, so that only its end
    /// changes the state. After that time, the first query by a caller makes the supervisor watch the
    /// messages.
    pub(crate) unwatched_until: Option<Instant>,
}

impl RunningProcess {
    /// Returns the time until which the messages are not watched, or `None` if it has passed.
    pub(crate) fn unwatched(&self) -> Option<Instant> {
        self.unwatched_until.filter(|until| Instant::now() < *until)
    }
}

/// State of the process of one rank.
pub(crate) struct RankState {
    pub(crate) name: String,
    pub(crate) pid: Option<Pid>,
    /// Handle of the process until it is reaped.
    pub(crate) running: Option<RunningProcess>,
    /// Time and error of the failure.
    pub(crate) failure: Option<(u64, SpawnError)>,
    /// Time of the first signal, and the last signal, by which the process was ended because of another
    /// process.
    pub(crate) ending: Option<(u64, Signal)>,
    /// Last signal that the program sent to this process alone.
    pub(crate) requested_signal: Option<Signal>,
    /// Exit status, if the process has ended.
    pub(crate) exit: Option<ExitStatus>,
    /// `true` if the process had reported as a worker before it ended.
    pub(crate) begun: bool,
    /// `true` if the failure was returned to the program.
    pub(crate) reported: bool,
    /// Value that the function returned.
    pub(crate) value: Option<ReceivedValue>,
    /// `true` if a caller has taken the value.
    pub(crate) value_taken: bool,
    pub(crate) streams: OutputStreams,
    pub(crate) over: bool,
    /// Supervision of a process that may be restarted.
    pub(crate) supervision: Option<Box<Supervision>>,
}

impl RankState {
    pub(crate) fn new(name: String) -> RankState {
        RankState {
            name,
            pid: None,
            running: None,
            failure: None,
            ending: None,
            requested_signal: None,
            exit: None,
            begun: false,
            reported: false,
            value: None,
            value_taken: false,
            streams: OutputStreams::default(),
            over: false,
            supervision: None,
        }
    }

    /// Records that a supervised process was started. If a signal for the process was requested during the
    /// start, sends that signal now.
    pub(crate) fn record_start(&mut self) {
        let (pid, late) =
            (self.pid_number(), self.requested_signal.or(self.ending.map(|(_, signal)| signal)));
        let Some(supervision) = &mut self.supervision else { return };
        supervision.phase = RestartPhase::Running;
        supervision.since = Instant::now();
        let attempt = supervision.attempt();
        supervision.queue_event(|| ProcessEvent::Started { name: self.name.clone(), pid, attempt });
        if let Some(signal) = late {
            // Fails if the process has just ended.
            let _ = self.signal(signal);
        }
    }

    /// Returns the exit status. `None` for a supervised process that may still be restarted.
    pub(crate) fn exit_status(&self) -> Option<ExitStatus> {
        self.exit.filter(|_| self.over || self.supervision.is_none())
    }

    pub(crate) fn status(&self) -> ProcessStatus {
        if let Some(supervision) = self.supervision.as_ref().filter(|_| !self.over) {
            return supervision.status(self.failure.as_ref().map(|(_, error)| error));
        }
        match (&self.failure, self.over, self.ending) {
            (Some((_, error)), ..) => ProcessStatus::Failed(error.clone()),
            (None, false, _) => ProcessStatus::Running,
            (None, true, Some((_, signal))) => ProcessStatus::Terminated(signal),
            (None, true, None) => ProcessStatus::Ended,
        }
    }

    /// Records that the status was returned to the program, so that a failure is not printed at the exit.
    pub(crate) fn mark_reported(&mut self) {
        self.reported |= self.failure.is_some();
    }

    /// Returns the process id, or 0 if the process has not been started.
    pub(crate) fn pid_number(&self) -> u32 {
        self.pid.map_or(0, pid_number)
    }

    /// Returns the status in one line.
    pub(crate) fn describe(&self) -> String {
        let pid = self.pid_number();
        match self.status() {
            ProcessStatus::Running => format!("{} (pid {pid}): running", self.name),
            ProcessStatus::Ended => format!("{} (pid {pid}): ended", self.name),
            ProcessStatus::Failed(error) => error.to_string(),
            ProcessStatus::Restarting { attempt, .. } => {
                format!("{}: to be started (attempt {attempt})", self.name)
            }
            ProcessStatus::Terminated(signal) => {
                format!("{} (pid {pid}): ended by us with {signal}", self.name)
            }
        }
    }

    /// Sends a signal, unless the process has ended.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Errno> {
        let Some(RunningProcess { handle, .. }) = &self.running else { return Ok(()) };
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
