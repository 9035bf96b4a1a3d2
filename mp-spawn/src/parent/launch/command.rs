//! Command that starts the processes of a start, and the properties of each process.

use std::ffi::{CString, NulError, OsStr};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::child::shared_library;
use crate::error::{Result, launch_error};
use crate::io::setup::ProcessOptions;
use crate::parent::launch::current_exe::{ProgramCommand, own_command};
use crate::protocol::command::{self, CommandLine};
use crate::protocol::function::FunctionRef;
use crate::protocol::inherited_files;
use crate::protocol::interrupt::Interrupt;
use crate::protocol::outbox::StreamEnds;
use crate::protocol::token::{self, TokenTarget};
use crate::sys::{Environment, file_privileges};

/// Common properties of all children of one start.
#[derive(Clone, Debug)]
pub(crate) struct LaunchCommand {
    /// Program, as errors name it.
    pub(crate) program: PathBuf,
    pub(super) path: CString,
    pub(super) argv: Vec<CString>,
    /// `true` if `program` is the running program.
    is_own: bool,
    pub(super) taker: TokenTarget,
    /// Library that the loader loads before the program begins.
    library: Option<PathBuf>,
    environment: OnceLock<Environment>,
    /// Set after a check that the program is safe to execute.
    is_checked: OnceLock<()>,
}

/// Properties of a single process of a start.
#[derive(Debug, Default)]
pub(crate) struct LaunchOptions {
    /// Environment, if it differs from that of the command.
    pub(crate) environment: Option<Environment>,
    /// Standard streams that are not inherited.
    pub(crate) ends: StreamEnds,
    /// Inherited files and their numbers.
    pub(crate) files: Vec<(RawFd, Arc<OwnedFd>)>,
    /// `true` if SIGINT and SIGTERM are blocked until the process has set their effect.
    pub(crate) interrupts_wait: bool,
}

impl LaunchCommand {
    /// Returns the properties of a process with this setup.
    pub(crate) fn launch_options(&self, setup: &ProcessOptions) -> Result<LaunchOptions> {
        let files = inherited_files::ready(&setup.inherited)?;
        let interrupts_wait = setup.interrupt != Interrupt::Default;
        if setup.environment.is_empty() {
            return Ok(LaunchOptions { files, interrupts_wait, ..LaunchOptions::default() });
        }
        let mut environment = Environment::without(token::VARIABLE);
        for (name, value) in &setup.environment {
            environment = environment.with(name, value.as_ref()).map_err(|why| {
                let error = io::Error::new(io::ErrorKind::InvalidInput, why);
                launch_error("the setting of an environment variable", Some(Path::new(name)), error)
            })?;
        }
        let environment = Some(self.with_library(environment));
        Ok(LaunchOptions { environment, files, interrupts_wait, ..LaunchOptions::default() })
    }

    /// Creates the command for a function: this program, or the command that was set instead.
    pub(crate) fn new(words: Option<&CommandLine>, function: &FunctionRef) -> Result<LaunchCommand> {
        let default_command = command::default_command();
        let words = words.or(default_command.as_ref());
        let ProgramCommand { program, path, argv } = match words {
            None => own_command(),
            Some(words) => {
                let refused = |error| launch_error("the lookup", Some(words.name().as_ref()), error);
                let path = words.find().map_err(refused)?;
                let argv = [words.name().to_owned()].into_iter().chain(words.args.iter().cloned()).collect();
                ProgramCommand { program: path.clone(), path, argv }
            }
        };
        let (taker, library) = match function.is_guest() {
            true => (TokenTarget::Guest, None),
            false => shared_library::taker(words.is_some(), function)?,
        };
        let invalid =
            |error: NulError| launch_error("the conversion to a C string", Some(&program), error.into());
        let word = |word: &OsStr| CString::new(word.as_bytes()).map_err(invalid);
        let argv = argv.iter().map(|arg| word(arg)).collect::<Result<_>>()?;
        let path = word(path.as_os_str())?;
        let is_own = words.is_none();
        let (environment, is_checked) = (OnceLock::new(), OnceLock::new());
        Ok(LaunchCommand { program, path, argv, is_own, taker, library, environment, is_checked })
    }

    /// Checks the privileges of the program, which the calling thread is about to execute. Returns an error
    /// if the program has, or would get, privileges that the user of this process lacks.
    ///
    /// Such a program ignores the token in its environment. So it would run `main` instead of becoming a
    /// worker, and start further processes in turn. The privileges of this process and those of the executed
    /// file are both checked, because a process that has dropped its privileges gets them again by executing
    /// the file. Programs that a command executes in turn are not checked.
    ///
    /// The privileges of a program depend on flags of the calling thread. A single thread executes all
    /// processes of a start.
    pub(super) fn check_privileges(&self) -> Result<()> {
        if self.is_checked.get().is_some() {
            return Ok(());
        }
        let refused = |why: String| {
            let error = io::Error::new(io::ErrorKind::PermissionDenied, why);
            Err(launch_error("the start of a worker", Some(&self.program), error))
        };
        if self.is_own && mp_core::gained_privileges() {
            return refused(
                "this program is set-user-ID, set-group-ID or has file capabilities, and would get these \
                 privileges under the control of the process that executes it: no such program is executed \
                 as a worker. Use `StartMethod::Fork`, or name another program without privileges with \
                 `SpawnOptions::executable`"
                    .to_string(),
            );
        }
        let users = [rustix::process::getuid(), rustix::process::geteuid()].map(|user| user.as_raw());
        let groups = [rustix::process::getgid(), rustix::process::getegid()].map(|group| group.as_raw());
        for (kind, [real, effective]) in [("user", users), ("group", groups)] {
            if real != effective {
                return refused(format!(
                    "this process has the real {kind} {real} and the effective {kind} {effective}, and a \
                     program that is executed like that does not trust its parent. Use `StartMethod::Fork`, \
                     or make them the same first (see `setresuid(2)`)"
                ));
            }
        }
        let path = Path::new(OsStr::from_bytes(self.path.to_bytes()));
        if let Some(privileges) = file_privileges::privileges(path) {
            let user = users[0];
            return refused(format!(
                "this program {privileges}, and this process runs as user {user}: executed from here, it \
                 does not trust its parent, and runs `main` again instead of becoming a worker. Use \
                 `StartMethod::Fork`, or name a program without privileges with `SpawnOptions::executable` \
                 or `SpawnOptions::command`"
            ));
        }
        _ = self.is_checked.set(());
        Ok(())
    }

    /// Returns `true` if both commands start the same program.
    pub(crate) fn is_same_as(&self, other: &LaunchCommand) -> bool {
        let of = |one: &LaunchCommand| (one.path.clone(), one.argv.clone(), one.taker, one.library.clone());
        of(self) == of(other)
    }

    /// Returns the environment for programs that this process executes: a copy of its environment at the
    /// first call. Copies by `fork` don't need it, because they inherit the environment.
    pub(super) fn environment(&self) -> &Environment {
        self.environment.get_or_init(|| self.with_library(Environment::without(token::VARIABLE)))
    }

    fn with_library(&self, environment: Environment) -> Environment {
        match &self.library {
            Some(library) => shared_library::with_library(&environment, library),
            None => environment,
        }
    }
}
