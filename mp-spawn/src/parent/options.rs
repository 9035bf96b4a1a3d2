//! How processes are started.

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
use crate::error::failed;
use crate::io::setup::{ProcessOptions, Stdio};
use crate::protocol::command::Words;
use crate::protocol::interrupt::{Interrupt, InterruptSignals};
use crate::protocol::limits::Limits;
use crate::start_method::StartMethod;

/// How many processes to start, and how.
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
    pub(crate) command: Option<Words>,
    pub(crate) on_failure: OnFailure,
    pub(crate) handshake: Duration,
    pub(crate) setup: ProcessOptions,
    pub(crate) per_rank: Option<PerRank>,
    pub(crate) method: Option<StartMethod>,
    pub(crate) daemon: bool,
    #[cfg(feature = "authkey")]
    pub(crate) key: Option<AuthKey>,
}

/// Changes the setup of one rank.
type PerRank = Arc<dyn Fn(usize, ProcessOptions) -> ProcessOptions + Send + Sync>;

/// What happens to the other processes when one fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnFailure {
    /// `join` ends them.
    #[default]
    EndAll,
    /// They continue; `join` reports the first failure when all have ended.
    Continue,
}

/// How long a process may take to report as a worker.
const HANDSHAKE: Duration = Duration::from_secs(10);

impl SpawnOptions {
    /// Starts this many processes, with ranks from 0. With 0, nothing is started, and `join` returns at once. More than can
    /// share memory (1,024, the first process of the tree and this one counted) are an error of the start.
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

    /// Names the processes: rank 3 is called `rank-3`, or with this prefix instead of `rank`. The main thread
    /// of a process has this name too (see [`thread_name`](crate::thread_name)), so that `ps` and `top` show it.
    pub fn name(mut self, prefix: impl Into<String>) -> SpawnOptions {
        self.name = prefix.into();
        self
    }

    /// How much time the other processes get after a failure: once to end by themselves, before a SIGTERM, and
    /// once to obey it, before a SIGKILL. Without this they get none before the SIGTERM and 5 seconds after it. A time that
    /// the clock doesn't reach, such as `Duration::MAX`, has no end.
    pub fn grace_period(mut self, grace: Duration) -> SpawnOptions {
        self.grace_period = Some(grace);
        self
    }

    /// Starts another program instead of the running one. It must be the same build: the function is looked up
    /// in it. This helps where `/proc/self/exe` is not the running program, as under a loader.
    ///
    /// # Errors
    ///
    /// A start by another method than [`Fork`](StartMethod::Fork) fails if the program would get privileges that the user of this
    /// process lacks (set-user-ID, set-group-ID, file capabilities; of a script, those of its interpreter), for it would begin
    /// `main` anew instead of becoming a worker; so does one without this option, if the running program is like that:
    /// [`SpawnError::Launch`](crate::SpawnError::Launch).
    #[doc(alias = "set_executable")]
    pub fn executable(mut self, program: impl Into<PathBuf>) -> SpawnOptions {
        self.command = Some(Words::program(program.into()));
        self
    }

