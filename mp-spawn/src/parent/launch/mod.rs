//! Starting one process: its socket, its environment.

pub(crate) mod current_exe;
pub(crate) mod exec;
pub(crate) mod fork;

use std::ffi::{CString, NulError, OsStr};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Pid;

use crate::child::shared_library;
use crate::error::{Result, failed};
use crate::io::setup::ProcessOptions;
use crate::parent::launch::current_exe::{Myself, myself};
use crate::protocol::command::{self, Words};
use crate::protocol::function::FunctionRef;
use crate::protocol::inherited_files;
use crate::protocol::interrupt::Interrupt;
use crate::protocol::outbox::Ends;
use crate::protocol::token::{self, Taker, Token};
use crate::sys::Program;
use crate::sys::descriptors::above_standard;
use crate::sys::environment::Environment;
use crate::sys::file_privileges;
use crate::sys::process_handle::Handle;

/// What every child of one start has in common.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    /// The program, as errors name it.
    pub(crate) program: PathBuf,
    path: CString,
    argv: Vec<CString>,
    /// Whether it is the running program.
    is_own: bool,
    taker: Taker,
    /// What the loader is to load before the program begins.
    library: Option<PathBuf>,
    environment: OnceLock<Environment>,
    /// Set when it is known that it may be executed.
    is_checked: OnceLock<()>,
}

/// What is different for one process of a start.
#[derive(Debug, Default)]
pub(crate) struct Particulars {
    /// Its environment, where it is another one.
    pub(crate) environment: Option<Environment>,
    /// What it writes to, where that is not inherited.
    pub(crate) ends: Ends,
    /// What it is to have open, and under which numbers.
    pub(crate) files: Vec<(RawFd, Arc<OwnedFd>)>,
    /// `true` if SIGINT and SIGTERM are blocked until the process has set their effect.
    pub(crate) interrupts_wait: bool,
}

impl Command {
    /// What is particular about a process with this setup.
    pub(crate) fn particulars(&self, setup: &ProcessOptions) -> Result<Particulars> {
        let files = inherited_files::ready(&setup.inherited)?;
        let interrupts_wait = setup.interrupt != Interrupt::Default;
        if setup.environment.is_empty() {
            return Ok(Particulars { files, interrupts_wait, ..Particulars::default() });
        }
        let mut environment = Environment::without(token::VARIABLE);
        for (name, value) in &setup.environment {
            environment = environment.with(name, value.as_ref()).map_err(|why| {
                let error = io::Error::new(io::ErrorKind::InvalidInput, why);
                failed("the setting of an environment variable", Some(Path::new(name)), error)
            })?;
        }
        let environment = Some(self.with_library(environment));
        Ok(Particulars { environment, files, interrupts_wait, ..Particulars::default() })
    }

    /// This program, or what was set instead, for a function.
    pub(crate) fn new(words: Option<&Words>, function: &FunctionRef) -> Result<Command> {
        let usual = command::usual();
        let words = words.or(usual.as_ref());
        let Myself { program, path, argv } = match words {
            None => myself(),
            Some(words) => {
                let refused = |error| failed("the lookup", Some(words.name().as_ref()), error);
                let path = words.find().map_err(refused)?;
                let argv = [words.name().to_owned()].into_iter().chain(words.args.iter().cloned()).collect();
                Myself { program: path.clone(), path, argv }
            }
        };
        let (taker, library) = shared_library::taker(words.is_some(), function)?;
        let invalid = |error: NulError| failed("the conversion to a C string", Some(&program), error.into());
        let word = |word: &OsStr| CString::new(word.as_bytes()).map_err(invalid);
        let argv = argv.iter().map(|arg| word(arg)).collect::<Result<_>>()?;
        let path = word(path.as_os_str())?;
        let is_own = words.is_none();
        let (environment, is_checked) = (OnceLock::new(), OnceLock::new());
        Ok(Command { program, path, argv, is_own, taker, library, environment, is_checked })
    }

