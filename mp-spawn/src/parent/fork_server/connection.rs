//! Connection to a fork server: see [`forkserver`](crate::parent::fork_server).
//!
//! At most one process is ordered in advance. Its number is on the [slip](crate::child::clone) from its
//! creation until a start has taken it, so it can be ended whatever happens to the server. The parent has no
//! other information about a process that was made in advance: the server answers only when asked. (A waiting
//! answer would be read just when the process is to begin, and reading it would wake the server, which waits
//! at the same socket.)

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::kept::kept;
use mp_core::mutex::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, Signal};

use crate::child::clone::Slip;
use crate::error::exit_status::ExitStatus;
use crate::error::failed;
use crate::error::{Result, SpawnError};
use crate::parent::fork_server::deadline::ServerDeadline;
use crate::parent::launch::{self, Command, Launched, Particulars};
use crate::parent::supervisor;
use crate::protocol::frame::{self, Inbox, Kind};
use crate::protocol::function::FunctionRef;
use crate::protocol::lifeline;
use crate::protocol::message::{Answer, Serve};
use crate::protocol::outbox::Outbox;
use crate::sys::clock::{deadline, timespec};
use crate::sys::pid_number;
use crate::sys::proc_stat::Doing;
use crate::sys::process_handle::{self, Handle};

/// Reason why a server can't be used any more. Its exit status is reported in addition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The server has exited, or was killed.
    Gone,
    /// Another reason, in words.
    Other(String),
}

impl From<String> for Trouble {
    fn from(why: String) -> Trouble {
        Trouble::Other(why)
    }
}

impl From<&str> for Trouble {
    fn from(why: &str) -> Trouble {
        Trouble::Other(why.to_string())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trouble::Gone => "it is gone",
            Trouble::Other(why) => why,
        })
    }
}

/// Report about a server that was ended.
pub(crate) struct Buried {
    pub(crate) pid: u32,
    /// Exit status, if the server has ended.
    pub(crate) exit: Option<ExitStatus>,
    pub(crate) error: SpawnError,
    /// `true` if another server may succeed: this one was killed, or had served.
    pub(crate) is_replaceable: bool,
}

/// Time to wait for a process that got a SIGKILL.
const AFTER_KILL: Duration = Duration::from_secs(10);
/// Time to wait for a process that has closed its files, the last step before its end.
const AT_ITS_END: Duration = Duration::from_secs(1);
const NONSENSE: &str = "its answer is malformed";

/// Fork server, and the connection to it.
#[derive(Debug)]
pub(crate) struct Server {
    /// Process that it belongs to. Differs from the current process after a fork.
    process: u32,
    /// Command that it was started by.
    command: Command,
    life: Arc<Life>,
    /// Nonblocking.
    socket: OwnedFd,
    inbox: Inbox,
    slip: Slip,
    ordered: Option<Ordered>,
    /// Process that was made in advance and found dead.
    lost: Option<Pid>,
}

/// Process that was requested from a server and that no start has taken yet.
#[derive(Debug)]
struct Ordered {
    /// Parent's end of its socket.
    socket: OwnedFd,
    nonce: u64,
}

/// Process that a server has made.
struct Made {
    pid: Pid,
    handle: Handle,
    ordered: Ordered,
}

impl Made {
    fn of(pid: Pid, ordered: Ordered) -> Result<Made> {
        match Handle::find(pid) {
            Ok(handle) => Ok(Made { pid, handle, ordered }),
            Err(error) => {
                // The process is alive, so its number can't be reused.
                if !hung_up(&ordered.socket) {
                    process_handle::end(pid);
                }
                Err(error)
            }
        }
    }

    /// Returns `true` if the process waits for its start message. Otherwise reaps it.
    ///
    /// A process that has waited for a long time may have ended and been reaped, by the kernel if SIGCHLD is
    /// ignored, or by code that waits for any child. Then the handle may refer to another process. It does
    /// not if the other end of the socket is open now, because the handle was made before this check.
    fn is_there(&self) -> bool {
        let sentinel = self.handle.sentinel();
        let mut both =
            [PollFd::new(&self.ordered.socket, PollFlags::empty()), PollFd::new(&sentinel, PollFlags::IN)];
        // Neither descriptor has events to report.
        let asked = retry_on_intr(|| rustix::event::poll(&mut both, Some(&Timespec::default())));
        let is_there = asked == Ok(0);
        if !is_there {
            reap(&self.handle, AT_ITS_END);
        }
        is_there
    }
}

