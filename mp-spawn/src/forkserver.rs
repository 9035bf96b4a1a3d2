//! The fork server as the process that started it sees it.
//!
//! | dies | what happens |
//! |---|---|
//! | the server, idle | it is reaped at once; the next start fails and says how it ended, the one after begins another |
//! | the server, while it calls what is preloaded | the start that waits for it fails and says how it ended, the next one begins another |
//! | the server, asked for a process | that start fails; if the process was made already, it is ended and reaped |
//! | a process that it has made | as any other: it is a child of this process, and its sentinel is exact |
//! | this process | the server and all processes end with it |
//!
//! A server that is stopped delays the starts that need it, at most for [`Options::handshake_timeout`] each; then it is
//! ended, as a process that does not report is. (One that waits for a disk, or has had no processor, gets that time a few times
//! more: its successor would have to wait as well.) That it is a server, a new one has to say in that time, too. What it is to
//! preload it calls then, and that is waited for as long as it lives: loading what takes long is what preloading is for. Only one
//! that is found stopped when that time is over, and has still not moved when it is over again, is ended. Whoever waits has the
//! log told what it waits for, once.
//!
//! [`Options::handshake_timeout`]: crate::Options::handshake_timeout

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, Signal};
use serde::Serialize;

use crate::clock::{deadline, timespec};
use crate::doing::Doing;
use crate::error::Result;
use crate::event::event;
use crate::exit::Exit;
use crate::function::{FunctionRef, Preloaded};
use crate::handle::Handle;
use crate::launch::{self, Command, Launched, Particulars, failed};
use crate::message::{Answer, Fork, Serve};
use crate::patience::Patience;
use crate::rank::pid_number;
use crate::setup::Setup;
use crate::sibling::Slip;
use crate::watch::Outbox;
use crate::wire::{self, Inbox, Kind};
use crate::{start, supervisor};

/// Why a server doesn't answer any more; how it ended is said beside it.
const GONE: &str = "it is gone";
/// How long to wait for a process that got a SIGKILL.
const AFTER_KILL: Duration = Duration::from_secs(10);

static SERVER: PerProcess<Mutex<Option<Server>>> = PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);
static PRELOAD: PerProcess<Mutex<Option<FunctionRef>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// A fork server, and the line to it.
#[derive(Debug)]
struct Server {
    /// The process that it belongs to: another one after a fork.
    process: u32,
    /// What it was started by.
    command: Command,
    life: Arc<Life>,
    /// Does not block.
    socket: OwnedFd,
    inbox: Inbox,
    slip: Slip,
}

/// Whether a fork server lives.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) pid: u32,
    pub(crate) handle: Handle,
    exit: Mutex<Option<Exit>>,
}

/// What fork servers call once when they start, before they make processes. It takes effect at the next start by
/// [`StartMethod::ForkServer`](crate::StartMethod::ForkServer): a server that runs already is ended, its processes are not.
///
/// ```
/// use mp_spawn::{Options, StartMethod, set_forkserver_preload, start_processes};
/// use std::sync::OnceLock;
///
/// static TABLE: OnceLock<Vec<u64>> = OnceLock::new();
///
/// // Computed once, and there in every process.
/// set_forkserver_preload(|| _ = TABLE.set((0..1000).map(|n| n * n).collect()))?;
/// let worker = |rank: usize, (): ()| Ok::<_, String>(TABLE.get().ok_or("it is not there")?[rank]);
/// let options = Options::nprocs(3).start_method(StartMethod::ForkServer);
/// assert_eq!(start_processes(worker, (), options)?.join()?, [0, 1, 4]);
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
///
/// What it leaves in memory, each process has a copy of. It must leave no thread running, make no shared memory (tensors,
/// queues) and not use a GPU: the first two make the start fail, and say so. If it panics, the start fails with its
/// message; if it ends the server, with how that ended.
///
/// # Blocking
///
/// The first start by a server waits until what it preloads has returned, however long that takes, and other starts by it wait
/// with that one; so does this function, if one waits. [`Options::handshake_timeout`](crate::Options::handshake_timeout) bounds
/// only how long the server may take before it, and how long it may be stopped meanwhile. If it takes longer than that time,
/// the log is told so (feature `log`), with the server's process id: whoever kills that process has the start fail.
///
/// # Errors
///
/// [`SpawnError::Launch`](crate::SpawnError::Launch) if nothing tells this program's build from others.
pub fn set_forkserver_preload<F: Fn() + Copy + Send + 'static>(function: F) -> Result<()> {
    // Only its type is needed, which says which function it is.
    let _ = function;
    *PRELOAD.lock() = Some(start::reference(Preloaded::<F>::DESC)?);
    let old = SERVER.lock().take();
    drop(old);
    Ok(())
}

/// What [`set_forkserver_preload`] has set.
pub(crate) fn preload() -> Option<FunctionRef> {
    PRELOAD.lock().clone()
}

