//! End of a process: the exit code or the signal, and further details if they are known.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Exit code or signal of a process, as the kernel reports it.
///
/// ```
/// use mp_spawn::{ExitStatus, Signal};
///
/// assert_eq!(ExitStatus::Code(3).to_string(), "exited with code 3");
/// let killed = ExitStatus::Signal { signal: Signal::from_number(11), core_dumped: true };
/// assert_eq!(killed.to_string(), "was killed by SIGSEGV (signal 11, core dumped)");
/// ```
///
/// See `waitid(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ExitStatus {
    /// The process called `exit` with this code.
    Code(i32),
    /// A signal ended the process.
    Signal {
        /// Signal that ended the process.
        signal: Signal,
        /// `true` if the kernel wrote a core file.
        core_dumped: bool,
    },
    /// Unknown status: the program ignores SIGCHLD, or other code in the program reaped the process first.
    Unknown,
}

impl ExitStatus {
    /// Returns `true` if the process exited with code 0.
    ///
    /// ```
    /// assert!(mp_spawn::ExitStatus::Code(0).success());
    /// ```
    #[must_use]
    pub fn success(self) -> bool {
        self == ExitStatus::Code(0)
    }

    /// Returns `true` if SIGKILL ended the process.
    pub(crate) fn is_kill(self) -> bool {
        matches!(self, ExitStatus::Signal { signal: Signal::KILL, .. })
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitStatus::Code(code) => write!(f, "exited with code {code}"),
            ExitStatus::Signal { signal, core_dumped } => {
                let core = if *core_dumped { ", core dumped" } else { "" };
                write!(f, "was killed by {} (signal {}{core})", signal.name(), signal.number())
            }
            ExitStatus::Unknown => f.write_str(
                "ended with unknown exit status: this program ignores SIGCHLD, or other code in it \
                     reaped the process",
            ),
        }
    }
}

/// Signal, with its number and name.
///
/// ```
/// use mp_spawn::Signal;
///
/// assert_eq!(Signal::from_number(9), Signal::KILL);
/// assert_eq!(Signal::KILL.name(), "SIGKILL");
/// ```
///
/// See `signal(7)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Signal(i32);

impl Signal {
    /// SIGTERM: requests that a process end.
    pub const TERM: Signal = Signal(libc::SIGTERM);
    /// SIGKILL: ends a process. It can't be caught or ignored.
    pub const KILL: Signal = Signal(libc::SIGKILL);

    /// Creates a signal with this number, which is not checked.
    #[must_use]
    pub const fn from_number(number: i32) -> Signal {
        Signal(number)
    }

    /// Returns the signal's number on this machine.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }

