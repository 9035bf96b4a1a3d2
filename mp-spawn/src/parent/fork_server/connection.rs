//! Connection to a fork server: see [`fork_server`](crate::parent::fork_server).
//!
//! At most one process is made in advance. Its process id is in the [pid cell](crate::child::clone) from its
//! creation until a start has taken the process, so it can be ended even if the server has ended. The parent
//! has no other information about a process that was made in advance: the server answers only when asked. (An
//! answer without a request would be read while the process is started, and the read would wake the server,
//! which waits at the same socket.)

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::long_lived_fds;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::{Pid, Signal};

use crate::child::clone::PidCell;
use crate::error::{ExitStatus, Result, SpawnError, launch_error};
use crate::parent::fork_server::deadline::ServerDeadline;
use crate::parent::fork_server::pending_child::{EXIT_TIME, PendingChild, ReadyChild, hung_up};
use crate::parent::launch::command::{LaunchCommand, LaunchOptions};
use crate::parent::launch::{self, LaunchedProcess, nonce, socket_pair};
use crate::parent::supervisor;
use crate::protocol::fields::to_bytes;
use crate::protocol::frame::{FrameKind, Inbox};
use crate::protocol::function::FunctionRef;
use crate::protocol::lifeline;
use crate::protocol::message::{ServerAnswer, unpack};
use crate::protocol::outbox::{Outbox, is_gone};
use crate::sys::proc_stat::ProcessActivity;
use crate::sys::{ProcessHandle, deadline, pid_number, timespec};

/// Reason why a server can no longer be used. The exit status of the server is reported separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerFailure {
    /// The server has exited, or was killed.
    Gone,
    /// Another reason, in words.
    Other(String),
}

impl<E: ToString> From<E> for ServerFailure {
    fn from(why: E) -> ServerFailure {
        ServerFailure::Other(why.to_string())
    }
}

/// Report about a server that was ended.
pub(crate) struct EndedServer {
    pub(crate) pid: u32,
    /// Exit status, if the server has ended.
    pub(crate) exit: Option<ExitStatus>,
    pub(crate) error: SpawnError,
    /// `true` if another server may succeed: this server was killed, or ended after it had served.
    pub(crate) is_replaceable: bool,
}

/// Time to wait for a process that got a SIGKILL.
const AFTER_KILL: Duration = Duration::from_secs(10);
const MALFORMED: &str = "its answer is malformed";

/// Fork server, and the connection to it.
#[derive(Debug)]
pub(crate) struct ForkServer {
    /// Process that the server belongs to. Differs from the current process after a fork.
    owner: u32,
    /// Command that started the server.
    command: LaunchCommand,
    process: Arc<ProcessHandle>,
    /// Nonblocking socket to the server.
    socket: OwnedFd,
    inbox: Inbox,
    pid_cell: PidCell,
    pending: Option<PendingChild>,
    /// Process that the server kept ready for the next start, and that had ended before that start.
    lost: Option<Pid>,
}

