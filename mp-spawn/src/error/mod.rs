//! Errors of processes, from the attempt to start a process to its end.

pub(crate) mod backtrace;
mod call_failure;
mod exit_status;
mod function_error;
mod gave_up;
pub(crate) mod os_limit;
mod process_name;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use mp_reduce::Unread;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

pub use crate::error::call_failure::CallFailure;
pub(crate) use crate::error::call_failure::cut;
pub use crate::error::exit_status::{ExitDetail, ExitReport, ExitStatus, Signal};
pub use crate::error::function_error::FunctionError;
pub use crate::error::gave_up::{FailedAttempt, GaveUp, GaveUpReason};
pub use crate::error::process_name::ProcessName;
use crate::start_method::StartMethod;

/// Result type of this crate.
pub type Result<T, E = SpawnError> = std::result::Result<T, E>;

/// Error returned when processes can't be started, or when a process fails.
///
/// ```
/// use mp_spawn::{SpawnOptions, SpawnError, start_processes};
///
/// fn worker(_rank: usize, path: String) -> Result<(), std::io::Error> {
///     std::fs::read(path).map(|_| ())
/// }
///
/// let context = start_processes(worker, "/nowhere".to_string(), SpawnOptions::nprocs(1))?;
/// match context.join() {
///     Err(SpawnError::ProcessRaised(raised)) => assert!(raised.message.contains("No such file")),
///     other => panic!("unexpected: {other:?}"),
/// }
/// # Ok::<(), SpawnError>(())
/// ```
///
/// # Failures of a process
///
/// | a process that … | error | with |
/// |---|---|---|
/// | returns `Err` | [`ProcessRaised`] | message, all sources, `Debug` form |
/// | panics | [`ProcessRaised`] | message, location, backtrace (`RUST_BACKTRACE`) |
/// | panics during another panic; panics in an `extern "C"` function, or with `panic = "abort"` | [`ProcessExited`] | SIGABRT, [`ExitDetail::Panics`]: the messages of the panics |
/// | calls `exit(n)`, n ≠ 0, in a destructor or elsewhere | [`ProcessExited`] | the code |
/// | calls `exit(0)` although a result is awaited | [`ProcessExited`] | code 0, [`ExitDetail::NoValue`] |
/// | calls `exit(0)` and no result is awaited | none | |
/// | accesses invalid memory, divides by zero in C, … | [`ProcessExited`] | SIGSEGV, SIGBUS, SIGFPE, SIGILL; [`ExitDetail::Fault`] with the address |
/// | uses up its stack | [`ProcessExited`] | SIGSEGV, [`ExitDetail::StackOverflow`] |
/// | uses up the stack of another of its threads | [`ProcessExited`] | SIGSEGV, [`ExitDetail::LikelyStackOverflow`]; [`ExitDetail::StackOverflow`] if that thread has a stack for handlers |
/// | calls `abort` | [`ProcessExited`] | SIGABRT |
/// | is ended by the kernel's out-of-memory killer | [`ProcessExited`] | SIGKILL, [`ExitDetail::OutOfMemory`] if the control group reports it |
/// | is killed by this program | [`ProcessExited`] | the signal, [`ExitDetail::Requested`] |
/// | is killed by another program | [`ProcessExited`] | the signal |
/// | is killed before it has reported as a worker | [`ProcessExited`] | the signal; [`begun`](ProcessExited::begun) is false, and [`ExitDetail::NotBegun`], unless more is known |
/// | is ended because another process failed | none | [`ProcessStatus::Terminated`](crate::ProcessStatus::Terminated) |
/// | is stopped (SIGSTOP, a debugger) | none | the parent waits for it |
/// | closes all its files | depends on its end | the exit code; a panic or an error can't be reported |
/// | leaves a grandchild that holds its pipes | depends on its end | the parent doesn't wait for the grandchild |
/// | writes without end | depends on its end | the last MiB of captured output |
/// | can't decode its arguments | [`Arguments`] | the argument, and the codec's error |
/// | has no spare descriptors for its arguments | [`Arguments`] | the limit, and [the arguments](Self::unread) |
/// | returns descriptors, and this process has no spare ones | [`Value`] | the limit, and [the value](Self::unread); `join` can be called again |
/// | returns a value that can't be decoded here | [`Value`] | the codec's error |
/// | runs another build, or the reference to its function was tampered with | [`Refused`] | a [`FunctionError`] |
/// | is another program, and exits | [`NeverReported`] | the program, its end, a remedy |
/// | is another program, and continues | [`Timeout`] | the program, the time, a remedy |
/// | sends malformed data | [`Protocol`] | the malformed part |
/// | is [supervised](crate::Restart), and exceeds its restarts, or is ended by the program before its next start | [`GaveUp`] | the last failure, the number of starts, and earlier failures |
///
/// A [`ProcessExited`] also shows the last lines of standard error, if standard error is captured.
///
/// | a start … | error | with |
/// |---|---|---|
/// | of more processes than can share memory (1,024) | [`Launch`] | the number requested, and the limit; nothing was started |
/// | of too many processes, files or bytes for the system | [`Launch`] | the refused call, and the limit with its value (`RLIMIT_NPROC`, `pids.max` and its group, …); processes that had been started are ended and reaped |
/// | without `/proc`, or under a seccomp filter that refuses `clone3` or `prctl` | [`Launch`] | the [cause](LaunchError::cause), and a remedy |
/// | of a missing program | [`Launch`] | its path |
/// | of functions in a shared library whose file was replaced or deleted meanwhile | [`Launch`] | its path, and the build at that path |
/// | by executing a program with privileges that its user lacks (set-user-ID, file capabilities), or in a process whose real and effective user differ | [`Launch`] | the reason, and a remedy |
/// | with arguments that can't be encoded | [`Arguments`] | the codec's error; nothing was started |
/// | by a fork server that fails or crashes while it preloads, or doesn't answer | [`Launch`] | the end of the server; the next start begins another server |
/// | by a fork server that crashed at another time | none | another server is started, which is logged; [`Launch`] if several crash in succession |
/// | by `fork`, which the program has not allowed, or which is impossible (after the use of a GPU, or for a copy of a copy, 16 levels deep) | [`ForkRefused`] | the reason |
/// | by `fork`, if the copy waits for a lock that another thread held | [`Timeout`] | the time |
/// | in a process that was started as a worker and has not become one | [`NotInitialised`] | |
///
/// The error can be sent to another process. It arrives as the same variant, with its texts and sources, but
/// without [the unread data](Self::unread).
///
/// If the system refuses to send a signal, the error is [`NotSignalled`], with the
/// reason.
///
/// [`ProcessRaised`]: Self::ProcessRaised
/// [`ProcessExited`]: Self::ProcessExited
/// [`Arguments`]: Self::Arguments
/// [`Value`]: Self::Value
/// [`Refused`]: Self::Refused
/// [`NeverReported`]: Self::NeverReported
/// [`Timeout`]: Self::Timeout
/// [`Protocol`]: Self::Protocol
/// [`GaveUp`]: Self::GaveUp
/// [`Launch`]: Self::Launch
/// [`ForkRefused`]: Self::ForkRefused
/// [`NotInitialised`]: Self::NotInitialised
/// [`NotSignalled`]: Self::NotSignalled
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[doc(alias = "ProcessException")]
#[doc(alias = "ProcessError")]
pub enum SpawnError {
    /// A worker returned an error or panicked.
    ProcessRaised(Box<ProcessRaised>),
    /// The process of a worker ended without a report.
    ProcessExited(Box<ProcessExited>),
    /// This process was started as a worker and has not become one yet: [`init`](crate::init), or the
    /// function that [`export_child_main!`](crate::export_child_main!) defines, must run before any start.
    NotInitialised,
    /// A start by [`StartMethod::Fork`](crate::StartMethod::Fork) was refused, for this reason: the program
    /// has not called [`allow_fork`](crate::allow_fork), or the process has a part that can't be copied, such
    /// as a GPU's driver.
    // (The path is written in full because serde would borrow from the input if the type were just `str`.)
    ForkRefused(#[serde(with = "mp_core::serde_with::text")] &'static std::primitive::str),
    /// The child refused to call the function.
    Refused {
        /// Process that refused.
        who: Box<ProcessName>,
        /// Function named by the parent.
        function: String,
        /// Reason for the refusal.
        reason: FunctionError,
    },
    /// The arguments could not be encoded, so that no process was started. Or a child could not decode the
    /// arguments.
    Arguments {
        /// Process that could not decode the arguments. `None` if they could not be encoded.
        who: Option<Box<ProcessName>>,
        /// Error message of the codec.
        message: String,
        /// Arguments, if the process had no spare descriptors for them: see [`unread`](Self::unread).
        #[serde(skip)]
        unread: Option<Unread>,
    },
    /// The value that a function returned can't be decoded in this process.
    Value {
        /// Process that returned the value.
        who: Box<ProcessName>,
        /// Error message of the codec.
        message: String,
        /// Value, if this process has no spare descriptors for it: see [`unread`](Self::unread).
        #[serde(skip)]
        unread: Option<Unread>,
    },
    /// The system could not start a process.
    Launch(Box<LaunchError>),
    /// A [supervised](crate::Restart) process failed and is not restarted. Contains the last failure and
    /// earlier failures.
    GaveUp(Box<GaveUp>),
    /// The child is alive and did not report in time. It probably runs a program that does not support
    /// workers.
    Timeout {
        /// Process that did not report.
        who: Box<ProcessName>,
        /// Program that was started.
        #[serde(with = "mp_core::serde_with::path")]
        program: PathBuf,
        /// Method by which the process was started.
        method: StartMethod,
        /// `true` if the program was started as a [guest](crate::ProcessBuilder::guest).
        guest: bool,
        /// Time that the parent waited. The parent waits for this time again while the process is stopped,
        /// waits for a disk, or has had no processor.
        waited: Duration,
        /// Activity of the process when the parent stopped waiting, in words. Empty if unknown.
        activity: String,
    },
    /// The child exited by itself, with an exit code, before it reported that it is a worker. It probably ran
    /// a program that does not support workers. (A child that a signal ends before its report is a
    /// [`ProcessExited`](Self::ProcessExited), with [`begun`](ProcessExited::begun) false.)
    NeverReported {
        /// Process that exited.
        who: Box<ProcessName>,
        /// Program that was started. With a fork server, the program that the server runs.
        #[serde(with = "mp_core::serde_with::path")]
        program: PathBuf,
        /// Method by which the process was started.
        method: StartMethod,
        /// `true` if the program was started as a [guest](crate::ProcessBuilder::guest).
        guest: bool,
        /// Exit status of the process.
        exit: ExitStatus,
    },
    /// The child sent malformed data, and was ended.
    Protocol {
        /// Process that sent the data.
        who: Box<ProcessName>,
        /// Description of the malformed data.
        message: String,
    },
    /// A signal could not be sent to a running process. Usually the process has changed its user, or a
    /// seccomp filter forbids the call.
    NotSignalled {
        /// Process to which the signal was not sent.
        who: Box<ProcessName>,
        /// Signal that was not sent.
        signal: Signal,
        /// Error of the system call.
        #[serde(with = "mp_core::serde_with::io")]
        source: Arc<io::Error>,
    },
    /// The rank does not exist.
    NoSuchRank {
        /// Rank that was requested.
        rank: usize,
        /// Number of processes.
        nprocs: usize,
    },
    /// The processes are children of another process, from which this process was forked.
    OtherProcess {
        /// Id of the process that has started the processes.
        owner: u32,
    },
}

/// Kind of a worker's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RaisedKind {
    /// The function returned `Err`.
    Error,
    /// The function panicked.
    Panic,
    /// The function returned `Err` after SIGINT (Ctrl-C) or SIGTERM, of which its process is notified
    /// ([`Interrupt::Graceful`](crate::Interrupt::Graceful)).
    Interrupted,
}

