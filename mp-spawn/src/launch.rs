//! Starting one process: its socket, its environment, its pidfd.

use std::ffi::{CString, NulError, OsString};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutex::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Resource, Signal};

use crate::environment::Environment;
use crate::error::{Launch, Result, SpawnError};
use crate::output::Ends;
use crate::setup::Setup;
use crate::sys::{self, Program};
use crate::token::{self, Token};

/// The running program, whatever became of its file.
const SELF: &str = "/proc/self/exe";

/// What every child of one start has in common.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    /// The program, as errors name it.
    pub(crate) program: PathBuf,
    pub(crate) path: CString,
    argv0: CString,
    environment: OnceLock<Environment>,
}

/// What is different for one process of a start.
#[derive(Debug, Default)]
pub(crate) struct Particulars {
    /// Its environment, where it is another one.
    environment: Option<Environment>,
    /// What it writes to, where that is not inherited.
    pub(crate) ends: Ends,
}

/// The program that processes are started from, where it isn't the running one.
static EXECUTABLE: PerProcess<Mutex<Option<PathBuf>>> =
    PerProcess::new([const { Mutex::new(None) }; GENERATIONS]);

/// From now on, starts another program instead of the running one, unless [`Options::executable`] or
/// [`ProcessBuilder::executable`] names one; `None` takes that back. It must be the same build: the function is looked up
/// in it.
///
/// ```
/// mp_spawn::set_executable(Some(std::env::current_exe()?));
/// mp_spawn::spawn(|_: usize, (): ()| {}, (), 1)?;
/// mp_spawn::set_executable(None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// This helps where the running program is not what `/proc/self/exe` says, as under a loader or an interpreter, and where
/// the running program is a host that has loaded this crate as a library.
///
/// [`Options::executable`]: crate::Options::executable
/// [`ProcessBuilder::executable`]: crate::ProcessBuilder::executable
pub fn set_executable(program: Option<PathBuf>) {
    *EXECUTABLE.lock() = program;
}

/// What [`set_executable`] has set.
pub(crate) fn executable() -> Option<PathBuf> {
    EXECUTABLE.lock().clone()
}

impl Command {
    /// What is particular about a process with this setup.
    pub(crate) fn particulars(&self, setup: &Setup) -> Result<Particulars> {
        if setup.environment.is_empty() {
            return Ok(Particulars::default());
        }
        let mut environment = self.environment().clone();
        for (name, value) in &setup.environment {
            environment = environment.with(name, value.as_ref()).map_err(|why| {
                let error = io::Error::new(io::ErrorKind::InvalidInput, why);
                failed("the setting of an environment variable", Some(Path::new(name)), error)
            })?;
        }
        Ok(Particulars { environment: Some(environment), ..Particulars::default() })
    }

    /// This program, or another one.
    pub(crate) fn new(executable: Option<&Path>) -> Result<Command> {
        let usual = self::executable();
        let executable = executable.or(usual.as_deref());
        let path = executable.unwrap_or(Path::new(SELF));
        let argv0 = match executable {
            Some(path) => path.as_os_str().to_owned(),
            None => std::env::args_os().next().unwrap_or_else(|| OsString::from(SELF)),
        };
        let invalid = |error: NulError| failed("a name", Some(path), error.into());
        Ok(Command {
            path: CString::new(path.as_os_str().as_bytes()).map_err(invalid)?,
            argv0: CString::new(argv0.into_vec()).map_err(invalid)?,
            program: path.to_owned(),
            environment: OnceLock::new(),
        })
    }

    /// The environment of this process, as it was when it was first asked for: copies have it anyway.
    fn environment(&self) -> &Environment {
        self.environment.get_or_init(|| Environment::without(token::VARIABLE))
    }
}

/// A process that was started just now.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// This end of its socket; reads and writes don't block.
    pub(crate) socket: OwnedFd,
    pub(crate) nonce: u64,
}

/// Starts a process. The calling thread becomes the one whose end ends the process.
pub(crate) fn launch(command: &Command, particulars: &Particulars) -> Result<Launched> {
    let (ours, theirs) = socket_pair().map_err(|error| failed("socketpair", None, error))?;
    let nonce = nonce();
    let token = Token { fd: theirs.as_raw_fd(), parent: std::process::id(), nonce };
    let token = CString::new(format!("{}={token}", token::VARIABLE))
        .map_err(|error| failed("the token", None, error.into()))?;
    let pid = sys::posix_spawn(&Program {
        path: command.path.clone(),
        argv0: command.argv0.clone(),
        environment: particulars.environment.as_ref().unwrap_or_else(|| command.environment()),
        token,
        inherit: theirs.as_fd(),
        stdout: particulars.ends.stdout.as_ref().map(AsFd::as_fd),
        stderr: particulars.ends.stderr.as_ref().map(AsFd::as_fd),
    })
    .map_err(|error| failed("posix_spawn", Some(&command.program), error))?;
    Ok(Launched { pid, pidfd: pidfd_of(pid)?, socket: ours, nonce })
}

/// The pidfd of a child that was made just now and has not been reaped.
pub(crate) fn pidfd_of(pid: Pid) -> Result<OwnedFd> {
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(|error| {
        // Without a pidfd nobody would learn of its death. It has not been reaped, so the id is still its own.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
        let _ = rustix::io::retry_on_intr(|| {
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())
        });
        failed("pidfd_open", None, error.into())
    })
}

/// A number that nobody guesses.
pub(crate) fn nonce() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Both ends are close-on-exec and clear of the standard streams; the first one doesn't block.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let (ours, theirs) = (above_standard(ours)?, above_standard(theirs)?);
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, theirs))
}

/// A program may have closed its standard streams, and their numbers get reused.
fn above_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    const FIRST: i32 = 3;
    if fd.as_raw_fd() >= FIRST { Ok(fd) } else { Ok(rustix::io::fcntl_dupfd_cloexec(&fd, FIRST)?) }
}

/// The error of a start, with the limit that was hit as far as the system tells.
pub(crate) fn failed(what: &'static str, program: Option<&Path>, source: io::Error) -> SpawnError {
    let limit = match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => Some(limit("RLIMIT_NOFILE", Resource::Nofile, "open files, ulimit -n")),
        Some(Errno::NFILE) => Some("the system's, on open files (fs.file-max)".to_string()),
        Some(Errno::AGAIN) => Some(format!(
            "{}, or that of a cgroup (pids.max)",
            limit("RLIMIT_NPROC", Resource::Nproc, "processes, ulimit -u")
        )),
        Some(Errno::NOMEM) => {
            Some("the system's memory, that of a cgroup, or the overcommit policy".to_string())
        }
        _ => None,
    };
    let program = program.map(Path::to_owned);
    SpawnError::Launch(Box::new(Launch { what, program, limit, source: Arc::new(source) }))
}

fn limit(name: &str, resource: Resource, meaning: &str) -> String {
    let value = rustix::process::getrlimit(resource).current;
    let value = value.map_or_else(|| "unlimited".to_string(), |value| value.to_string());
    format!("{name} = {value} ({meaning})")
}
