//! Error of a supervised process that is not restarted.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{ProcessName, SpawnError};

/// Failure of a [supervised](crate::Restart) process that is not restarted, with the number of starts, the
/// reason, and its failures.
///
/// ```
/// use std::time::Duration;
/// use mp_spawn::{GaveUpReason, Process, Restart, SpawnError};
///
/// let failing = |(): ()| Err::<(), _>("no such file");
/// let restart = Restart::OnFailure { max: 2, backoff: Duration::from_millis(1).into() };
/// let error = Process::builder().name("loader").restart(restart).spawn(failing, ())?.join().unwrap_err();
/// let SpawnError::GaveUp(gave_up) = &error else { panic!("{error:?}") };
/// assert_eq!((gave_up.reason, gave_up.attempts, gave_up.earlier.len()), (GaveUpReason::Limit, 3, 2));
/// assert!(matches!(&gave_up.last, SpawnError::ProcessRaised(raised) if raised.message == "no such file"));
/// assert!(error.to_string().starts_with("loader was started 3 times and is given up: loader (pid "));
/// # Ok::<(), SpawnError>(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GaveUp {
    /// Process of the last start.
    pub who: ProcessName,
    /// Reason why the process is not restarted.
    pub reason: GaveUpReason,
    /// Number of starts, failed starts included.
    pub attempts: u32,
    /// Failures before the last failure, at most eight, the oldest first.
    pub earlier: Vec<FailedAttempt>,
    /// Last failure, with all its details.
    pub last: SpawnError,
}

/// Reason why a supervised process is not restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum GaveUpReason {
    /// The process failed after the permitted number of consecutive restarts.
    Limit,
    /// While the process waited for its next start, this program killed or terminated the process, or began
    /// to exit.
    Stopped,
    /// While the process waited for its next start, this program was notified of a SIGINT or SIGTERM
    /// ([`Interrupt::Graceful`](crate::Interrupt::Graceful)).
    Interrupted,
}

/// Failure of one start of a supervised process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FailedAttempt {
    /// Number of the start, counted from 1.
    pub attempt: u32,
    /// Run time of the process since its start. Zero if it never became a worker.
    pub lasted: Duration,
    /// Error of this start.
    pub error: SpawnError,
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GaveUp { who, reason, attempts, earlier, last } = self;
        let times = if *attempts == 1 { "once".to_string() } else { format!("{attempts} times") };
        let why = match reason {
            GaveUpReason::Limit => "is given up",
            GaveUpReason::Stopped => "was ended while it waited for the next start",
            GaveUpReason::Interrupted => "is not started again after Ctrl-C or SIGTERM",
        };
        write!(f, "{} was started {times} and {why}: {last}", who.name)?;
        for FailedAttempt { attempt, lasted, error } in earlier.iter().rev() {
            let error = error.to_string();
            let line = error.lines().next().unwrap_or_default();
            write!(f, "\n  before that, attempt {attempt}, after {lasted:.1?}: {line}")?;
        }
        Ok(())
    }
}

mp_core::readable_debug!(GaveUp);

impl std::error::Error for GaveUp {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gave_up_error_shortens_earlier_failures_to_a_line() {
        let error =
            |message: &str| SpawnError::Arguments { who: None, message: message.to_string(), unread: None };
        let earlier = |attempt, message| FailedAttempt {
            attempt,
            lasted: Duration::from_millis(u64::from(attempt) * 1500),
            error: error(message),
        };
        let gave_up = GaveUp {
            who: ProcessName::new(None, "loader".to_string(), 7),
            reason: GaveUpReason::Limit,
            attempts: 3,
            earlier: vec![earlier(1, "one\nand more"), earlier(2, "two")],
            last: error("three\nand more"),
        };
        let expected = "loader was started 3 times and is given up: the arguments could not be encoded: \
                        three\nand more\n  before that, attempt 2, after 3.0s: the arguments could not be \
                        encoded: two\n  before that, attempt 1, after 1.5s: the arguments could not be \
                        encoded: one";
        assert_eq!(gave_up.to_string(), expected);
        let once = GaveUp { attempts: 1, earlier: vec![], reason: GaveUpReason::Stopped, ..gave_up };
        assert!(once.to_string().starts_with("loader was started once and was ended while it waited"));
    }
}