/// In a copy of the process that has set it.
pub(crate) fn inherit_preload(preload: Option<FunctionRef>) {
    *PRELOAD.lock() = preload;
}

/// Starts a process: asks the server, which is started first if there is none. From any thread.
pub(crate) fn launch(
    command: &Command,
    particulars: &Particulars,
    setup: &Setup,
    outbox: &mut Outbox,
    patience: Duration,
) -> Result<Launched> {
    let (ours, theirs) = launch::socket_pair().map_err(|error| failed("socketpair", None, error))?;
    let nonce = launch::nonce();
    // The process finds it when it looks for it the first time. What doesn't fit is sent later.
    outbox.flush(ours.as_fd()).map_err(|error| failed("sendmsg", None, error))?;
    let bytes = |text: &std::ffi::OsString| text.as_bytes().to_vec();
    let request = Fork {
        nonce,
        environment: setup.environment.iter().map(|(n, v)| (bytes(n), v.as_ref().map(bytes))).collect(),
        stdout: particulars.ends.stdout.is_some(),
        stderr: particulars.ends.stderr.is_some(),
    };
    let streams = [&particulars.ends.stdout, &particulars.ends.stderr];
    let fds: Vec<_> = [&theirs].into_iter().chain(streams.into_iter().flatten()).map(AsFd::as_fd).collect();

    let mut slot = SERVER.lock();
    let Found { mut server, is_new } = running(slot.take(), command, patience)?;
    let begun = is_new.then_some(server.life.pid);
    let pid = match server.fork(&request, &fds, Patience::of(patience)) {
        Ok(Ok(pid)) => pid,
        Ok(Err(refused)) => {
            *slot = Some(server);
            return Err(failed("clone3 in the fork server", None, refused));
        }
        Err(why) => return Err(failed("the fork server", None, server.bury(&why))),
    };
    *slot = Some(server);
    drop(slot);
    if let Some(pid) = begun {
        event!(Debug, "a fork server (pid {pid}) was started");
    }
    // It is our child and has not been reaped, so the id is its own.
    Ok(Launched { pid, handle: Handle::of(pid)?, socket: ours, nonce })
}

/// A server to ask.
struct Found {
    server: Server,
    is_new: bool,
}

/// The server of this program, or a new one.
fn running(server: Option<Server>, command: &Command, patience: Duration) -> Result<Found> {
    let ours = |server: &Server| server.process == std::process::id() && server.command.is_as(command);
    if let Some(server) = server.filter(ours) {
        return match server.life.exit() {
            None => Ok(Found { server, is_new: false }),
            Some(_) => Err(failed("the fork server", None, server.bury(GONE))),
        };
    }
    let refused = |error| failed("the start of the fork server", Some(&command.program), error);
    let (slip, file) = Slip::new().map_err(refused)?;
    let start = {
        let command = command.clone();
        move || launch::launch(&command, &Particulars::default())
    };
    let Launched { pid, handle, socket, .. } = supervisor::on_lasting_thread(start)?;
    let life = Arc::new(Life { pid: pid_number(pid), handle, exit: Mutex::new(None) });
    let (process, command) = (std::process::id(), command.clone());
    let mut server =
        Server { process, command, life: Arc::clone(&life), socket, inbox: Inbox::default(), slip };
    supervisor::watch_server(&life)?;
    let preload = self::preload();
    let what = preload.as_ref().map(|preload| preload.name.clone()).unwrap_or_default();
    let mut answer = server.ask(Kind::Serve, &Serve { preload }, &[file.as_fd()], Patience::of(patience));
    if let Ok(Answer::Preloading) = answer {
        answer = server.hear(&mut Patience::while_it_preloads(what, patience));
    }
    let why = match answer {
        Ok(Answer::Done) => return Ok(Found { server, is_new: true }),
        Ok(Answer::Failed(why)) => why,
        Ok(Answer::Refused(_) | Answer::Preloading) => "its answer makes no sense".to_string(),
        Err(why) => why,
    };
    Err(refused(server.bury(&why)))
}

