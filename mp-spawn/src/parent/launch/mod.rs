//! Start of one process: its socket, its environment, the function that a fork server preloads.

pub(crate) mod command;
pub(crate) mod current_exe;
pub(crate) mod exec;
pub(crate) mod fork;

use std::ffi::CString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;

use crate::error::{Result, launch_error};
use crate::parent::launch::command::{LaunchCommand, LaunchOptions};
use crate::protocol::function::FunctionRef;
use crate::protocol::token::{self, Token};
use crate::sys::{ProcessHandle, Program, above_standard, moved_off};

/// Starts a process. The kernel ends the process when the calling thread ends.
pub(crate) fn launch(command: &LaunchCommand, launch_options: &LaunchOptions) -> Result<LaunchedProcess> {
    command.check_privileges()?;
    let (ours, mut theirs) = socket_pair().map_err(|error| launch_error("socketpair", None, error))?;
    let LaunchOptions { environment, ends, files, interrupts_wait } = launch_options;
    let numbers: Vec<_> = files.iter().map(|(number, _)| *number).collect();
    let moved =
        |fd: BorrowedFd<'_>| moved_off(fd, &numbers).map_err(|error| launch_error("fcntl", None, error));
    if let Some(elsewhere) = moved(theirs.as_fd())? {
        theirs = elsewhere;
    }
    let [stdout, stderr] = [&ends.stdout, &ends.stderr];
    let [out, err] = [stdout, stderr].map(|end| end.as_ref().map_or(Ok(None), |end| moved(end.as_fd())));
    let (out, err) = (out?, err?);
    let nonce = nonce();
    let taker = command.taker;
    let token = Token { fd: theirs.as_raw_fd(), parent: std::process::id(), nonce, taker };
    let token = CString::new(format!("{}={token}", token::VARIABLE))
        .map_err(|error| launch_error("the token", None, error.into()))?;
    let (pid, pidfd) = exec::start(&Program {
        path: &command.path,
        argv: &command.argv,
        environment: environment.as_ref().unwrap_or_else(|| command.environment()),
        token,
        inherit: theirs.as_fd(),
        files,
        interrupts_wait: *interrupts_wait,
        stdout: out.as_ref().or(stdout.as_ref()).map(AsFd::as_fd),
        stderr: err.as_ref().or(stderr.as_ref()).map(AsFd::as_fd),
    })
    .map_err(|(what, error)| launch_error(what, Some(&command.program), error))?;
    let handle =
        pidfd.map_or_else(|| ProcessHandle::open(pid), |pidfd| Ok(ProcessHandle::from_pidfd(pid, pidfd)))?;
    Ok(LaunchedProcess { pid, handle, socket: ours, nonce })
}

/// Process that was started just now.
#[derive(Debug)]
pub(crate) struct LaunchedProcess {
    pub(crate) pid: Pid,
    pub(crate) handle: ProcessHandle,
    /// Parent's end of the socket to the process. Reads and writes don't block.
    pub(crate) socket: OwnedFd,
    pub(crate) nonce: u64,
}

/// Returns a random number that can't be guessed.
pub(crate) fn nonce() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Creates a socket pair. Both ends are close-on-exec and have numbers above the standard streams. The first
/// end doesn't block.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let (ours, theirs) = (above_standard(ours)?, above_standard(theirs)?);
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

static PRELOAD: PerProcess<Mutex<Option<FunctionRef>>> = mp_core::per_process!(Mutex::new(None));

/// Sets the function that fork servers of this process preload. A forked copy calls this function with the
/// original's function.
pub(crate) fn set_preload(function: Option<FunctionRef>) {
    *PRELOAD.lock() = function;
}

/// Returns the function that fork servers preload.
pub(crate) fn preload() -> Option<FunctionRef> {
    PRELOAD.lock().clone()
}