/// State of a fork server process.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) pid: u32,
    pub(crate) handle: Handle,
    exit: Mutex<Option<ExitStatus>>,
}

impl Server {
    /// Starts a server, and waits until it is ready.
    pub(crate) fn begin(
        command: &Command,
        preload: Option<FunctionRef>,
        timeout: Duration,
    ) -> Result<std::result::Result<Server, Buried>> {
        let refused = |error| failed("the start of the fork server", Some(&command.program), error);
        let (slip, file) = Slip::new().map_err(refused)?;
        let start = {
            let command = command.clone();
            // The server ignores interrupts as soon as it can.
            move || launch::launch(&command, &Particulars { interrupts_wait: true, ..Particulars::default() })
        };
        let Launched { pid, handle, socket, .. } = supervisor::on_lasting_thread(start)?;
        let life = Arc::new(Life { pid: pid_number(pid), handle, exit: Mutex::new(None) });
        let mut server = Server {
            process: std::process::id(),
            command: command.clone(),
            life: Arc::clone(&life),
            socket,
            inbox: Inbox::default(),
            slip,
            ordered: None,
            lost: None,
        };
        kept("fork server: socket", &server.socket);
        kept("fork server: process", &life.handle.sentinel());
        supervisor::watch_server(&life)?;
        let what = preload.as_ref().map(|preload| preload.name.clone()).unwrap_or_default();
        let mut answer = server.serve(preload, file.as_fd(), ServerDeadline::of(timeout));
        let preloads = matches!(answer, Ok(Answer::Preloading));
        if preloads {
            answer = server.hear(&mut ServerDeadline::while_it_preloads(what, timeout));
        }
        let why = match answer {
            Ok(Answer::Done) => return Ok(Ok(server)),
            Ok(Answer::Failed(why)) => why.into(),
            Ok(Answer::Refused(_) | Answer::Preloading) => NONSENSE.into(),
            Err(why) => why,
        };
        let buried = server.bury("the start of the fork server", &why);
        // A server that exits by itself would do so again, and one that is killed may be killed because of
        // its preloaded function.
        let was_killed = matches!(buried.exit, Some(ExitStatus::Signal { .. }));
        let is_replaceable = buried.is_replaceable && was_killed && !preloads;
        Ok(Err(Buried { is_replaceable, ..buried }))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.life.pid
    }

    /// Returns `true` if the server belongs to this process and was started by such a command.
    pub(crate) fn is_of(&self, command: &Command) -> bool {
        self.process == std::process::id() && self.command.is_as(command)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.life.exit().is_some()
    }

    /// Starts a process: sends these frames to the process that was made in advance, if it lives, or else to
    /// another one, and requests the next process. The outer error means that this server can't be used any
    /// more.
    pub(crate) fn start(
        &mut self,
        outbox: &mut Outbox,
        timeout: Duration,
    ) -> Result<Result<Launched>, Trouble> {
        let mut limit = ServerDeadline::of(timeout);
        let ahead = self.ordered.is_some();
        let mut made = self.take(&mut limit)?;
        if ahead {
            match made {
                Ok(waiting) if waiting.is_there() => made = Ok(waiting),
                // The request may have been refused for lack of a resource that is available by now.
                gone => {
                    self.lost = gone.ok().map(|gone| gone.pid);
                    made = self.take(&mut limit)?;
                }
            }
        }
        Ok(made.map(|Made { pid, handle, ordered: Ordered { socket, nonce } }| {
            // Sent before anything else, because the process waits for it. The supervisor, which watches the
            // process, sends the rest, and determines the cause of a failure.
            let _ = outbox.flush(socket.as_fd());
            // From here on this start owns the process.
            self.slip.clear();
            self.order_ahead(&mut limit);
            Launched { pid, handle, socket, nonce }
        }))
    }