impl ForkServer {
    /// Starts a server, and waits until it is ready.
    pub(crate) fn start(
        command: &LaunchCommand,
        preload: Option<FunctionRef>,
        timeout: Duration,
    ) -> Result<std::result::Result<ForkServer, EndedServer>> {
        let refused = |error| launch_error("the start of the fork server", Some(&command.program), error);
        let (pid_cell, file) = PidCell::new().map_err(refused)?;
        let start = {
            let command = command.clone();
            // Interrupts stay blocked until the server ignores them.
            move || {
                launch::launch(&command, &LaunchOptions { interrupts_wait: true, ..LaunchOptions::default() })
            }
        };
        let LaunchedProcess { handle, socket, .. } = supervisor::run_on_lasting_thread(start)?;
        let process = Arc::new(handle);
        let mut server = ForkServer {
            owner: std::process::id(),
            command: command.clone(),
            process: Arc::clone(&process),
            socket,
            inbox: Inbox::default(),
            pid_cell,
            pending: None,
            lost: None,
        };
        long_lived_fds::register("fork server: socket", &server.socket);
        long_lived_fds::register("fork server: process", &process.sentinel());
        supervisor::watch_server(&process)?;
        let what = preload.as_ref().map(|preload| preload.name.clone()).unwrap_or_default();
        let mut answer = server.send_start(preload, file, ServerDeadline::new(timeout));
        let preloads = matches!(answer, Ok(ServerAnswer::Preloading));
        if preloads {
            answer = server.recv_answer(&mut ServerDeadline::preloading(what, timeout));
        }
        let why = match answer {
            Ok(ServerAnswer::Done) => return Ok(Ok(server)),
            Ok(ServerAnswer::Failed(why)) => why.into(),
            Ok(ServerAnswer::Refused(_) | ServerAnswer::Preloading) => MALFORMED.into(),
            Err(why) => why,
        };
        let buried = server.shut_down("the start of the fork server", &why);
        // A server that exits by itself would do so again, and one that is killed may be killed because of
        // its preloaded function.
        let was_killed = matches!(buried.exit, Some(ExitStatus::Signal { .. }));
        let is_replaceable = buried.is_replaceable && was_killed && !preloads;
        Ok(Err(EndedServer { is_replaceable, ..buried }))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns `true` if the server belongs to this process and was started by the same command.
    pub(crate) fn is_started_by(&self, command: &LaunchCommand) -> bool {
        self.owner == std::process::id() && self.command.is_same_as(command)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.process.reap().is_some()
    }

    /// Starts a process: sends these frames to the process that was made in advance, if it is alive,
    /// otherwise to a new process, and requests the next process. The outer error means that this server can
    /// no longer be used.
    pub(crate) fn start_process(
        &mut self,
        outbox: &mut Outbox,
        timeout: Duration,
    ) -> Result<Result<LaunchedProcess>, ServerFailure> {
        let mut limit = ServerDeadline::new(timeout);
        let ahead = self.pending.is_some();
        let mut made = self.take_child(&mut limit)?;
        if ahead {
            match made {
                Ok(waiting) if waiting.is_waiting() => made = Ok(waiting),
                // The request may have been refused for lack of a resource that is available by now.
                gone => {
                    self.lost = gone.ok().map(|gone| gone.pid);
                    made = self.take_child(&mut limit)?;
                }
            }
        }
        Ok(made.map(|ReadyChild { pid, handle, pending: PendingChild { socket, nonce } }| {
            // Sent before anything else, because the process waits for it. The supervisor, which watches the
            // process, sends the rest, and determines the cause of a failure.
            let _ = outbox.flush(socket.as_fd());
            // From here on this start owns the process.
            self.pid_cell.clear();
            self.request_next(&mut limit);
            LaunchedProcess { pid, handle, socket, nonce }
        }))
    }

    /// Returns the process that was made in advance and had ended before the last start needed it, if there
    /// was one.
    pub(crate) fn take_lost(&mut self) -> Option<u32> {
        self.lost.take().map(pid_number)
    }

    /// Takes a process that waits for its start message.
    fn take_child(&mut self, limit: &mut ServerDeadline) -> Result<Result<ReadyChild>, ServerFailure> {
        let answer = if self.pending.is_none() {
            if let Err(error) = self.request_child(true, limit)? {
                return Ok(Err(error));
            }
            self.recv_answer(limit)?
        } else if self.pid_cell.read().is_some() {
            ServerAnswer::Done
        } else {
            // The process is being made, or could not be made.
            let mut outbox = Outbox::default();
            outbox.append(FrameKind::Ask, &[])?;
            self.send(outbox, limit)?;
            self.recv_answer(limit)?
        };
        match (answer, self.pid_cell.read()) {
            (ServerAnswer::Done, Some(pid)) => {
                let pending = self.pending.take().ok_or(MALFORMED)?;
                Ok(ReadyChild::new(pid, pending))
            }
            (ServerAnswer::Refused(number), None) => {
                self.pending = None;
                let refused = io::Error::from_raw_os_error(number);
                Ok(Err(launch_error("clone3 in the fork server", None, refused)))
            }
            (ServerAnswer::Failed(why), _) => Err(why.into()),
            _ => Err(MALFORMED.into()),
        }
    }

    /// Requests the process for the next start. If the request fails, the next start repeats the request, and
    /// returns an error if it fails again.
    fn request_next(&mut self, limit: &mut ServerDeadline) {
        if self.pending.is_none() {
            let _ = self.request_child(false, limit);
        }
    }

    /// Requests a process from the server. With `and_ask`, also requests an answer, which the server sends
    /// when it has made the process.
    fn request_child(
        &mut self,
        and_ask: bool,
        limit: &mut ServerDeadline,
    ) -> Result<Result<()>, ServerFailure> {
        let (ours, theirs) = match socket_pair() {
            Ok(pair) => pair,
            Err(error) => return Ok(Err(launch_error("socketpair", None, error))),
        };
        let lifeline = match lifeline::new_end() {
            Ok(lifeline) => lifeline,
            Err(error) => return Ok(Err(error)),
        };
        let mut outbox = Outbox::owning([theirs].into_iter().chain(lifeline).collect());
        let nonce = nonce();
        self.pid_cell.clear();
        outbox.append(FrameKind::Fork, &nonce.to_le_bytes())?;
        if and_ask {
            outbox.append(FrameKind::Ask, &[])?;
        }
        // From here on the process may be made, even if the server crashes before all is sent.
        long_lived_fds::register("fork server: socket of the next process", &ours);
        self.pending = Some(PendingChild { socket: ours, nonce });
        self.send(outbox, limit).map(Ok)
    }

    /// Sends the server its start message, and waits for the answer.
    fn send_start(
        &mut self,
        preload: Option<FunctionRef>,
        pid_cell: OwnedFd,
        mut limit: ServerDeadline,
    ) -> Result<ServerAnswer, ServerFailure> {
        let mut outbox = Outbox::owning(vec![pid_cell]);
        outbox.append(FrameKind::Serve, &to_bytes(&preload))?;
        self.send(outbox, &mut limit)?;
        self.recv_answer(&mut limit)
    }

    fn send(&self, mut outbox: Outbox, limit: &mut ServerDeadline) -> Result<(), ServerFailure> {
        loop {
            match outbox.flush(self.socket.as_fd()) {
                Ok(true) => return Ok(()),
                Ok(false) => self.wait(PollFlags::OUT, limit)?,
                Err(error) if is_gone(&error) => return Err(ServerFailure::Gone),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn recv_answer(&mut self, limit: &mut ServerDeadline) -> Result<ServerAnswer, ServerFailure> {
        loop {
            if let Some(frame) = self.inbox.next()? {
                if frame.kind != FrameKind::Answer {
                    return Err(format!("it sent a frame of kind {:?}", frame.kind).into());
                }
                return Ok(unpack(&frame.payload)?);
            }
            let mut chunk = [MaybeUninit::<u8>::uninit(); 4096];
            match rustix::net::recv(&self.socket, &mut chunk, RecvFlags::DONTWAIT) {
                Ok(((bytes, _), 1..)) => self.inbox.push(bytes),
                Ok(_) | Err(Errno::CONNRESET) => return Err(ServerFailure::Gone),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, limit)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until the socket is ready.
    fn wait(&self, ready: PollFlags, limit: &mut ServerDeadline) -> Result<(), ServerFailure> {
        let left = limit.until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        // Waits for the end of the server too, because a process that the server has made may hold the other
        // end of the socket.
        let sentinel = self.process.sentinel();
        let mut fds = [PollFd::new(&self.socket, ready), PollFd::new(&sentinel, PollFlags::IN)];
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(0) => {
                let activity = ProcessActivity::read(self.process.pid());
                if limit.extend(self.process.pid(), activity.as_ref()) {
                    return Ok(());
                }
                let activity = activity.map_or_else(String::new, |activity| format!(": {activity}"));
                let see = "see `handshake_timeout` of `SpawnOptions` and `ProcessBuilder`";
                Err(format!("it did not report in time ({see}){activity}").into())
            }
            // The server's messages are read before its end is handled.
            Ok(_) if fds[0].revents().is_empty() => Err(ServerFailure::Gone),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the server, and the process that it keeps ready for the next start, if any. The error in the
    /// report contains the attempted action `what` and the reason `why`.
    pub(crate) fn shut_down(mut self, what: &'static str, why: &ServerFailure) -> EndedServer {
        let exit = self.end();
        let pid = self.process.pid();
        let ended = exit.map_or_else(|| "does not end".to_string(), |exit| exit.to_string());
        let (is_replaceable, why) = match why {
            ServerFailure::Gone => (true, "it is gone"),
            ServerFailure::Other(why) => (false, why.as_str()),
        };
        let error =
            io::Error::other(format!("{why} (pid {pid}, which {ended}); the next start begins another one"));
        let error = launch_error(what, Some(&self.command.program), error);
        EndedServer { pid, exit, error, is_replaceable }
    }

    /// Ends the server, and the process that it keeps ready if no start has taken that process.
    fn end(&mut self) -> Option<ExitStatus> {
        let ended = self.process.end(deadline(AFTER_KILL));
        if let (Some(PendingChild { socket, .. }), Some(pid)) = (self.pending.take(), self.pid_cell.read())
            && let Ok(handle) = ProcessHandle::find(pid)
        {
            let is_there = !hung_up(&socket);
            // The process exits when its socket is closed, also if this process may not signal it.
            drop(socket);
            if is_there {
                // See `ReadyChild::is_waiting`.
                let _ = handle.signal(Signal::KILL);
            }
            handle.reap_until(deadline(if is_there { AFTER_KILL } else { EXIT_TIME }));
        }
        self.pid_cell.clear();
        ended
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Stdio};

    use super::*;

    /// Returns a process that sleeps, and its process id.
    fn sleeper() -> (Child, Pid) {
        let child = std::process::Command::new("sleep").arg("120").stdin(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        (child, pid)
    }

    /// Returns a server with a pending process, the sleeping child that stands in for the server, the child's
    /// process id, and the socket end that the pending process would have.
    fn server(pid_cell: PidCell) -> (ForkServer, Child, Pid, OwnedFd) {
        let (child, pid) = sleeper();
        let handle = ProcessHandle::open(pid).unwrap();
        let process = Arc::new(handle);
        let (socket, _) = socket_pair().unwrap();
        let (ours, theirs) = socket_pair().unwrap();
        let command = LaunchCommand::new(None, &FunctionRef::example()).unwrap();
        let pending = Some(PendingChild { socket: ours, nonce: 0 });
        let owner = std::process::id();
        (
            ForkServer {
                owner,
                command,
                process,
                socket,
                inbox: Inbox::default(),
                pid_cell,
                pending,
                lost: None,
            },
            child,
            pid,
            theirs,
        )
    }

    fn is_there(pid: Pid) -> bool {
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).is_ok()
    }

    #[test]
    fn process_in_the_pid_cell_ends_with_its_fork_server() {
        let (pid_cell, _) = PidCell::new().unwrap();
        let (_child, unknown) = sleeper();
        pid_cell.write(unknown);
        let (server, _server, pid, _theirs) = server(pid_cell);
        let error = server.shut_down("a test", &ServerFailure::Gone).error;
        assert!(error.to_string().contains("SIGKILL"), "{error}");
        // Reaped: no process has these numbers.
        assert!(!is_there(pid) && !is_there(unknown));
    }

    #[test]
    fn ended_process_is_reaped_with_its_fork_server() {
        let (pid_cell, _) = PidCell::new().unwrap();
        let (mut child, unknown) = sleeper();
        pid_cell.write(unknown);
        let (server, _server, pid, theirs) = server(pid_cell);
        drop(theirs);
        child.kill().unwrap();
        drop(server);
        assert!(!is_there(pid) && !is_there(unknown));
    }

    #[test]
    fn process_taken_by_a_start_survives_its_fork_server() {
        let (pid_cell, _) = PidCell::new().unwrap();
        let (mut child, known) = sleeper();
        pid_cell.write(known);
        pid_cell.clear();
        let (server, _server, pid, _theirs) = server(pid_cell);
        drop(server.shut_down("a test", &ServerFailure::Gone));
        assert!(!is_there(pid) && is_there(known));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
