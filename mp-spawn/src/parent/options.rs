//! Options of a start.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "authkey")]
use mp_core::AuthKey;

#[cfg(feature = "authkey")]
use crate::error::Result;
#[cfg(feature = "authkey")]
use crate::error::launch_error;
use crate::io::setup::{ProcessOptions, Stdio, setup_options};
use crate::protocol::command::CommandLine;
use crate::protocol::inherited_files::InheritedFile;
use crate::protocol::interrupt::{Interrupt, InterruptSignals};
use crate::protocol::resource_limits::Limits;
use crate::start_method::StartMethod;

/// Number of processes to start, and the options of the start.
///
/// ```
/// use std::time::Duration;
/// use mp_spawn::{OnFailure, SpawnOptions};
///
/// let options = SpawnOptions::nprocs(4)
///     .name("trainer")
///     .on_failure(OnFailure::Continue)
///     .grace_period(Duration::from_secs(2));
/// # let _ = options;
/// ```
#[derive(Clone)]
#[must_use]
pub struct SpawnOptions {
    pub(crate) nprocs: usize,
    pub(crate) name: String,
    pub(crate) grace_period: Option<Duration>,
    pub(crate) command: Option<CommandLine>,
    pub(crate) on_failure: OnFailure,
    pub(crate) handshake: Duration,
    pub(crate) setup: ProcessOptions,
    pub(crate) per_rank: Option<RankSetup>,
    pub(crate) method: Option<StartMethod>,
    pub(crate) daemon: bool,
    #[cfg(feature = "authkey")]
    pub(crate) key: Option<AuthKey>,
}

/// Function that changes the setup of one rank.
type RankSetup = Arc<dyn Fn(usize, ProcessOptions) -> ProcessOptions + Send + Sync>;

/// Action on the other processes when one process fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// `join` ends the other processes.
    #[default]
    EndAll,
    /// The other processes continue. `join` returns the first failure after all processes have ended.
    Continue,
}

/// Default time for a process to report as a worker.
const HANDSHAKE: Duration = Duration::from_secs(10);

impl SpawnOptions {
    /// Creates options that start `nprocs` processes, with ranks from 0. With 0, no process is started, and
    /// `join` returns at once. If `nprocs` exceeds the number of processes that can share memory (1,024,
    /// including the first process of the tree and this process), the start returns an error.
    pub fn nprocs(nprocs: usize) -> SpawnOptions {
        SpawnOptions {
            nprocs,
            name: "rank".to_string(),
            grace_period: None,
            command: None,
            on_failure: OnFailure::EndAll,
            handshake: HANDSHAKE,
            setup: ProcessOptions::default(),
            per_rank: None,
            method: None,
            daemon: false,
            #[cfg(feature = "authkey")]
            key: None,
        }
    }

    /// Names the processes. `prefix` replaces `rank` in names such as `rank-3`. The main thread of a process
    /// has this name too (see [`thread_name`](crate::thread_name)), so that `ps` and `top` show it.
    pub fn name(mut self, prefix: impl Into<String>) -> SpawnOptions {
        self.name = prefix.into();
        self
    }

    /// Sets the time that the other processes get after a failure. The time applies twice: after the failure,
    /// before a SIGTERM is sent, and after the SIGTERM, before a SIGKILL is sent. By default the SIGTERM is
    /// sent at once, and the SIGKILL 5 seconds later. A time that overflows the clock, such as
    /// `Duration::MAX`, means no limit.
    pub fn grace_period(mut self, grace: Duration) -> SpawnOptions {
        self.grace_period = Some(grace);
        self
    }

    /// Sets the program to start instead of the current program. Both programs must be the same build,
    /// because the new process looks up the function in the program that it runs. Use this option if
    /// `/proc/self/exe` is not the running program, for example under a loader.
    ///
    /// # Errors
    ///
    /// A start returns [`SpawnError::Launch`](crate::SpawnError::Launch) if the program would get privileges
    /// that the user of this process lacks: set-user-ID, set-group-ID, or file capabilities (for a script,
    /// those of its interpreter). Such a program would run `main` instead of becoming a worker. Without this
    /// option, the same holds for the running program. [`Fork`](StartMethod::Fork) is exempt.
    #[doc(alias = "set_executable")]
    pub fn executable(mut self, program: impl Into<PathBuf>) -> SpawnOptions {
        self.command = Some(CommandLine::program(program.into()));
        self
    }

    /// Starts the processes by a command: a program, which is searched for in `PATH` if its name has no
    /// slash, and its arguments. [`set_command`](crate::set_command) sets the command for all starts. Name
    /// the program by its path if `PATH` is not trusted. The rules of [`executable`](Self::executable) about
    /// privileges apply to the program, not to programs that it executes.
    ///
    /// ```
    /// use mp_spawn::{SpawnOptions, start_processes};
    ///
    /// let program = std::env::current_exe().unwrap().into_os_string();
    /// let options = SpawnOptions::nprocs(2).command(["nice".into(), program]);
    /// start_processes(|_: usize, (): ()| {}, (), options)?.join()?;
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    pub fn command<S: Into<OsString>>(mut self, command: impl IntoIterator<Item = S>) -> SpawnOptions {
        self.command = CommandLine::command(command);
        self
    }

    /// Sets the start method. The default is the method of [`set_start_method`](crate::set_start_method).
    #[doc(alias = "get_context")]
    pub fn start_method(mut self, method: StartMethod) -> SpawnOptions {
        self.method = Some(method);
        self
    }