    /// Returns the process that was made in advance and had ended before the last start needed it, if there
    /// was one.
    pub(crate) fn lost(&mut self) -> Option<u32> {
        self.lost.take().map(pid_number)
    }

    /// Takes a process that waits for its start message.
    fn take(&mut self, limit: &mut ServerDeadline) -> Result<Result<Made>, Trouble> {
        let answer = if self.ordered.is_none() {
            if let Err(error) = self.order(true, limit)? {
                return Ok(Err(error));
            }
            self.hear(limit)?
        } else if self.slip.read().is_some() {
            Answer::Done
        } else {
            // The process is being made, or could not be made.
            let mut bytes = Vec::new();
            append(&mut bytes, Kind::Ask, &[])?;
            self.send(&bytes, &[], limit)?;
            self.hear(limit)?
        };
        match (answer, self.slip.read()) {
            (Answer::Done, Some(pid)) => {
                let ordered = self.ordered.take().ok_or(NONSENSE)?;
                Ok(Made::of(pid, ordered))
            }
            (Answer::Refused(number), None) => {
                self.ordered = None;
                let refused = io::Error::from_raw_os_error(number);
                Ok(Err(failed("clone3 in the fork server", None, refused)))
            }
            (Answer::Failed(why), _) => Err(why.into()),
            _ => Err(NONSENSE.into()),
        }
    }

    /// Requests the process for the next start. If that fails, the next start requests it again, and returns
    /// the error.
    fn order_ahead(&mut self, limit: &mut ServerDeadline) {
        if self.ordered.is_none() {
            let _ = self.order(false, limit);
        }
    }

    /// Requests a process. With `and_ask`, also requests an answer when it is made.
    fn order(&mut self, and_ask: bool, limit: &mut ServerDeadline) -> Result<Result<()>, Trouble> {
        let (ours, theirs) = match launch::socket_pair() {
            Ok(pair) => pair,
            Err(error) => return Ok(Err(failed("socketpair", None, error))),
        };
        let lifeline = match lifeline::end() {
            Ok(lifeline) => lifeline,
            Err(error) => return Ok(Err(error)),
        };
        let fds: Vec<_> =
            [Some(theirs.as_fd()), lifeline.as_ref().map(AsFd::as_fd)].into_iter().flatten().collect();
        let nonce = launch::nonce();
        self.slip.clear();
        let mut bytes = Vec::new();
        append(&mut bytes, Kind::Fork, &nonce.to_le_bytes())?;
        if and_ask {
            append(&mut bytes, Kind::Ask, &[])?;
        }
        // From here on the process may be made, even if the server crashes before all is sent.
        kept("fork server: socket of the next process", &ours);
        self.ordered = Some(Ordered { socket: ours, nonce });
        self.send(&bytes, &fds, limit).map(Ok)
    }

    /// Sends the start message of the server.
    fn serve(
        &mut self,
        preload: Option<FunctionRef>,
        slip: BorrowedFd<'_>,
        mut limit: ServerDeadline,
    ) -> Result<Answer, Trouble> {
        let payload = rmp_serde::to_vec(&Serve { preload }).map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        append(&mut bytes, Kind::Serve, &payload)?;
        self.send(&bytes, &[slip], &mut limit)?;
        self.hear(&mut limit)
    }