/// Error or panic of a worker, with all known details.
///
/// `Debug` output equals `Display` output, because `unwrap`, and a `main` that returns the error, print the
/// `Debug` output. `{:#?}` shows the fields.
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[doc(alias = "ProcessRaisedException")]
pub struct ProcessRaised {
    /// Process that failed.
    pub who: ProcessName,
    /// Kind of the failure.
    pub kind: RaisedKind,
    /// `Display` output of the error, or message of the panic.
    pub message: String,
    /// Sources of the error, outermost first.
    pub chain: Vec<String>,
    /// `Debug` output of the error. Empty for a panic.
    pub debug: String,
    /// File, line and column of the panic.
    pub location: Option<String>,
    /// Complete backtrace of the panic, if `RUST_BACKTRACE` enables it. `Display` shows the program's own
    /// frames, and `{:#}` all frames.
    pub backtrace: Option<String>,
}

/// End of a worker's process without a report, by `exit` or by a signal.
///
/// `Debug` output equals `Display` output, because `unwrap`, and a `main` that returns the error, print the
/// `Debug` output. `{:#?}` shows the fields.
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[doc(alias = "ProcessExitedException")]
pub struct ProcessExited {
    /// Process that ended.
    pub who: ProcessName,
    /// Exit code or signal.
    pub exit: ExitStatus,
    /// `true` if the process had reported as a worker. If `false`, its function was not called.
    pub begun: bool,
    /// Further cause, if known.
    pub detail: Option<ExitDetail>,
    /// Last lines of the process's standard error, if that stream is captured (see [`Stdio`](crate::Stdio))
    /// and not empty.
    pub stderr: Option<String>,
}

