//! What can go wrong with a process, from the attempt to start it to the way it ended.

pub(crate) mod backtrace;
pub(crate) mod exit_status;
pub(crate) mod function_error;
pub(crate) mod gave_up;
pub(crate) mod os_limit;
pub(crate) mod process_name;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mp_reduce::Unread;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::exit_status::{ExitDetail, ExitReport, ExitStatus, Signal};
use crate::error::function_error::FunctionError;
use crate::error::gave_up::GaveUp;
use crate::error::process_name::ProcessName;
use crate::start_method::StartMethod;

/// A result of this crate.
pub type Result<T, E = SpawnError> = std::result::Result<T, E>;

/// Why processes could not be started, or how the first of them failed.
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
/// # What a failure looks like
///
/// | the process | error | with |
/// |---|---|---|
/// | returns `Err` | [`ProcessRaised`](Self::ProcessRaised) | message, all sources, `Debug` form |
/// | panics | [`ProcessRaised`](Self::ProcessRaised) | message, location, backtrace (`RUST_BACKTRACE`) |
/// | panics while it panics; panics in an `extern "C"` function, or with `panic = "abort"` | [`ProcessExited`](Self::ProcessExited) | SIGABRT, [`ExitDetail::Panics`]: what the panics said |
/// | calls `exit(n)`, n ≠ 0, in a destructor or elsewhere | [`ProcessExited`](Self::ProcessExited) | the code |
/// | calls `exit(0)` before a result that is awaited | [`ProcessExited`](Self::ProcessExited) | code 0, [`ExitDetail::NoValue`] |
/// | calls `exit(0)` where there is no result | none | |
/// | touches memory that isn't its own, divides by zero in C, … | [`ProcessExited`](Self::ProcessExited) | SIGSEGV, SIGBUS, SIGFPE, SIGILL; [`ExitDetail::Fault`] with the address |
/// | uses up its stack | [`ProcessExited`](Self::ProcessExited) | SIGSEGV, [`ExitDetail::StackOverflow`] |
/// | uses up the stack of another of its threads | [`ProcessExited`](Self::ProcessExited) | SIGSEGV, [`ExitDetail::LikelyStackOverflow`]; [`ExitDetail::StackOverflow`] where that thread has a stack for handlers |
/// | calls `abort` | [`ProcessExited`](Self::ProcessExited) | SIGABRT |
/// | is ended by the kernel's out-of-memory killer | [`ProcessExited`](Self::ProcessExited) | SIGKILL, [`ExitDetail::OutOfMemory`], as far as the control group tells |
/// | is killed by this program | [`ProcessExited`](Self::ProcessExited) | the signal, [`ExitDetail::AskedFor`] |
/// | is killed by another program | [`ProcessExited`](Self::ProcessExited) | the signal |
/// | is killed before it has reported as a worker | [`ProcessExited`](Self::ProcessExited) | the signal; [`begun`](ProcessExited::begun) is false, and [`ExitDetail::NotBegun`], unless more is known |
/// | is ended because another one failed | none | [`ProcessStatus::EndedByUs`](crate::ProcessStatus::EndedByUs) |
/// | is stopped (SIGSTOP, a debugger) | none | the parent waits for it |
/// | closes all its files | as it ends | a panic or an error can't be reported any more: the exit code |
/// | leaves a grandchild behind that holds its pipes | as it ends | the parent doesn't wait for the grandchild |
/// | writes without end | as it ends | of captured output the last MiB |
/// | can't decode its arguments | [`Arguments`](Self::Arguments) | which one, and what the codec says |
/// | has no descriptors to spare for those in its arguments | [`Arguments`](Self::Arguments) | the limit, and [the arguments](Self::unread) |
/// | returns descriptors, and this process has none to spare | [`Value`](Self::Value) | the limit, and [the value](Self::unread); `join` can be called again |
/// | returns what can't be decoded here | [`Value`](Self::Value) | the same |
/// | is of another build, or the reference to its function was tampered with | [`Refused`](Self::Refused) | a [`FunctionError`] |
/// | is another program, and exits | [`NeverReported`](Self::NeverReported) | the program, how it ended, what to do |
/// | is another program, and stays | [`Timeout`](Self::Timeout) | the program, the time, what to do |
/// | sends malformed data | [`Protocol`](Self::Protocol) | what was malformed |
/// | is [supervised](crate::Restart), and fails once too often, or waits for its next start when the program ends it | [`GaveUp`](Self::GaveUp) | the last failure, how often it was started, and how it failed before |
///
/// A [`ProcessExited`] also shows the last lines of standard error, where that is captured.
///
/// | the start | error | with |
/// |---|---|---|
/// | of more processes than can share memory (1,024) | [`Launch`](Self::Launch) | how many were asked for, and the limit; nothing was started |
/// | of too many processes, files or bytes for the system | [`Launch`](Self::Launch) | what was refused, and the limit, by number (`RLIMIT_NPROC`, `pids.max` and its group, …); what had been started is ended and reaped |
/// | without `/proc`, or under a seccomp filter that refuses `clone3` or `prctl` | [`Launch`](Self::Launch) | the [cause](LaunchError::cause), and what to do |
/// | of a program that is not there | [`Launch`](Self::Launch) | its path |
/// | of functions in a shared library whose file was replaced or deleted meanwhile | [`Launch`](Self::Launch) | its path, and which build is there |
/// | by executing a program with privileges that its user lacks (set-user-ID, file capabilities), or in a process whose real and effective user differ | [`Launch`](Self::Launch) | the reason, and what to do |
/// | with arguments that can't be encoded | [`Arguments`](Self::Arguments) | what the codec says; nothing was started |
/// | by a fork server that can't preload, crashes while it does, or doesn't answer | [`Launch`](Self::Launch) | how it ended; the next start begins another one |
/// | by a fork server that has crashed otherwise | none | another one is started, and the log has it; [`Launch`](Self::Launch) if several crash one after another |
/// | by `fork`, which the program has not allowed, or which is impossible: after the use of a GPU, 16 deep | [`ForkRefused`](Self::ForkRefused) | the reason |
/// | by `fork`, where the copy waits for a lock that another thread held | [`Timeout`](Self::Timeout) | the time |
/// | in a worker that has not become one | [`NotInitialised`](Self::NotInitialised) | |
///
/// It can be sent: it arrives as the same variant, with all that it says and its sources, without [what was not read](Self::unread).
///
/// A signal that the system refuses to send is [`NotSignalled`](Self::NotSignalled), with its reason.
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[doc(alias = "ProcessException")]
#[doc(alias = "ProcessError")]
pub enum SpawnError {
    /// A worker returned an error or panicked.
    ProcessRaised(Box<ProcessRaised>),
    /// A worker's process ended without a report.
    ProcessExited(Box<ProcessExited>),
    /// This process was itself started as a worker and has not become one yet:
    /// [`init`](crate::init) must run before anything is started, or what
    /// [`export_child_main!`](crate::export_child_main!) has made.
    NotInitialised,
    /// A start by [`StartMethod::Fork`](crate::StartMethod::Fork) was refused, for this reason: the program has not called
    /// [`allow_fork`](crate::allow_fork), or something in this process, such as a GPU's driver, can't be copied.
    // (In full: serde would borrow from what it reads where the type is just `str`.)
    ForkRefused(#[serde(with = "mp_core::sent::text")] &'static std::primitive::str),
    /// The child refused to call the function.
    Refused {
        /// Which process.
        who: Box<ProcessName>,
        /// The function that it was to call.
        function: String,
        /// What was wrong.
        reason: FunctionError,
    },
    /// The arguments could not be encoded (then no process was started), or not be decoded in the child.
    Arguments {
        /// The process that could not decode them; `None` when they could not be encoded.
        who: Option<Box<ProcessName>>,
        /// What the codec says.
        message: String,
        /// The arguments, where the process had no descriptors to spare for those in them: see [`unread`](Self::unread).
        #[serde(skip)]
        unread: Option<Unread>,
    },
    /// The value that a function returned can't be read here.
    Value {
        /// Which process.
        who: Box<ProcessName>,
        /// What the codec says.
        message: String,
        /// The value, where this process has no descriptors to spare for those in it: see [`unread`](Self::unread).
        #[serde(skip)]
        unread: Option<Unread>,
    },
    /// The system could not start a process.
    Launch(Box<LaunchError>),
    /// A [supervised](crate::Restart) process failed, and is not started again: the last failure, and those before it.
    GaveUp(Box<GaveUp>),
    /// The child is alive and did not report within the time it had: it probably runs a program that does
    /// not know what a worker is.
    Timeout {
        /// Which process.
        who: Box<ProcessName>,
        /// The program that was started.
        #[serde(with = "mp_core::sent::path")]
        program: PathBuf,
        /// By which method.
        method: StartMethod,
        /// For how long the parent waited. A process that is stopped, waits for a disk or has had no processor is waited for once
        /// more each time.
        waited: Duration,
        /// What it was doing then, in words; empty if unknown.
        doing: String,
    },
    /// The child ended by itself, with an exit code, before it reported that it is a worker: it probably ran a program that
    /// does not know what a worker is. (A signal that ends it then is a [`ProcessExited`](Self::ProcessExited), with
    /// [`begun`](ProcessExited::begun) false.)
    NeverReported {
        /// Which process.
        who: Box<ProcessName>,
        /// The program that was started; by a fork server, the one that the server runs.
        #[serde(with = "mp_core::sent::path")]
        program: PathBuf,
        /// By which method.
        method: StartMethod,
        /// How it ended.
        exit: ExitStatus,
    },
    /// The child sent malformed data, and was ended.
    Protocol {
        /// Which process.
        who: Box<ProcessName>,
        /// What was wrong with them.
        message: String,
    },
    /// A signal could not be sent to a process, which continues: as a rule it is another user's by now, or a filter (seccomp)
    /// forbids the call.
    NotSignalled {
        /// Which process.
        who: Box<ProcessName>,
        /// The signal.
        signal: Signal,
        /// The system's error.
        #[serde(with = "mp_core::sent::io")]
        source: Arc<io::Error>,
    },
    /// There is no such rank.
    NoSuchRank {
        /// The rank that was asked for.
        rank: usize,
        /// How many there are.
        nprocs: usize,
    },
    /// The processes are children of another process: this one was forked from the one that started them.
    OtherProcess {
        /// The process that started them.
        owner: u32,
    },
}

/// Whether a worker returned an error or panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RaisedKind {
    /// It returned `Err`.
    Error,
    /// It panicked.
    Panic,
    /// It returned `Err` after SIGINT (Ctrl-C) or SIGTERM, of which it had asked to be informed ([`Interrupt::Graceful`](crate::Interrupt::Graceful)).
    Interrupted,
}