    fn send(
        &self,
        mut rest: &[u8],
        mut fds: &[BorrowedFd<'_>],
        limit: &mut ServerDeadline,
    ) -> Result<(), Trouble> {
        while !rest.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err("too many file descriptors".into());
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&self.socket, &[io::IoSlice::new(rest)], &mut control, flags) {
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    fds = &[];
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, limit)?,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Trouble::Gone),
                Err(error) => return Err(error.to_string().into()),
            }
        }
        Ok(())
    }

    fn hear(&mut self, limit: &mut ServerDeadline) -> Result<Answer, Trouble> {
        loop {
            if let Some(frame) = self.inbox.next().map_err(|error| error.to_string())? {
                if frame.kind != Kind::Answer {
                    return Err(format!("it sent a frame of kind {:?}", frame.kind).into());
                }
                return crate::protocol::message::unpack(&frame.payload)
                    .map_err(|error| error.to_string().into());
            }
            let mut chunk = [MaybeUninit::<u8>::uninit(); 4096];
            match rustix::net::recv(&self.socket, &mut chunk, RecvFlags::DONTWAIT) {
                Ok(((bytes, _), 1..)) => self.inbox.push(bytes),
                Ok(_) | Err(Errno::CONNRESET) => return Err(Trouble::Gone),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, limit)?,
                Err(error) => return Err(error.to_string().into()),
            }
        }
    }

    /// Waits until the socket is ready.
    fn wait(&self, ready: PollFlags, limit: &mut ServerDeadline) -> Result<(), Trouble> {
        let left = limit.until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        // Waits for its end too, because a process that the server has left may hold the other end of the
        // socket.
        let sentinel = self.life.handle.sentinel();
        let mut fds = [PollFd::new(&self.socket, ready), PollFd::new(&sentinel, PollFlags::IN)];
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(0) => {
                let doing = Doing::of(self.life.pid);
                if limit.is_left_for(self.life.pid, doing.as_ref()) {
                    return Ok(());
                }
                let doing = doing.map_or_else(String::new, |doing| format!(": {doing}"));
                let see = "see `handshake_timeout` of `SpawnOptions` and `ProcessBuilder`";
                Err(format!("it did not report in time ({see}){doing}").into())
            }
            // Its messages are read before its end is handled.
            Ok(_) if fds[0].revents().is_empty() => Err(Trouble::Gone),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.to_string().into()),
        }
    }

    /// Ends the server, with the process that it may have made in advance. The error has the attempted action
    /// and the reason.
    pub(crate) fn bury(mut self, what: &'static str, why: &Trouble) -> Buried {
        let exit = self.end();
        let pid = self.life.pid;
        let ended = exit.map_or_else(|| "does not end".to_string(), |exit| exit.to_string());
        let error =
            io::Error::other(format!("{why} (pid {pid}, which {ended}); the next start begins another one"));
        let program = self.command.program.as_path();
        let error = failed(what, Some(program), error);
        Buried { pid, exit, error, is_replaceable: *why == Trouble::Gone }
    }

    /// Ends the server, and a process that it may have made and that no start has taken yet.
    fn end(&mut self) -> Option<ExitStatus> {
        let ended = self.life.end();
        if let (Some(Ordered { socket, .. }), Some(pid)) = (self.ordered.take(), self.slip.read())
            && let Ok(handle) = Handle::find(pid)
        {
            let is_there = !hung_up(&socket);
            // The process exits when its socket is closed, also if this process may not signal it.
            drop(socket);
            if is_there {
                // See `Made::is_there`.
                let _ = handle.signal(Signal::KILL);
            }
            reap(&handle, if is_there { AFTER_KILL } else { AT_ITS_END });
        }
        self.slip.clear();
        ended
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.end();
        }
    }
}

fn append(out: &mut Vec<u8>, kind: Kind, payload: &[u8]) -> Result<(), Trouble> {
    frame::append(out, kind, payload).map_err(|error| error.to_string().into())
}