/// Failure of the system to start a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LaunchError {
    /// System call or step that failed.
    #[serde(with = "mp_core::serde_with::text")]
    pub what: &'static std::primitive::str,
    /// Program that was to run, if the step involved one.
    #[serde(with = "mp_core::serde_with::path::option")]
    pub program: Option<PathBuf>,
    /// Limit that was reached, with its value, if the error implies a limit.
    pub limit: Option<String>,
    /// Cause and remedy, if the error number doesn't show them, for example a missing `/proc` or a seccomp
    /// filter.
    pub cause: Option<String>,
    /// Error that the system returned.
    #[serde(with = "mp_core::serde_with::io")]
    pub source: Arc<io::Error>,
}

impl SpawnError {
    /// Returns the process that failed, or `None` if the error does not concern a single process.
    #[must_use]
    pub fn who(&self) -> Option<&ProcessName> {
        match self {
            SpawnError::ProcessRaised(raised) => Some(&raised.who),
            SpawnError::ProcessExited(exited) => Some(&exited.who),
            SpawnError::GaveUp(gave_up) => Some(&gave_up.who),
            SpawnError::Arguments { who, .. } => who.as_deref(),
            SpawnError::Refused { who, .. }
            | SpawnError::Timeout { who, .. }
            | SpawnError::NeverReported { who, .. }
            | SpawnError::Protocol { who, .. }
            | SpawnError::NotSignalled { who, .. }
            | SpawnError::Value { who, .. } => Some(who),
            SpawnError::NoSuchRank { .. }
            | SpawnError::NotInitialised
            | SpawnError::ForkRefused(_)
            | SpawnError::Launch(_)
            | SpawnError::OtherProcess { .. } => None,
        }
    }