    /// Returns the signal's name, such as `SIGSEGV`. Names of real-time signals count from `SIGRTMIN`.
    #[must_use]
    pub fn name(self) -> Cow<'static, str> {
        let known = NAMES.iter().find(|(number, _)| *number == self.0);
        match known {
            Some((_, name)) => Cow::Borrowed(name),
            None if (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&self.0) => {
                Cow::Owned(format!("SIGRTMIN+{}", self.0 - libc::SIGRTMIN()))
            }
            None => Cow::Owned(format!("signal {}", self.0)),
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// Returns the numbers and names of these signals.
macro_rules! signals {
    ($($name:ident),+) => { &[$((libc::$name, stringify!($name))),+] };
}

const NAMES: &[(i32, &str)] = signals![
    SIGHUP, SIGINT, SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGUSR1, SIGSEGV, SIGUSR2,
    SIGPIPE, SIGALRM, SIGTERM, SIGSTKFLT, SIGCHLD, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG,
    SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF, SIGWINCH, SIGIO, SIGPWR, SIGSYS
];

/// Cause of the end of a process, in addition to the exit code or the signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ExitDetail {
    /// A thread used up its stack: the faulting address is in the guard area below the worker's stack, or at
    /// the stack pointer of the faulting thread.
    StackOverflow {
        /// Address that could not be written.
        address: u64,
    },
    /// A SIGSEGV ended the process, and no handler could run to report the cause. Most likely a thread other
    /// than the worker's own used up its stack: in a process that became a worker before `main`, only the
    /// worker's thread has an alternate stack for handlers. A process that had set its own handler for
    /// SIGSEGV, had closed all its files, or had executed another program ends in the same way.
    LikelyStackOverflow,
    /// The process accessed memory without permission, or executed an invalid or privileged instruction.
    Fault {
        /// Address of the access or of the instruction.
        address: u64,
    },
    /// A thread aborted the process in a panic that could not be caught: a panic in a destructor during
    /// another panic, a panic that left an `extern "C"` function, or any panic in a program built with `panic
    /// = "abort"`. A destructor that calls `abort` during a panic has the same effect. The list has the last
    /// panics of the process, the latest first, each with its location. It may include earlier panics that
    /// had been caught.
    Panics(Vec<String>),
    /// A SIGABRT ended the process. The process had set its own handler, so the worker's handler did not run
    /// to report whether a panic was the cause. The list has its last panics, the latest first, each with its
    /// location. All of them may have been caught.
    EarlierPanics(Vec<String>),
    /// The kernel's out-of-memory (OOM) killer ended the process, or another process of the same control
    /// group: see `memory.events` in the kernel's documentation of control groups.
    OutOfMemory,
    /// SIGXCPU ended the process, because its processor time reached the limit. Contains the limit in
    /// seconds, or `None` if the limit is unknown. See `RLIMIT_CPU` in `getrlimit(2)`, and
    /// [`Limits`](crate::Limits).
    CpuTime(Option<u64>),
    /// The process called `exit(0)` before its function returned the expected value.
    NoValue,
    /// A signal of unknown origin ended the process before the process had reported as a worker. The worker's
    /// function was not called.
    NotBegun,
    /// This program sent the signal, through [`ProcessContext::kill`](crate::ProcessContext::kill) or
    /// [`ProcessContext::terminate`](crate::ProcessContext::terminate). Such an end is expected, so it is not
    /// printed at the exit.
    Requested,
}

impl fmt::Display for ExitDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExitDetail::StackOverflow { address } => {
                write!(f, "stack overflow (the stack has no more room at address {address:#x})")
            }
            ExitDetail::LikelyStackOverflow => {
                f.write_str("most likely a stack overflow in a thread other than the worker's own")
            }
            ExitDetail::Fault { address } => write!(f, "fault at address {address:#x}"),
            ExitDetail::Panics(panics) => {
                f.write_str("after a panic that could not be caught")?;
                panics.iter().try_for_each(|panic| write!(f, "\n  {panic}"))
            }
            ExitDetail::EarlierPanics(panics) => {
                f.write_str("its last panics, which may have been caught, were")?;
                panics.iter().try_for_each(|panic| write!(f, "\n  {panic}"))
            }
            ExitDetail::OutOfMemory => {
                f.write_str("out of memory, the kernel's OOM killer ended it (see `dmesg`)")
            }
            ExitDetail::CpuTime(limit) => {
                f.write_str("its processor time has reached the limit (RLIMIT_CPU")?;
                limit.iter().try_for_each(|seconds| write!(f, " = {seconds} s"))?;
                f.write_str(")")
            }
            ExitDetail::NoValue => f.write_str("before its function returned a value"),
            ExitDetail::NotBegun => {
                f.write_str("before it had begun as a worker, so its function was not called")
            }
            ExitDetail::Requested => f.write_str("this program sent the signal"),
        }
    }
}

/// Description of the end of a process, with all known details. Errors of processes, and of tasks that were
/// lost with a process, show this description after the name of the process.
///
/// ```
/// use mp_spawn::{ExitReport, ExitStatus, Signal};
///
/// let exit = ExitStatus::Signal { signal: Signal::KILL, core_dumped: false };
/// let end = ExitReport { exit, detail: None, stderr: Some("loading\nmore") };
/// let text = end.to_string();
/// assert!(text.starts_with("was killed by SIGKILL (signal 9), which mp did not send: "));
/// assert!(text.ends_with("the last lines of its stderr:\n    loading\n    more"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ExitReport<'a> {
    /// Exit code or signal.
    pub exit: ExitStatus,
    /// Further cause, if known.
    pub detail: Option<&'a ExitDetail>,
    /// Last lines of the standard error of the process.
    pub stderr: Option<&'a str>,
}

impl fmt::Display for ExitReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExitReport { exit, detail, stderr } = self;
        write!(f, "{exit}")?;
        match detail {
            Some(detail) => write!(f, ": {detail}")?,
            None if exit.is_kill() => {
                f.write_str(
                    ", which mp did not send: a user, another process or the kernel's out-of-memory (OOM) \
                     killer did (see `dmesg`)",
                )?;
            }
            None => {}
        }
        if let Some(stderr) = stderr {
            f.write_str("\n  the last lines of its stderr:")?;
            stderr.lines().try_for_each(|line| write!(f, "\n    {line}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_without_a_name_show_their_number() {
        assert_eq!(Signal::from_number(libc::SIGRTMIN() + 2).name(), "SIGRTMIN+2");
        assert_eq!(Signal::from_number(-4).name(), "signal -4");
    }
}