/// A worker returned an error or panicked: everything that is known about it.
///
/// Its `Debug` is its `Display`, for that is in what `unwrap` and a `main` that returns the error show; `{:#?}` has the fields.
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[doc(alias = "ProcessRaisedException")]
pub struct ProcessRaised {
    /// Which process.
    pub who: ProcessName,
    /// Error or panic.
    pub kind: RaisedKind,
    /// The error's `Display`, or the message of the panic.
    pub message: String,
    /// The error's sources, outermost first.
    pub chain: Vec<String>,
    /// The error's `Debug`; empty for a panic.
    pub debug: String,
    /// File, line and column of the panic.
    pub location: Option<String>,
    /// The backtrace of the panic, when `RUST_BACKTRACE` asks for one. All of it; `Display` shows the part that is the
    /// program's, and `{:#}` all.
    pub backtrace: Option<String>,
}

/// A worker's process ended without a report: by `exit`, by a signal.
///
/// Its `Debug` is its `Display`, for that is in what `unwrap` and a `main` that returns the error show; `{:#?}` has the fields.
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[doc(alias = "ProcessExitedException")]
pub struct ProcessExited {
    /// Which process.
    pub who: ProcessName,
    /// Exit code or signal.
    pub exit: ExitStatus,
    /// Whether it had begun: had reported that it is a worker. If not, its function was not called.
    pub begun: bool,
    /// What is known beyond that.
    pub detail: Option<ExitDetail>,
    /// The last lines of its standard error, if it is captured (see [`Stdio`](crate::Stdio)) and there are any.
    pub stderr: Option<String>,
}