    /// Whether a program that the calling thread executes may be a worker of this process: not if it has, or gets, privileges
    /// that this process's user lacks. The privileges that this process was given are checked, and those of the executed file: a
    /// process that has dropped its privileges gets them back by it. What a command executes in its turn isn't checked. Such a
    /// program ignores its environment; executed anew it would run `main` once more, and start others, and so on.
    ///
    /// What a program gets depends on flags that each thread has of its own, and all processes of a start are executed by one.
    fn check_privileges(&self) -> Result<()> {
        if self.is_checked.get().is_some() {
            return Ok(());
        }
        let refused = |why: String| {
            let error = io::Error::new(io::ErrorKind::PermissionDenied, why);
            Err(failed("the start of a worker", Some(&self.program), error))
        };
        if self.is_own && mp_core::gained_privileges() {
            return refused(
                "this program is set-user-ID, set-group-ID or has file capabilities, and would get these privileges \
                 under the control of the process that executes it: no such program is executed as a worker. Use \
                 `StartMethod::Fork`, or name another program without privileges with `SpawnOptions::executable`"
                    .to_string(),
            );
        }
        let users = [rustix::process::getuid(), rustix::process::geteuid()].map(|user| user.as_raw());
        let groups = [rustix::process::getgid(), rustix::process::getegid()].map(|group| group.as_raw());
        for (kind, [real, effective]) in [("user", users), ("group", groups)] {
            if real != effective {
                return refused(format!(
                    "this process has the real {kind} {real} and the effective {kind} {effective}, and a program that \
                     is executed like that does not trust its parent. Use `StartMethod::Fork`, or make them the same \
                     first (see `setresuid(2)`)"
                ));
            }
        }
        let path = Path::new(OsStr::from_bytes(self.path.to_bytes()));
        if let Some(privileges) = file_privileges::privileges(path) {
            let user = users[0];
            return refused(format!(
                "this program {privileges}, and this process runs as user {user}: executed from here, it does not trust \
                 its parent, and runs `main` again instead of becoming a worker. Use `StartMethod::Fork`, or name a \
                 program without privileges with `SpawnOptions::executable` or `SpawnOptions::command`"
            ));
        }
        _ = self.is_checked.set(());
        Ok(())
    }

    /// Whether it starts the same as the other one.
    pub(crate) fn is_as(&self, other: &Command) -> bool {
        let of = |one: &Command| (one.path.clone(), one.argv.clone(), one.taker, one.library.clone());
        of(self) == of(other)
    }

    /// The environment of this process, as it was when it was first asked for: copies have it anyway.
    fn environment(&self) -> &Environment {
        self.environment.get_or_init(|| self.with_library(Environment::without(token::VARIABLE)))
    }

    fn with_library(&self, environment: Environment) -> Environment {
        match &self.library {
            Some(library) => shared_library::with_library(&environment, library),
            None => environment,
        }
    }
}

/// A process that was started just now.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) pid: Pid,
    pub(crate) handle: Handle,
    /// This end of its socket; reads and writes don't block.
    pub(crate) socket: OwnedFd,
    pub(crate) nonce: u64,
}

/// Starts a process. The calling thread becomes the one whose end ends the process.
pub(crate) fn launch(command: &Command, particulars: &Particulars) -> Result<Launched> {
    command.check_privileges()?;
    let (ours, mut theirs) = socket_pair().map_err(|error| failed("socketpair", None, error))?;
    let Particulars { environment, ends, files, interrupts_wait } = particulars;
    let numbers: Vec<_> = files.iter().map(|(number, _)| *number).collect();
    let moved = |fd: BorrowedFd<'_>| {
        inherited_files::out_of_the_way(fd, &numbers).map_err(|error| failed("fcntl", None, error))
    };
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
        .map_err(|error| failed("the token", None, error.into()))?;
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
    .map_err(|(what, error)| failed(what, Some(&command.program), error))?;
    let handle = pidfd.map_or_else(|| Handle::of(pid), |pidfd| Ok(Handle::with(pid, pidfd)))?;
    Ok(Launched { pid, handle, socket: ours, nonce })
}

/// A random number that can't be guessed.
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