    /// Starts the processes by a command: a program, which is searched for in `PATH` if its name has no slash, and its
    /// arguments. See [`set_command`](crate::set_command), which sets it for all starts. Name the program by its path where
    /// `PATH` is not trusted. The rules of [`executable`](Self::executable) about privileges hold for the program, not for what
    /// it executes.
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
        self.command = Words::command(command);
        self
    }

    /// How the processes are started; as [`set_start_method`](crate::set_start_method) has set without this.
    #[doc(alias = "get_context")]
    pub fn start_method(mut self, method: StartMethod) -> SpawnOptions {
        self.method = Some(method);
        self
    }

    /// Whether the processes are ended when this process exits (by returning from `main`, or by `exit`) while they run,
    /// instead of being waited for: false without this, as with [`ProcessBuilder::daemon`](crate::ProcessBuilder::daemon).
    /// It concerns processes whose [`ProcessContext`](crate::ProcessContext) still lives then, or was
    /// [detached](crate::ProcessContext::detach): dropping the context ends them in any case. However this process ends
    /// otherwise, they end with it.
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

    /// What happens to the other processes when one fails.
    pub fn on_failure(mut self, on_failure: OnFailure) -> SpawnOptions {
        self.on_failure = on_failure;
        self
    }

    /// How long a process may take until it has loaded and reported as a worker; 10 seconds without this. A process that is
    /// stopped then, waits for a disk, or has had no processor on a busy machine, gets that time again, and again. Preloading
    /// by a fork server has no such limit: see [`set_forkserver_preload`](crate::set_forkserver_preload).
    pub fn handshake_timeout(mut self, time: Duration) -> SpawnOptions {
        self.handshake = time;
        self
    }

    /// Sets a variable of the environment of all processes.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> SpawnOptions {
        self.setup = self.setup.env(name, value);
        self
    }

    /// Removes a variable from the environment of all processes.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> SpawnOptions {
        self.setup = self.setup.env_remove(name);
        self
    }

    /// The directory that the processes work in; this process's without this.
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> SpawnOptions {
        self.setup = self.setup.current_dir(directory);
        self
    }

    /// The processors that the processes may run on; this process's without this.
    pub fn processors(mut self, numbers: impl IntoIterator<Item = usize>) -> SpawnOptions {
        self.setup = self.setup.processors(numbers);
        self
    }

    /// Sets the effect of SIGINT (Ctrl-C) and SIGTERM on the processes. Without this they end the processes.
    pub fn interrupt(mut self, interrupt: Interrupt) -> SpawnOptions {
        self.setup = self.setup.interrupt(interrupt);
        self
    }

    /// Restricts [`interrupt`](Self::interrupt) to one of the two signals.
    pub fn interrupt_signals(mut self, signals: InterruptSignals) -> SpawnOptions {
        self.setup = self.setup.interrupt_signals(signals);
        self
    }

    /// Limits the processes: resources, user, process group, control group.
    pub fn limits(mut self, limits: Limits) -> SpawnOptions {
        self.setup = self.setup.limits(limits);
        self
    }

    /// Where the standard output of the processes goes.
    pub fn stdout(mut self, output: Stdio) -> SpawnOptions {
        self.setup = self.setup.stdout(output);
        self
    }

    /// Where the standard error of the processes goes.
    pub fn stderr(mut self, output: Stdio) -> SpawnOptions {
        self.setup = self.setup.stderr(output);
        self
    }

    /// File descriptors of this process that the processes inherit, under the same numbers. All others, but the standard
    /// streams, are closed in processes that are started by [`Spawn`](StartMethod::Spawn) or
    /// [`ForkServer`](StartMethod::ForkServer), whether they are close-on-exec or not; copies by
    /// [`Fork`](StartMethod::Fork) have all of them, except where a file that is named here takes the number.
    ///
    /// ```
    /// use mp_spawn::{SpawnOptions, start_processes};
    /// use std::io::{Read, Write};
    /// use std::os::fd::AsRawFd;
    ///
    /// let (mut reader, writer) = std::io::pipe()?;
    /// // What a worker does with a number is up to it; here it finds the file by its path.
    /// let write = |_: usize, number: i32| {
    ///     std::fs::File::options().write(true).open(format!("/proc/self/fd/{number}"))?.write_all(b"hello")
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
    /// They are duplicated at once, and kept as long as the options are: this process may close its own, and reuse their
    /// numbers. In the processes a number is the file that had it when it was named, by every start method: a copy by `Fork`
    /// closes what has the number by then. There they are not close-on-exec, so that programs which the processes execute
    /// inherit them. Called again, it adds more; of a number that is named twice, the later file counts. For standard streams,
    /// use [`stdout`](Self::stdout) and [`stderr`](Self::stderr).
    ///
    /// # Errors
    ///
    /// The start returns [`SpawnError::Launch`] if one could not be duplicated, if there are more than 200, or if the function
    /// that a fork server preloads has opened another file under such a number.
    ///
    /// [`SpawnError::Launch`]: crate::SpawnError::Launch
    #[doc(alias = "pass_fds")]
    pub fn inherit_fds<F: AsFd>(mut self, fds: impl IntoIterator<Item = F>) -> SpawnOptions {
        self.setup = self.setup.inherit_fds(fds);
        self
    }

    /// Sets what is different from rank to rank: `change` gets the setup that the other options give to all, and returns that
    /// of this rank. See [`ProcessOptions`].
    pub fn per_rank(
        mut self,
        change: impl Fn(usize, ProcessOptions) -> ProcessOptions + Send + Sync + 'static,
    ) -> SpawnOptions {
        self.per_rank = Some(Arc::new(change));
        self
    }

    /// The secret of the processes, and of those that they start; this process's without this. See
    /// [`CurrentProcess::authkey`](crate::CurrentProcess::authkey).
    #[cfg(feature = "authkey")]
    pub fn authkey(mut self, key: impl AsRef<[u8]>) -> SpawnOptions {
        self.key = Some(key.as_ref().into());
        self
    }

    /// The secret of the processes.
    #[cfg(feature = "authkey")]
    pub(crate) fn key(&self) -> Result<AuthKey> {
        match &self.key {
            Some(key) => Ok(key.clone()),
            None => {
                mp_core::authkey().map_err(|error| failed("getrandom", None, std::io::Error::other(error)))
            }
        }
    }

    /// What a rank is started with.
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
    /// One process.
    fn default() -> SpawnOptions {
        SpawnOptions::nprocs(1)
    }
}