    /// Returns data that was sent but could not be read for lack of descriptors
    /// ([`RLIMIT_NOFILE`](mp_core::Error::OutOfDescriptors)): the arguments, which the process that could not
    /// read them has sent back, or the return value of a function. The data is complete. It can be read after
    /// some descriptors were closed, and arguments can then be passed to another start.
    ///
    /// ```no_run
    /// use std::fs::File;
    ///
    /// use mp_reduce::Fd;
    /// use mp_spawn::Process;
    ///
    /// fn open(_: ()) -> std::io::Result<Fd<File>> {
    ///     File::open("/etc/hostname").map(Fd)
    /// }
    ///
    /// # fn close_some() {}
    /// let file = match Process::spawn(open, ())?.join() {
    ///     Ok(Fd(file)) => file,
    ///     Err(error) => match error.unread() {
    ///         Some(unread) => {
    ///             close_some();
    ///             unread.read::<Fd<File>>()?.0
    ///         }
    ///         None => return Err(error.into()),
    ///     },
    /// };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A second call of `join` can also read the value. The value can be read only once, either by `join` or
    /// by `Unread::read`.
    #[must_use]
    pub fn unread(&self) -> Option<&Unread> {
        match self {
            SpawnError::Arguments { unread, .. } | SpawnError::Value { unread, .. } => unread.as_ref(),
            SpawnError::GaveUp(gave_up) => gave_up.last.unread(),
            _ => None,
        }
    }