/// The system could not start a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LaunchError {
    /// What was attempted.
    #[serde(with = "mp_core::sent::text")]
    pub what: &'static std::primitive::str,
    /// The program that was to run, where one was involved.
    #[serde(with = "mp_core::sent::path::option")]
    pub program: Option<PathBuf>,
    /// The limit that was hit, with its value, where the error names one.
    pub limit: Option<String>,
    /// What caused it, and what to do, where the error doesn't say: no `/proc`, a seccomp filter.
    pub cause: Option<String>,
    /// The system's error.
    #[serde(with = "mp_core::sent::io")]
    pub source: Arc<io::Error>,
}

impl SpawnError {
    /// The process that this error is about, if it is about one.
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

    /// What was sent and could not be read for lack of descriptors ([`RLIMIT_NOFILE`](mp_core::Error::OutOfDescriptors)): the arguments, as
    /// the process that could not read them has given them back, or what a function returned, which is here. It is whole, and
    /// can be read when some descriptors were closed; the arguments are for another start, then.
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
    /// A second call of `join` reads it as well: what one of the two has read, the other has not.
    #[must_use]
    pub fn unread(&self) -> Option<&Unread> {
        match self {
            SpawnError::Arguments { unread, .. } | SpawnError::Value { unread, .. } => unread.as_ref(),
            SpawnError::GaveUp(gave_up) => gave_up.last.unread(),
            _ => None,
        }
    }

