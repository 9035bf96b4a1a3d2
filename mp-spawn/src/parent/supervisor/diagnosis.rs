//! Conversion of the recorded events of a process into its error. Makes no system calls.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{ExitDetail, ExitStatus, ProcessExited, ProcessName, Signal, SpawnError, launch_error};
use crate::protocol::message::{Crash, CrashCause, PanicNote};
use crate::protocol::report::Report;
use crate::start_method::StartMethod;

/// Common properties of the processes of one start.
#[derive(Clone, Debug)]
pub(crate) struct StartProperties {
    /// Program that is executed.
    pub(crate) program: PathBuf,
    pub(crate) method: StartMethod,
    /// `true` if the program is a guest.
    pub(crate) guest: bool,
    pub(crate) function: String,
    /// `true` if the function returns a value to be sent.
    pub(crate) returns: bool,
    /// Time within which a process must send its hello.
    pub(crate) timeout: Duration,
}

/// Facts about a process that determine the error of its end.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) hello: bool,
    /// `true` if the process reported that its function returned without an error.
    pub(crate) done: bool,
    /// `true` if the return value of the function has arrived.
    pub(crate) returned: bool,
    /// Last panics, in the order in which they happened.
    pub(super) panics: VecDeque<PanicNote>,
    pub(crate) crash: Option<Crash>,
    /// Last lines of the process's standard error.
    pub(crate) last_stderr_lines: Option<String>,
    /// `true` if the kernel's out-of-memory killer may have ended the process.
    pub(crate) out_of_memory: bool,
    /// Limit of the process's processor time in seconds, if there is a limit.
    pub(crate) cpu_seconds: Option<u64>,
}

/// Maximum number of panics of a process that are stored: the last ones.
const MAX_PANICS: usize = 3;

impl Evidence {
    pub(crate) fn record_panic(&mut self, note: PanicNote) {
        if self.panics.len() == MAX_PANICS {
            self.panics.pop_front();
        }
        self.panics.push_back(note);
    }
}

fn one_line(PanicNote { message, location, .. }: &PanicNote) -> String {
    match location {
        Some(location) => format!("{message}, at {location}"),
        None => message.clone(),
    }
}

/// Returns the failure in a report, and its time.
pub(crate) fn report_failure(
    who: &ProcessName,
    function: &str,
    report: Report,
    now: u64,
) -> Option<(u64, SpawnError)> {
    let boxed = || Box::new(who.clone());
    let error = match report {
        Report::Done | Report::Plain(_) | Report::Value(_) | Report::Unread(..) => return None,
        Report::Raised { at, failure } => {
            let raised = Box::new(failure.into_raised(who.clone()));
            return Some((at.min(now), SpawnError::ProcessRaised(raised)));
        }
        Report::Refused(reason) => {
            SpawnError::Refused { who: boxed(), function: function.to_string(), reason }
        }
        Report::Undecodable(message) => SpawnError::Arguments { who: Some(boxed()), message, unread: None },
        Report::Unable(message) => {
            let message = format!("{who}: {message}");
            launch_error("the start of the worker", None, io::Error::other(message))
        }
    };
    Some((now, error))
}