    /// Returns the rank of the failed process, or `None` if the error does not concern a single rank. A
    /// [`Process`](crate::Process) has no rank.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self {
            SpawnError::NoSuchRank { rank, .. } => Some(*rank),
            other => other.who().and_then(|who| who.rank),
        }
    }
}

const HINT: &str = "Only a program that links this crate can be a worker. If this program runs through a \
                    loader or a wrapper, name the program itself with `SpawnOptions::executable`; where no \
                    start-up hook runs (outside Linux with glibc, or in a program that is linked with a \
                    shared library of this crate), `main` must call `mp::init()` first; and a command that \
                    was set with `set_command` from a shared library must load the library and call its \
                    `mp_child_main`. A set-user-ID program, or one with file capabilities, can't be a worker";

const GUEST_HINT: &str = "A guest must call `mp::process::guest` in Rust, or `multiproc.child()` in Python, \
                          where the package `multiproc` must be importable by the interpreter of the \
                          command. The executed process itself must make the call, not a child of it. Its \
                          stderr may show why it did not";

/// Writes possible reasons why an executed program did not report as a worker. Writes nothing for forked
/// copies, because they run a program that supports workers.
fn hint(f: &mut fmt::Formatter<'_>, method: StartMethod, guest: bool) -> fmt::Result {
    match method {
        _ if guest => write!(f, ". {GUEST_HINT}"),
        StartMethod::Spawn => write!(f, ". {HINT}"),
        StartMethod::ForkServer | StartMethod::Fork => Ok(()),
    }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::ProcessRaised(raised) => raised.fmt(f),
            SpawnError::ProcessExited(exited) => exited.fmt(f),
            SpawnError::NotInitialised => f.write_str(
                "this process was started as a worker and has not become one: mp::init() must run first, or \
                 a library's mp_child_main() (the environment variable MP_CHILD is still set)",
            ),
            SpawnError::ForkRefused(why) => write!(f, "could not start a process by `fork`: {why}"),
            SpawnError::Refused { who, function, reason } => {
                write!(f, "{who} refused to call `{function}`: {reason}")
            }
            SpawnError::Arguments { who: Some(who), message, .. } => {
                write!(f, "{who} could not decode its arguments: {message}")
            }
            SpawnError::Arguments { who: None, message, .. } => {
                write!(f, "the arguments could not be encoded: {message}")
            }
            SpawnError::Value { who, message, .. } => {
                write!(f, "could not read what {who} returned: {message}")
            }
            SpawnError::Launch(launch) => launch.fmt(f),
            SpawnError::GaveUp(gave_up) => gave_up.fmt(f),
            SpawnError::Timeout { who, program, method, guest, waited, activity } => {
                write!(f, "{who} was started by {method}")?;
                if *method == StartMethod::Spawn {
                    write!(f, ", runs {}", program.display())?;
                }
                write!(
                    f,
                    " and did not report within {waited:?} (see `handshake_timeout` of `SpawnOptions` and \
                     `ProcessBuilder`)"
                )?;
                if !activity.is_empty() {
                    write!(f, ": {activity}")?;
                }
                hint(f, *method, *guest)
            }
            SpawnError::NeverReported { who, program, method, guest, exit } => {
                match method {
                    StartMethod::Spawn => write!(f, "{who} ran {}", program.display())?,
                    StartMethod::ForkServer => write!(f, "{who} was made by the fork server")?,
                    StartMethod::Fork => write!(f, "{who} was made by fork")?,
                }
                let role = if *guest { "guest" } else { "worker" };
                write!(f, " and {exit} before it reported as a {role}")?;
                if *exit == ExitStatus::Code(EXIT_USELESS) {
                    return f.write_str(
                        ". This code says that it could not become a worker; it has written the reason to \
                         its standard error",
                    );
                }
                hint(f, *method, *guest)
            }
            SpawnError::Protocol { who, message } => {
                write!(f, "{who} sent malformed data to its parent and was ended: {message}")
            }
            SpawnError::NotSignalled { who, signal, source } => write!(
                f,
                "{who} could not be sent {signal}: {source}. It continues; if it is another user's by now, \
                 that user or root can send it, and it ends by itself when what it waits for is closed"
            ),
            SpawnError::NoSuchRank { rank, nprocs } => {
                write!(
                    f,
                    "rank {rank} does not exist: the group has {}",
                    mp_core::quantity(nprocs, "process")
                )
            }
            SpawnError::OtherProcess { owner } => {
                write!(
                    f,
                    "these processes are children of process {owner}, from which this one was forked: only \
                     that process can join or signal them"
                )
            }
        }
    }
}

