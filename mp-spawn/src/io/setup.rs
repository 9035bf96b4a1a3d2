//! Setup of a process: environment, directory, processors, streams.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::PathBuf;

use crate::protocol::inherited_files::InheritedFile;
use crate::protocol::interrupt::{Interrupt, InterruptSignals};
use crate::protocol::resource_limits::Limits;

/// Destination of the standard output or the standard error of a process.
///
/// ```
/// use mp_spawn::{SpawnOptions, Stdio, start_processes};
///
/// let worker = |rank: usize, (): ()| println!("hello from {rank}");
/// let workers = start_processes(worker, (), SpawnOptions::nprocs(2).stdout(Stdio::Capture))?;
/// workers.wait()?;
/// assert_eq!(workers.stdout(1)?.text(), "hello from 1\n");
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stdio {
    /// Corresponding stream of this process.
    #[default]
    Inherit,
    /// No destination: the output is discarded (`/dev/null`).
    Null,
    /// Memory of this process: see [`ProcessContext::stdout`](crate::ProcessContext::stdout). The last MiB is
    /// stored.
    Capture,
    /// Memory, as with [`Capture`](Self::Capture), and in addition the stream of this process, line by line.
    /// Each line has a prefix: `[rank 3]`, or the name of a [`Process`](crate::Process), such as
    /// `[process-1]`. The prefix is coloured if the stream is a terminal and `NO_COLOR` is not set. Lines of
    /// several processes are not mixed. A line of more than 64 KiB is passed on in pieces. A call that waits
    /// for the end of a process waits until its lines are written, unless the terminal blocks for 200 ms.
    Tee,
    /// File, which is created or truncated first. In the last part of its path, `{rank}` is replaced with the
    /// rank, or with the [number](crate::ProcessBuilder::number) of a [`Process`](crate::Process). `{name}`
    /// is replaced with the name of the process, which must not contain `/`. `{{` and `}}` stand for braces.
    /// Any other pattern makes the start fail. Directories are not expanded, and the path need not be UTF-8.
    /// Output is appended, also if both streams, or several processes, write to the same file.
    File(PathBuf),
    /// File, as with [`File`](Self::File), but not truncated: output is appended to its contents.
    Append(PathBuf),
}

impl Stdio {
    /// Creates a [`File`](Self::File) destination.
    ///
    /// ```
    /// use mp_spawn::Stdio;
    ///
    /// assert_eq!(Stdio::file("logs/{rank}.txt"), Stdio::File("logs/{rank}.txt".into()));
    /// ```
    pub fn file(path: impl Into<PathBuf>) -> Stdio {
        Stdio::File(path.into())
    }

    /// Returns this destination, with `File` replaced by `Append`.
    fn appending(self) -> Stdio {
        match self {
            Stdio::File(path) => Stdio::Append(path),
            other => other,
        }
    }
}

/// Setup of one process, in addition to its function and arguments.
///
/// ```
/// use mp_spawn::{SpawnOptions, start_processes};
///
/// // A device for each rank, as torchrun does it.
/// let options = SpawnOptions::nprocs(2)
///     .per_rank(|rank, setup| setup.env("CUDA_VISIBLE_DEVICES", rank.to_string()));
/// let worker = |rank: usize, (): ()| {
///     assert_eq!(std::env::var("CUDA_VISIBLE_DEVICES"), Ok(rank.to_string()));
/// };
/// start_processes(worker, (), options)?.join()?;
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ProcessOptions {
    /// Changes to the environment, in order. `None` removes a variable.
    pub(crate) environment: Vec<(OsString, Option<OsString>)>,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) processors: Vec<usize>,
    /// Number of a process with its own handle, used in the names of its files.
    pub(crate) number: Option<usize>,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
    pub(crate) interrupt: Interrupt,
    pub(crate) interrupt_signals: InterruptSignals,
    pub(crate) limits: Limits,
    /// Files that the process inherits.
    pub(crate) inherited: Vec<InheritedFile>,
}

/// Defines the options of a process's setup as methods of a builder. The setup is the field `$setup` of the
/// builder. The attributes are those of the method `inherit_fds`.
macro_rules! setup_options {
    ($self:ident => $setup:expr; $(#[$inherit_fds:meta])+) => {
        /// Sets an environment variable.
        pub fn env(mut $self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
            $setup.environment.push((name.as_ref().to_owned(), Some(value.as_ref().to_owned())));
            $self
        }

        /// Removes an environment variable.
        pub fn env_remove(mut $self, name: impl AsRef<OsStr>) -> Self {
            $setup.environment.push((name.as_ref().to_owned(), None));
            $self
        }

        /// Sets the working directory. The default is the directory of the parent.
        pub fn current_dir(mut $self, directory: impl Into<PathBuf>) -> Self {
            $setup.directory = Some(directory.into());
            $self
        }

        /// Sets the processors on which the process may run. The default is the set of the parent. See
        /// `sched_setaffinity(2)`.
        #[doc(alias = "sched_setaffinity")]
        pub fn processors(mut $self, numbers: impl IntoIterator<Item = usize>) -> Self {
            $setup.processors = numbers.into_iter().collect();
            $self
        }

        /// Sets the effect of SIGINT (Ctrl-C) and SIGTERM. By default these signals end the process.
        pub fn interrupt(mut $self, interrupt: Interrupt) -> Self {
            $setup.interrupt = interrupt;
            $self
        }

        /// Restricts [`interrupt`](Self::interrupt) to one of the two signals.
        pub fn interrupt_signals(mut $self, signals: InterruptSignals) -> Self {
            $setup.interrupt_signals = signals;
            $self
        }

        /// Sets limits of the process: resources, user, process group, control group.
        pub fn limits(mut $self, limits: Limits) -> Self {
            $setup.limits = limits;
            $self
        }

        /// Sets the destination of the standard output.
        pub fn stdout(mut $self, output: Stdio) -> Self {
            $setup.stdout = output;
            $self
        }

        /// Sets the destination of the standard error.
        pub fn stderr(mut $self, output: Stdio) -> Self {
            $setup.stderr = output;
            $self
        }

        $(#[$inherit_fds])+
        pub fn inherit_fds<F: AsFd>(mut $self, fds: impl IntoIterator<Item = F>) -> Self {
            $setup.inherited.extend(fds.into_iter().map(|fd| InheritedFile::new(fd.as_fd())));
            $self
        }
    };
}
pub(crate) use setup_options;

impl ProcessOptions {
    setup_options! {
        self => self;
        /// Adds file descriptors of the parent that the process inherits under the same numbers: see
        /// [`SpawnOptions::inherit_fds`](crate::SpawnOptions::inherit_fds).
    }

    /// Returns this setup with output files that are appended to instead of truncated.
    pub(crate) fn appending(mut self) -> ProcessOptions {
        (self.stdout, self.stderr) = (self.stdout.appending(), self.stderr.appending());
        self
    }
}