    /// The rank that this error is about, if it is about one: not of a [`Process`](crate::Process), which has none.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self {
            SpawnError::NoSuchRank { rank, .. } => Some(*rank),
            other => other.who().and_then(|who| who.rank),
        }
    }
}

const HINT: &str = "Only a program that links this crate can be a worker. If this program runs through a loader \
                    or a wrapper, name the program itself with `SpawnOptions::executable`; where no start-up hook \
                    runs (outside Linux with glibc, or in a program that is linked with a shared library of this \
                    crate), `main` must call `mp::init()` first; and a command that was set with `set_command` from a \
                    shared library must load the library and call its `mp_child_main`. A set-user-ID program, or one \
                    with file capabilities, can't be a worker";

/// What may be wrong with a program that was executed; copies are made of a program that is known to be right.
fn hint(f: &mut fmt::Formatter<'_>, method: StartMethod) -> fmt::Result {
    if method == StartMethod::Spawn { write!(f, ". {HINT}") } else { Ok(()) }
}

impl fmt::Display for SpawnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpawnError::ProcessRaised(raised) => raised.fmt(f),
            SpawnError::ProcessExited(exited) => exited.fmt(f),
            SpawnError::NotInitialised => f.write_str(
                "this process was started as a worker and has not become one: mp::init() must run first, or a \
                 library's mp_child_main() (the environment variable MP_CHILD is still set)",
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
            SpawnError::Timeout { who, program, method, waited, doing } => {
                write!(f, "{who} was started by {method}")?;
                if *method == StartMethod::Spawn {
                    write!(f, ", runs {}", program.display())?;
                }
                write!(
                    f,
                    " and did not report within {waited:?} (see `handshake_timeout` of `SpawnOptions` and `ProcessBuilder`)"
                )?;
                if !doing.is_empty() {
                    write!(f, ": {doing}")?;
                }
                hint(f, *method)
            }
            SpawnError::NeverReported { who, program, method, exit } => {
                match method {
                    StartMethod::Spawn => write!(f, "{who} ran {}", program.display())?,
                    StartMethod::ForkServer => write!(f, "{who} was made by the fork server")?,
                    StartMethod::Fork => write!(f, "{who} was made by fork")?,
                }
                write!(f, " and {exit} before it reported as a worker")?;
                if *exit == ExitStatus::Code(USELESS) {
                    return f.write_str(
                        ". This code says that it could not become a worker; it has written the reason to its standard \
                         error",
                    );
                }
                hint(f, *method)
            }
            SpawnError::Protocol { who, message } => {
                write!(f, "{who} sent malformed data to its parent and was ended: {message}")
            }
            SpawnError::NotSignalled { who, signal, source } => write!(
                f,
                "{who} could not be sent {signal}: {source}. It continues; if it is another user's by now, that user or root \
                 can send it, and it ends by itself when what it waits for is closed"
            ),
            SpawnError::NoSuchRank { rank, nprocs } => {
                write!(f, "there is no rank {rank} among {nprocs} processes")
            }
            SpawnError::OtherProcess { owner } => {
                write!(
                    f,
                    "these processes are children of process {owner}, from which this one was forked: only that process \
                     can join or signal them"
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

impl fmt::Debug for ProcessRaised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        let ProcessRaised { who, kind, message, chain, debug, location, backtrace } = self;
        f.debug_struct("ProcessRaised")
            .field("who", who)
            .field("kind", kind)
            .field("message", message)
            .field("chain", chain)
            .field("debug", debug)
            .field("location", location)
            .field("backtrace", backtrace)
            .finish()
    }
}

impl fmt::Debug for ProcessExited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        let ProcessExited { who, exit, begun, detail, stderr } = self;
        f.debug_struct("ProcessExited")
            .field("who", who)
            .field("exit", exit)
            .field("begun", begun)
            .field("detail", detail)
            .field("stderr", stderr)
            .finish()
    }
}

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

/// The exit code of a process that could not become a worker: no parent listens, so it says why on stderr.
pub(crate) const USELESS: i32 = 120;

/// The error of a start, with the limit that was hit and the cause as far as the system tells.
pub(crate) fn failed(what: &'static str, program: Option<&Path>, source: io::Error) -> SpawnError {
    let error = source.raw_os_error().map(Errno::from_raw_os_error);
    let (limit, cause) = (os_limit::limit(what, error), os_limit::of(what, program, error));
    let program = program.map(Path::to_owned);
    SpawnError::Launch(Box::new(LaunchError { what, program, limit, cause, source: Arc::new(source) }))
}
