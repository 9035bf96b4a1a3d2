//! Start of one process: its socket, its environment.

pub(crate) mod command;
pub(crate) mod current_exe;
pub(crate) mod exec;
pub(crate) mod fork;
pub(crate) mod launched;
pub(crate) mod preload;

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::error::{Result, launch_error};
use crate::parent::launch::command::{LaunchCommand, LaunchOptions};
use crate::parent::launch::launched::{LaunchedProcess, nonce, socket_pair};
use crate::protocol::token::{self, Token};
use crate::sys::Program;
use crate::sys::descriptors::moved_off;
use crate::sys::process_handle::ProcessHandle;

/// Starts a process. The kernel ends it when the calling thread ends.
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