/// Returns the failure that an exit status implies, with its time, or `None` for a success.
pub(crate) fn exit_failure(
    who: &ProcessName,
    StartProperties { program, method, guest, returns, .. }: &StartProperties,
    evidence: Evidence,
    exit: ExitStatus,
    asked: Option<Signal>,
    now: u64,
) -> Option<(u64, SpawnError)> {
    let good = exit.success() || (exit == ExitStatus::Unknown && evidence.done);
    if good && evidence.hello && (evidence.returned || !returns) {
        return None;
    }
    let killer = match exit {
        ExitStatus::Signal { signal, .. } => Some(signal),
        ExitStatus::Code(_) | ExitStatus::Unknown => None,
    };
    // A forked copy can't be another program. A program that handles a signal from this program exits with a
    // code, too.
    if !evidence.hello && killer.is_none() && asked.is_none() && *method != StartMethod::Fork {
        let (who, program, method, guest) = (who.clone().into(), program.clone(), *method, *guest);
        return Some((now, SpawnError::NeverReported { who, program, method, guest, exit }));
    }
    let crash = evidence.crash.filter(|crash| killer.is_some_and(|signal| signal.number() == crash.signal));
    // The handler reports a signal that a process sends. Without a report, no handler could run.
    let unhandled =
        killer == Some(Signal::from_number(libc::SIGSEGV)) && evidence.hello && evidence.crash.is_none();
    let aborted = killer == Some(Signal::from_number(libc::SIGABRT));
    let panics = || evidence.panics.iter().rev().map(one_line).collect();
    let detail = match crash {
        Some(Crash { cause: CrashCause::StackOverflow, address, .. }) => {
            Some(ExitDetail::StackOverflow { address })
        }
        Some(Crash { cause: CrashCause::Fault, address, .. }) => Some(ExitDetail::Fault { address }),
        Some(Crash { cause: CrashCause::Panic, .. }) if !evidence.panics.is_empty() => {
            Some(ExitDetail::Panics(panics()))
        }
        None if aborted && !evidence.panics.is_empty() => Some(ExitDetail::EarlierPanics(panics())),
        _ if killer.is_some() && killer == asked => Some(ExitDetail::Requested),
        _ if killer.is_none() && asked.is_some() && !evidence.hello => Some(ExitDetail::Requested),
        _ if killer == Some(Signal::from_number(libc::SIGXCPU)) => {
            Some(ExitDetail::CpuTime(evidence.cpu_seconds))
        }
        _ if evidence.out_of_memory => Some(ExitDetail::OutOfMemory),
        _ if killer.is_some() && !evidence.hello => Some(ExitDetail::NotBegun),
        _ if unhandled => Some(ExitDetail::LikelyStackOverflow),
        _ if good => Some(ExitDetail::NoValue),
        _ => None,
    };
    let at = crash.map_or(now, |crash| crash.at.min(now));
    let (who, begun, stderr) = (who.clone(), evidence.hello, evidence.last_stderr_lines);
    Some((at, SpawnError::ProcessExited(Box::new(ProcessExited { who, exit, begun, detail, stderr }))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::CallFailure;

    fn who() -> ProcessName {
        ProcessName::new(Some(2), "rank-2".to_string(), 7)
    }

    fn properties() -> StartProperties {
        StartProperties {
            program: PathBuf::from("/p"),
            method: StartMethod::Spawn,
            guest: false,
            function: "f".to_string(),
            returns: false,
            timeout: Duration::ZERO,
        }
    }

    const SEGV: ExitStatus =
        ExitStatus::Signal { signal: Signal::from_number(libc::SIGSEGV), core_dumped: false };

    fn text(evidence: Evidence, exit: ExitStatus, asked: Option<Signal>) -> String {
        exit_failure(&who(), &properties(), evidence, exit, asked, 100)
            .map_or_else(|| "fine".to_string(), |(_, error)| error.to_string())
    }

    fn running() -> Evidence {
        Evidence { hello: true, ..Evidence::default() }
    }

    #[test]
    fn child_exit_with_code_zero_after_report_is_success() {
        assert_eq!(text(running(), ExitStatus::Code(0), None), "fine");
        assert_eq!(text(Evidence { done: true, ..running() }, ExitStatus::Unknown, None), "fine");
    }

    #[test]
    fn child_exit_without_a_report_is_a_failure() {
        assert!(text(Evidence::default(), ExitStatus::Code(0), None).contains("before it reported"));
    }

    #[test]
    fn silent_forked_child_is_not_taken_for_other_program() {
        let copy = StartProperties { method: StartMethod::Fork, ..properties() };
        let killed = ExitStatus::Signal { signal: Signal::KILL, core_dumped: false };
        for exit in [killed, ExitStatus::Code(0), ExitStatus::Code(120)] {
            let (_, error) = exit_failure(&who(), &copy, Evidence::default(), exit, None, 100).unwrap();
            assert!(matches!(&error, SpawnError::ProcessExited(e) if e.exit == exit), "{error:?}");
        }
    }

    #[test]
    fn signal_before_a_childs_hello_is_reported_as_early() {
        let killed = ExitStatus::Signal { signal: Signal::KILL, core_dumped: false };
        let ended = |evidence, asked| match exit_failure(&who(), &properties(), evidence, killed, asked, 100)
        {
            Some((_, SpawnError::ProcessExited(exited))) => (exited.begun, exited.detail),
            other => panic!("{other:?}"),
        };
        assert_eq!(ended(Evidence::default(), None), (false, Some(ExitDetail::NotBegun)));
        assert_eq!(ended(Evidence::default(), Some(Signal::KILL)), (false, Some(ExitDetail::Requested)));
        let starved = Evidence { out_of_memory: true, ..Evidence::default() };
        assert_eq!(ended(starved, None), (false, Some(ExitDetail::OutOfMemory)));
        assert_eq!(ended(running(), None), (true, None));
    }

    #[test]
    fn child_signaled_by_the_program_gets_no_init_hint() {
        for exit in [ExitStatus::Code(143), ExitStatus::Code(0), ExitStatus::Unknown] {
            let text_of = text(Evidence::default(), exit, Some(Signal::TERM));
            assert!(
                text_of.contains("this program sent the signal") && !text_of.contains("Only a program"),
                "{text_of}"
            );
        }
    }

    #[test]
    fn error_of_a_silent_child_depends_on_start_method() {
        let text_of = |method| {
            let subject = StartProperties { method, ..properties() };
            exit_failure(&who(), &subject, Evidence::default(), ExitStatus::Code(3), None, 1)
                .unwrap()
                .1
                .to_string()
        };
        let (spawned, served) = (text_of(StartMethod::Spawn), text_of(StartMethod::ForkServer));
        assert!(spawned.contains("ran /p and exited with code 3") && spawned.contains("Only a program"));
        assert!(served.contains("was made by the fork server and exited with code 3"), "{served}");
        assert!(!served.contains("/p") && !served.contains("Only a program"), "{served}");
    }

    #[test]
    fn crash_record_explains_only_an_end_by_its_signal() {
        let crash =
            Some(Crash { at: 50, address: 16, signal: libc::SIGSEGV, cause: CrashCause::StackOverflow });
        let evidence = || Evidence { crash, ..running() };
        assert!(text(evidence(), SEGV, None).contains("stack overflow"));
        assert!(!text(evidence(), ExitStatus::Code(3), None).contains("stack overflow"));
        assert_eq!(
            exit_failure(&who(), &properties(), evidence(), SEGV, None, 100).map(|(at, _)| at),
            Some(50)
        );
    }

    #[test]
    fn unhandled_segfault_is_a_likely_stack_overflow() {
        assert!(text(running(), SEGV, None).contains("most likely a stack overflow"));
        let crash = |cause| Evidence {
            crash: Some(Crash { at: 5, address: 0, signal: libc::SIGSEGV, cause }),
            ..running()
        };
        assert!(!text(crash(CrashCause::Sent), SEGV, None).contains("overflow"));
        assert!(!text(crash(CrashCause::Fault), SEGV, None).contains("overflow"));
        assert!(!text(running(), ExitStatus::Code(139), None).contains("overflow"));
        // Before a process becomes a worker, it has no handlers.
        let copy = StartProperties { method: StartMethod::Fork, ..properties() };
        let (_, error) = exit_failure(&who(), &copy, Evidence::default(), SEGV, None, 100).unwrap();
        assert!(!error.to_string().contains("overflow"), "{error}");
    }

    #[test]
    fn error_says_whether_mp_has_sent_the_sigkill() {
        let killed = ExitStatus::Signal { signal: Signal::KILL, core_dumped: false };
        assert!(text(running(), killed, Some(Signal::KILL)).contains("this program sent the signal"));
        assert!(text(running(), killed, None).contains("which mp did not send"));
    }

    #[test]
    fn child_exit_without_its_return_value_is_a_failure() {
        let subject = StartProperties { returns: true, ..properties() };
        let ended = |evidence| exit_failure(&who(), &subject, evidence, ExitStatus::Code(0), None, 100);
        assert!(ended(Evidence { returned: true, ..running() }).is_none());
        let (_, error) = ended(running()).unwrap();
        assert!(error.to_string().contains("before its function returned"), "{error}");
    }

    #[test]
    fn failure_time_of_child_in_the_future_is_set_to_now() {
        let report = Report::Raised { at: u64::MAX, failure: CallFailure::error(&io::Error::other("why")) };
        assert_eq!(report_failure(&who(), "f", report, 9).map(|(at, _)| at), Some(9));
    }
}