impl Server {
    /// Asks for a process. The outer error says that nothing is to be expected from this server any more.
    fn fork(
        &mut self,
        request: &Fork,
        fds: &[BorrowedFd<'_>],
        patience: Patience,
    ) -> Result<io::Result<Pid>, String> {
        self.slip.clear();
        match self.ask(Kind::Fork, request, fds, patience)? {
            Answer::Done => {
                let pid = self.slip.read().ok_or("its answer makes no sense")?;
                // From here on the process is somebody's.
                self.slip.clear();
                Ok(Ok(pid))
            }
            Answer::Refused(number) => Ok(Err(io::Error::from_raw_os_error(number))),
            Answer::Failed(why) => Err(why),
            Answer::Preloading => Err("its answer makes no sense".to_string()),
        }
    }

    fn ask(
        &mut self,
        kind: Kind,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
        mut patience: Patience,
    ) -> Result<Answer, String> {
        let payload = rmp_serde::to_vec(message).map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        wire::append(&mut bytes, kind, &payload).map_err(|error| error.to_string())?;
        self.send(&bytes, fds, &mut patience)?;
        self.hear(&mut patience)
    }

    fn send(
        &self,
        mut rest: &[u8],
        mut fds: &[BorrowedFd<'_>],
        patience: &mut Patience,
    ) -> Result<(), String> {
        while !rest.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err("too many file descriptors".to_string());
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&self.socket, &[io::IoSlice::new(rest)], &mut control, flags) {
                Ok(count) => {
                    rest = rest.get(count..).unwrap_or_default();
                    fds = &[];
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, patience)?,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(GONE.to_string()),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    fn hear(&mut self, patience: &mut Patience) -> Result<Answer, String> {
        loop {
            if let Some(frame) = self.inbox.next().map_err(|error| error.to_string())? {
                if frame.kind != Kind::Answer {
                    return Err(format!("it sent a frame of kind {:?}", frame.kind));
                }
                return rmp_serde::from_slice(&frame.payload).map_err(|error| error.to_string());
            }
            let mut chunk = [MaybeUninit::<u8>::uninit(); 4096];
            match rustix::net::recv(&self.socket, &mut chunk, RecvFlags::DONTWAIT) {
                Ok(((bytes, _), 1..)) => self.inbox.push(bytes),
                Ok(_) | Err(Errno::CONNRESET) => return Err(GONE.to_string()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, patience)?,
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Waits until the socket is ready.
    fn wait(&self, ready: PollFlags, patience: &mut Patience) -> Result<(), String> {
        let left = patience.until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        // Its end too: a process that it has left behind may hold the other end of the socket.
        let sentinel = self.life.handle.sentinel();
        let mut fds = [PollFd::new(&self.socket, ready), PollFd::new(&sentinel, PollFlags::IN)];
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(0) => {
                let doing = Doing::of(self.life.pid);
                if patience.is_left_for(self.life.pid, doing.as_ref()) {
                    return Ok(());
                }
                let doing = doing.map_or_else(String::new, |doing| format!(": {doing}"));
                Err(format!("it did not report in time (see Options::handshake_timeout){doing}"))
            }
            // What it has said is read first.
            Ok(_) if fds[0].revents().is_empty() => Err(GONE.to_string()),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Ends it for good, with a process that it may have made and that nobody knows; says why, in words.
    fn bury(self, why: &str) -> io::Error {
        let ended = self.life.end();
        if let Some(pid) = self.slip.read()
            && let Ok(handle) = Handle::of(pid)
        {
            // It is ours to reap, for nobody has got it yet.
            handle.end();
        }
        let pid = self.life.pid;
        let exit = ended.map_or_else(|| "does not end".to_string(), |exit| exit.to_string());
        io::Error::other(format!("{why} (pid {pid}, which {exit}); the next start begins another one"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.life.end();
        }
    }
}

impl Life {
    /// How it ended, if it has. Reaps it.
    pub(crate) fn exit(&self) -> Option<Exit> {
        let mut exit = self.exit.lock();
        if exit.is_none() {
            *exit = self.handle.reap();
        }
        *exit
    }

    /// Ends it, and waits for that.
    fn end(&self) -> Option<Exit> {
        let over = self.exit();
        if over.is_some() {
            return over;
        }
        // This fails only if it has ended just now.
        let _ = self.handle.signal(Signal::KILL);
        // What it has made is known only when it is gone.
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

    /// A process that waits, and its number.
    fn sleeper() -> (Child, Pid) {
        let child = std::process::Command::new("sleep").arg("120").stdin(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        (child, pid)
    }

    fn server(slip: Slip) -> (Server, Child, Pid) {
        let (child, pid) = sleeper();
        let handle = Handle::of(pid).unwrap();
        let life = Arc::new(Life { pid: pid_number(pid), handle, exit: Mutex::new(None) });
        let (socket, _) = launch::socket_pair().unwrap();
        let (process, command) = (std::process::id(), Command::new(None, &FunctionRef::example()).unwrap());
        (Server { process, command, life, socket, inbox: Inbox::default(), slip }, child, pid)
    }

    fn is_there(pid: Pid) -> bool {
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).is_ok()
    }

    #[test]
    fn a_process_that_only_the_slip_knows_is_ended_and_reaped_with_its_server() {
        let (slip, _) = Slip::new().unwrap();
        let (_child, unknown) = sleeper();
        slip.write(unknown);
        let (server, _server, pid) = server(slip);
        let error = server.bury("it is gone");
        assert!(error.to_string().contains("SIGKILL"), "{error}");
        // Reaped: nobody has these numbers any more.
        assert!(!is_there(pid) && !is_there(unknown));
    }

    #[test]
    fn a_process_that_somebody_has_got_is_not_touched() {
        let (slip, _) = Slip::new().unwrap();
        let (mut child, known) = sleeper();
        slip.write(known);
        slip.clear();
        let (server, _server, pid) = server(slip);
        drop(server.bury("it is gone"));
        assert!(!is_there(pid) && is_there(known));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