/// Returns `true` if the process at the other end of this socket is gone.
fn hung_up(socket: &OwnedFd) -> bool {
    let mut end = [PollFd::new(socket, PollFlags::empty())];
    let asked = retry_on_intr(|| rustix::event::poll(&mut end, Some(&Timespec::default())));
    asked.is_ok() && end[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Reaps a process that has ended, or is about to.
fn reap(handle: &Handle, time: Duration) {
    let until = deadline(time);
    while handle.reap().is_none() && until.is_none_or(|until| Instant::now() < until) {
        let left = until.map_or(time, |until| until.saturating_duration_since(Instant::now()));
        // After an interrupted or refused wait the loop checks again.
        let _ =
            rustix::event::poll(&mut [PollFd::new(&handle.sentinel(), PollFlags::IN)], Some(&timespec(left)));
    }
}

impl Life {
    /// Returns the exit status, if the server has ended, and reaps it.
    pub(crate) fn exit(&self) -> Option<ExitStatus> {
        let mut exit = self.exit.lock();
        if exit.is_none() {
            *exit = self.handle.reap();
        }
        *exit
    }

    /// Kills the server, and waits for its end.
    fn end(&self) -> Option<ExitStatus> {
        let over = self.exit();
        if over.is_some() {
            return over;
        }
        // Fails only if the server has just ended.
        let _ = self.handle.signal(Signal::KILL);
        // The processes that it has made are known only after its end.
        let until = deadline(AFTER_KILL);
        loop {
            let left = until.map_or(AFTER_KILL, |until| until.saturating_duration_since(Instant::now()));
            match rustix::event::poll(
                &mut [PollFd::new(&self.handle.sentinel(), PollFlags::IN)],
                Some(&timespec(left)),
            ) {
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return self.exit(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Stdio};

    use super::*;

    /// Returns a process that waits, and its number.
    fn sleeper() -> (Child, Pid) {
        let child = std::process::Command::new("sleep").arg("120").stdin(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        (child, pid)
    }

    /// Returns a stand-in for a server that was asked for a process, its child, its number, and the end of
    /// the socket that the process would have.
    fn server(slip: Slip) -> (Server, Child, Pid, OwnedFd) {
        let (child, pid) = sleeper();
        let handle = Handle::of(pid).unwrap();
        let life = Arc::new(Life { pid: pid_number(pid), handle, exit: Mutex::new(None) });
        let (socket, _) = launch::socket_pair().unwrap();
        let (ours, theirs) = launch::socket_pair().unwrap();
        let command = Command::new(None, &FunctionRef::example()).unwrap();
        let ordered = Some(Ordered { socket: ours, nonce: 0 });
        let process = std::process::id();
        (
            Server { process, command, life, socket, inbox: Inbox::default(), slip, ordered, lost: None },
            child,
            pid,
            theirs,
        )
    }

    fn is_there(pid: Pid) -> bool {
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).is_ok()
    }

    #[test]
    fn a_process_that_only_the_slip_knows_is_ended_and_reaped_with_its_server() {
        let (slip, _) = Slip::new().unwrap();
        let (_child, unknown) = sleeper();
        slip.write(unknown);
        let (server, _server, pid, _theirs) = server(slip);
        let error = server.bury("a test", &Trouble::Gone).error;
        assert!(error.to_string().contains("SIGKILL"), "{error}");
        // Reaped: no process has these numbers any more.
        assert!(!is_there(pid) && !is_there(unknown));
    }

    #[test]
    fn one_that_has_ended_by_itself_is_reaped_with_its_server() {
        let (slip, _) = Slip::new().unwrap();
        let (mut child, unknown) = sleeper();
        slip.write(unknown);
        let (server, _server, pid, theirs) = server(slip);
        drop(theirs);
        child.kill().unwrap();
        drop(server);
        assert!(!is_there(pid) && !is_there(unknown));
    }

    #[test]
    fn a_signal_at_the_look_takes_no_process_for_gone() {
        let (mut child, pid) = sleeper();
        let (socket, _theirs) = launch::socket_pair().unwrap();
        let made = Made { pid, handle: Handle::of(pid).unwrap(), ordered: Ordered { socket, nonce: 0 } };
        let until = Instant::now() + std::time::Duration::from_secs(60);
        crate::sys::interrupted(|handled| {
            let before = handled();
            while handled().wrapping_sub(before) < 1_000 {
                assert!(Instant::now() < until, "no signals arrive");
                assert!(made.is_there(), "it waits for its start message");
                assert!(!hung_up(&made.ordered.socket));
            }
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!made.is_there());
    }

    #[test]
    fn a_process_that_was_handed_out_is_not_touched() {
        let (slip, _) = Slip::new().unwrap();
        let (mut child, known) = sleeper();
        slip.write(known);
        slip.clear();
        let (server, _server, pid, _theirs) = server(slip);
        drop(server.bury("a test", &Trouble::Gone));
        assert!(!is_there(pid) && is_there(known));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
