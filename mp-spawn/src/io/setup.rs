//! What a process is started with: environment, directory, processors, streams.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::PathBuf;

use crate::protocol::inherited_files::Inherited;
use crate::protocol::interrupt::{Interrupt, InterruptSignals};
use crate::protocol::limits::Limits;

/// Where what a process writes to its standard output, or to its standard error, goes.
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
    /// To where this process's goes.
    #[default]
    Inherit,
    /// Nowhere.
    Null,
    /// Into memory of this process: see [`ProcessContext::stdout`](crate::ProcessContext::stdout). The last MiB is kept.
    Capture,
    /// As [`Capture`](Self::Capture), and line by line to where this process's goes, after `[rank 3]`, or the name of a
    /// [`Process`](crate::Process), as in `[process-1]`; in a colour where that is a terminal and `NO_COLOR` is not set.
    /// Lines of several processes are not mixed; one of more than 64 KiB is passed on in pieces. A call that waits for the
    /// end of a process waits until its lines are written, unless the terminal stands still for 200 ms.
    Tee,
    /// Into a file, which is made or emptied first. `{rank}` in the last part of its path stands for the rank, or the
    /// [number](crate::ProcessBuilder::number) of a [`Process`](crate::Process); `{name}` for the name of the process, which has no
    /// `/` then; `{{` and `}}` for braces. Any other pattern is an error of the start. Directories are taken as they are, and no
    /// part of the path needs to be UTF-8. Output is appended, also if both streams, or several processes, write to one file.
    File(PathBuf),
    /// As [`File`](Self::File), but what is in the file stays, and what is written comes behind it.
    Append(PathBuf),
}

impl Stdio {
    /// Into a file: see [`File`](Self::File).
    ///
    /// ```
    /// use mp_spawn::Stdio;
    ///
    /// assert_eq!(Stdio::file("logs/{rank}.txt"), Stdio::File("logs/{rank}.txt".into()));
    /// ```
    pub fn file(path: impl Into<PathBuf>) -> Stdio {
        Stdio::File(path.into())
    }

    /// The same, but a file keeps what is in it.
    fn appending(self) -> Stdio {
        match self {
            Stdio::File(path) => Stdio::Append(path),
            other => other,
        }
    }
}

/// What one process is started with, beside its function and arguments.
///
/// ```
/// use mp_spawn::{SpawnOptions, start_processes};
///
/// // A device for each rank, as torchrun does it.
/// let options = SpawnOptions::nprocs(2).per_rank(|rank, setup| setup.env("CUDA_VISIBLE_DEVICES", rank.to_string()));
/// let worker = |rank: usize, (): ()| {
///     assert_eq!(std::env::var("CUDA_VISIBLE_DEVICES"), Ok(rank.to_string()));
/// };
/// start_processes(worker, (), options)?.join()?;
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ProcessOptions {
    /// Changes to the environment, in order; `None` removes.
    pub(crate) environment: Vec<(OsString, Option<OsString>)>,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) processors: Vec<usize>,
    /// The number of a process that has a handle of its own, for the names of its files.
    pub(crate) number: Option<usize>,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
    pub(crate) interrupt: Interrupt,
    pub(crate) interrupt_signals: InterruptSignals,
    pub(crate) limits: Limits,
    /// The files that it inherits.
    pub(crate) inherited: Vec<Inherited>,
}

impl ProcessOptions {
    /// Sets a variable of the environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> ProcessOptions {
        self.environment.push((name.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Removes a variable from the environment.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> ProcessOptions {
        self.environment.push((name.as_ref().to_owned(), None));
        self
    }

    /// The directory that the process works in; its parent's without this.
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> ProcessOptions {
        self.directory = Some(directory.into());
        self
    }

    /// The processors that the process may run on; its parent's without this. See `sched_setaffinity(2)`.
    #[doc(alias = "sched_setaffinity")]
    pub fn processors(mut self, numbers: impl IntoIterator<Item = usize>) -> ProcessOptions {
        self.processors = numbers.into_iter().collect();
        self
    }

    /// Sets the effect of SIGINT (Ctrl-C) and SIGTERM on the process.
    pub fn interrupt(mut self, interrupt: Interrupt) -> ProcessOptions {
        self.interrupt = interrupt;
        self
    }

    /// Restricts [`interrupt`](Self::interrupt) to one of the two signals.
    pub fn interrupt_signals(mut self, signals: InterruptSignals) -> ProcessOptions {
        self.interrupt_signals = signals;
        self
    }

    /// Limits the process: resources, user, process group, control group.
    pub fn limits(mut self, limits: Limits) -> ProcessOptions {
        self.limits = limits;
        self
    }

    /// Where its standard output goes.
    pub fn stdout(mut self, output: Stdio) -> ProcessOptions {
        self.stdout = output;
        self
    }

    /// Where its standard error goes.
    pub fn stderr(mut self, output: Stdio) -> ProcessOptions {
        self.stderr = output;
        self
    }

    /// File descriptors of its parent that the process inherits, under the same numbers: see
    /// [`SpawnOptions::inherit_fds`](crate::SpawnOptions::inherit_fds).
    pub fn inherit_fds<F: AsFd>(mut self, fds: impl IntoIterator<Item = F>) -> ProcessOptions {
        self.inherited.extend(fds.into_iter().map(|fd| Inherited::of(fd.as_fd())));
        self
    }

    /// Files that it writes to keep what is in them.
    pub(crate) fn appending(mut self) -> ProcessOptions {
        (self.stdout, self.stderr) = (self.stdout.appending(), self.stderr.appending());
        self
    }
}