mp_core::readable_debug!(SpawnError);

impl std::error::Error for SpawnError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SpawnError::Launch(launch) => Some(&*launch.source),
            SpawnError::GaveUp(gave_up) => Some(&gave_up.last),
            SpawnError::NotSignalled { source, .. } => Some(&**source),
            _ => None,
        }
    }
}

impl fmt::Display for ProcessRaised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            RaisedKind::Error => "failed",
            RaisedKind::Panic => "panicked",
            RaisedKind::Interrupted => "ended after Ctrl-C or SIGTERM",
        };
        write!(f, "{} {verb}: {}", self.who, self.message)?;
        if let Some(location) = &self.location {
            write!(f, "\n  at {location}")?;
        }
        for cause in &self.chain {
            write!(f, "\n  caused by: {cause}")?;
        }
        if let Some(backtrace) = &self.backtrace {
            f.write_str("\n  backtrace in the worker:")?;
            if f.alternate() {
                write!(f, "\n{backtrace}")?;
            } else {
                backtrace::write_short(f, backtrace, "{:#}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for ProcessExited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end =
            ExitReport { exit: self.exit, detail: self.detail.as_ref(), stderr: self.stderr.as_deref() };
        write!(f, "{} {end}", self.who)
    }
}

/// Implements `Debug`: the output of `Display`, or all fields in the alternate form.
macro_rules! display_debug {
    ($type:ident { $($field:ident),+ }) => {
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if !f.alternate() {
                    return fmt::Display::fmt(self, f);
                }
                f.debug_struct(stringify!($type))$(.field(stringify!($field), &self.$field))+.finish()
            }
        }
    };
}

display_debug!(ProcessRaised { who, kind, message, chain, debug, location, backtrace });
display_debug!(ProcessExited { who, exit, begun, detail, stderr });

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not start a process: {}", self.what)?;
        if let Some(program) = &self.program {
            write!(f, " of {}", program.display())?;
        }
        write!(f, " failed: {}", self.source)?;
        if let Some(limit) = &self.limit {
            write!(f, ". The limit is {limit}")?;
        }
        if let Some(cause) = &self.cause {
            write!(f, ". The cause: {cause}")?;
        }
        Ok(())
    }
}

/// Exit code of a process that could not become a worker. Without a connection to its parent, such a process
/// writes the reason to stderr.
pub(crate) const EXIT_USELESS: i32 = 120;

/// Creates the error of a start, with the limit that was reached and the cause, if the system reports them.
#[doc(hidden)]
pub fn launch_error(what: &'static str, program: Option<&Path>, source: io::Error) -> SpawnError {
    let error = source.raw_os_error().map(Errno::from_raw_os_error);
    let (limit, cause) = (os_limit::limit(what, error), os_limit::of(what, program, error));
    let program = program.map(Path::to_owned);
    SpawnError::Launch(Box::new(LaunchError { what, program, limit, cause, source: Arc::new(source) }))
}