    /// Sets the treatment of processes that still run when this process exits, by returning from `main` or by
    /// `exit`. With `true`, the exit ends these processes. With `false`, the default, the exit waits for
    /// them. See [`ProcessBuilder::daemon`](crate::ProcessBuilder::daemon). The option applies to processes
    /// whose [`ProcessContext`](crate::ProcessContext) still exists at the exit, or was
    /// [detached](crate::ProcessContext::detach). Dropping the context ends its processes in any case. If
    /// this process ends in any other way, the processes end with it.
    ///
    /// ```
    /// use mp_spawn::{SpawnOptions, start_processes};
    ///
    /// let serve = |_: usize, (): ()| std::thread::park();
    /// start_processes(serve, (), SpawnOptions::nprocs(2).daemon(true))?.detach();
    /// // They serve until this process exits, and end then.
    /// # Ok::<(), mp_spawn::SpawnError>(())
    /// ```
    pub fn daemon(mut self, daemon: bool) -> SpawnOptions {
        self.daemon = daemon;
        self
    }

    /// Sets the action on the other processes when one process fails.
    pub fn on_failure(mut self, on_failure: OnFailure) -> SpawnOptions {
        self.on_failure = on_failure;
        self
    }

    /// Sets the time within which a process must load and report as a worker. The default is 10 seconds. At
    /// the end of the time, a process that is stopped, waits for a disk, or has had no processor on a busy
    /// machine gets the same time again, repeatedly. Preloading by a fork server has no such limit: see
    /// [`set_forkserver_preload`](crate::set_forkserver_preload).
    pub fn handshake_timeout(mut self, time: Duration) -> SpawnOptions {
        self.handshake = time;
        self
    }

    setup_options! {
        self => self.setup;
        /// Adds file descriptors of this process that the processes inherit under the same numbers. All other
        /// descriptors, except the standard streams, are closed in processes that are started by
        /// [`Spawn`](StartMethod::Spawn) or [`ForkServer`](StartMethod::ForkServer), whether they are
        /// close-on-exec or not. A copy by [`Fork`](StartMethod::Fork) has all descriptors of this process,
        /// except those whose numbers are needed for the named files.
        ///
        /// ```
        /// use mp_spawn::{SpawnOptions, start_processes};
        /// use std::io::{Read, Write};
        /// use std::os::fd::AsRawFd;
        ///
        /// let (mut reader, writer) = std::io::pipe()?;
        /// // A worker may use the number in any way. This one opens the file by its path.
        /// let write = |_: usize, number: i32| {
        ///     let path = format!("/proc/self/fd/{number}");
        ///     std::fs::File::options().write(true).open(path)?.write_all(b"hello")
        /// };
        /// let options = SpawnOptions::nprocs(1).inherit_fds([&writer]);
        /// start_processes(write, writer.as_raw_fd(), options)?.join()?;
        /// drop(writer);
        /// # let options = ();
        /// let mut text = String::new();
        /// reader.read_to_string(&mut text)?;
        /// assert_eq!(text, "hello");
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        ///
        /// The descriptors are duplicated at once, and the duplicates are closed when the options are
        /// dropped. Meanwhile this process may close its own descriptors and reuse their numbers. In the
        /// started processes, a number refers to the file that had the number at this call, with every start
        /// method: a copy by `Fork` closes the file that has the number at the start. In these processes the
        /// descriptors are not close-on-exec, so programs that the processes execute inherit them. Further
        /// calls add descriptors. If a number is named twice, the later file is used. For standard streams,
        /// use [`stdout`](Self::stdout) and [`stderr`](Self::stderr).
        ///
        /// # Errors
        ///
        /// The start returns [`SpawnError::Launch`] if a descriptor could not be duplicated, if there are
        /// more than 200, or if the function that a fork server preloads has opened another file under such a
        /// number.
        ///
        /// [`SpawnError::Launch`]: crate::SpawnError::Launch
        #[doc(alias = "pass_fds")]
    }

    /// Changes the setup of single ranks. `change` receives the rank and the setup that the other options
    /// give to all processes, and returns the setup of this rank. See [`ProcessOptions`].
    pub fn per_rank(
        mut self,
        change: impl Fn(usize, ProcessOptions) -> ProcessOptions + Send + Sync + 'static,
    ) -> SpawnOptions {
        self.per_rank = Some(Arc::new(change));
        self
    }

    /// Sets the secret of the processes and of their descendants. The default is the secret of this process.
    /// See [`CurrentProcess::authkey`](crate::CurrentProcess::authkey).
    #[cfg(feature = "authkey")]
    pub fn authkey(mut self, key: impl AsRef<[u8]>) -> SpawnOptions {
        self.key = Some(key.as_ref().into());
        self
    }

    /// Returns the secret of the processes.
    #[cfg(feature = "authkey")]
    pub(crate) fn key(&self) -> Result<AuthKey> {
        match &self.key {
            Some(key) => Ok(key.clone()),
            None => mp_core::authkey()
                .map_err(|error| launch_error("getrandom", None, std::io::Error::other(error))),
        }
    }

    /// Returns the setup of a rank.
    pub(crate) fn setup(&self, rank: usize) -> ProcessOptions {
        let setup = self.setup.clone();
        match &self.per_rank {
            Some(change) => change(rank, setup),
            None => setup,
        }
    }
}

impl fmt::Debug for SpawnOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpawnOptions")
            .field("nprocs", &self.nprocs)
            .field("name", &self.name)
            .field("grace_period", &self.grace_period)
            .field("command", &self.command)
            .field("on_failure", &self.on_failure)
            .field("handshake", &self.handshake)
            .field("setup", &self.setup)
            .field("per_rank", &self.per_rank.is_some())
            .field("method", &self.method)
            .field("daemon", &self.daemon)
            .finish()
    }
}

impl Default for SpawnOptions {
    /// Returns options that start one process.
    fn default() -> SpawnOptions {
        SpawnOptions::nprocs(1)
    }
}
