//! How often a task was begun, and how each attempt failed.

use std::fmt;
use std::ops::Deref;

use mp_spawn::{ProcessRaised, RaisedKind};

use crate::error::TaskError;

/// How an attempt at a task failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FailureKind {
    /// The function returned an error.
    Error,
    /// The function panicked.
    Panic,
    /// Its worker ended.
    Death,
    /// It took longer than its [time-out](crate::Call::timeout).
    TimeOut,
    /// The arguments could not be sent, or not be read.
    Arguments,
    /// The result could not be sent.
    Value,
}

impl FailureKind {
    /// All, and how one is called, and several.
    const ALL: [(FailureKind, &str, &str); 6] = [
        (FailureKind::Error, "an error", "errors"),
        (FailureKind::Panic, "a panic", "panics"),
        (FailureKind::Death, "a death", "deaths"),
        (FailureKind::TimeOut, "a time-out", "time-outs"),
        (FailureKind::Arguments, "unreadable arguments", "times unreadable arguments"),
        (FailureKind::Value, "an unreadable result", "unreadable results"),
    ];

    /// `None` if it is not that of an attempt.
    fn of(error: &TaskError) -> Option<FailureKind> {
        match error {
            TaskError::Raised(raised) if raised.kind == RaisedKind::Panic => Some(FailureKind::Panic),
            TaskError::Raised(_) => Some(FailureKind::Error),
            TaskError::WorkerLost(_) => Some(FailureKind::Death),
            TaskError::TimedOut { .. } => Some(FailureKind::TimeOut),
            TaskError::Arguments { .. } => Some(FailureKind::Arguments),
            TaskError::Value { .. } => Some(FailureKind::Value),
            TaskError::Cancelled
            | TaskError::Interrupted
            | TaskError::Terminated
            | TaskError::Closed
            | TaskError::Broken(_) => None,
        }
    }
}

/// How often a task was begun, and how those attempts failed: what an error of a task that was
/// [tried again](crate::Call::retry_if) says beside the last failure. See [`TaskError::attempts`].
///
/// ```
/// use std::time::Duration;
/// use mp_pool::{FailureKind, Pool};
///
/// let slow = |x: u64| std::thread::sleep(Duration::from_secs(x));
/// let pool = Pool::new(1)?;
/// let call = pool.task(slow).timeout(Duration::from_millis(20)).retry_if(1, |_| true);
/// let error = call.apply(60).unwrap_err();
/// assert_eq!(error.attempts().count(), 2);
/// assert_eq!(error.attempts().failures(), [FailureKind::TimeOut, FailureKind::TimeOut]);
/// // the task took more than 20ms; its worker 0 (pid 77) was killed (attempt 2, after a time-out)
/// assert!(error.to_string().ends_with("(attempt 2, after a time-out)"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Attempts(Vec<FailureKind>);

impl Attempts {
    /// None, of a task that was not begun.
    pub(crate) const NONE: &'static Attempts = &Attempts(Vec::new());

    /// How many attempts were made.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How each of them failed, the last one included.
    #[must_use]
    pub fn failures(&self) -> &[FailureKind] {
        &self.0
    }
}

impl fmt::Display for Attempts {
    /// ` (attempt 4, after a time-out and 2 errors)`; nothing if there was one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((_, before)) = self.0.split_last().filter(|(_, before)| !before.is_empty()) else {
            return Ok(());
        };
        write!(f, " (attempt {}, after ", self.count())?;
        let counts = FailureKind::ALL
            .map(|(kind, one, more)| (before.iter().filter(|failure| **failure == kind).count(), one, more));
        let mut left = counts.iter().filter(|(count, ..)| *count > 0).count();
        for (count, one, more) in counts.into_iter().filter(|(count, ..)| *count > 0) {
            if count == 1 {
                f.write_str(one)?;
            } else {
                write!(f, "{count} {more}")?;
            }
            left -= 1;
            f.write_str(match left {
                0 => ")",
                1 => " and ",
                _ => ", ",
            })?;
        }
        Ok(())
    }
}

/// The function of a task returned an error or panicked: all that is known of that, as its fields are those of [`ProcessRaised`],
/// and how often it was tried.
#[derive(Clone)]
#[non_exhaustive]
pub struct TaskRaised {
    /// The error or panic.
    pub raised: ProcessRaised,
    /// How often the task was begun, and how that went.
    pub attempts: Attempts,
}

impl TaskRaised {
    pub(crate) fn new(raised: ProcessRaised) -> Self {
        TaskRaised { raised, attempts: Attempts::default() }
    }
}

impl Deref for TaskRaised {
    type Target = ProcessRaised;

    fn deref(&self) -> &ProcessRaised {
        &self.raised
    }
}

impl fmt::Display for TaskRaised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.raised, f)?;
        fmt::Display::fmt(&self.attempts, f)
    }
}

mp_core::readable_debug!(TaskRaised);

impl std::error::Error for TaskRaised {}

impl TaskError {
    /// How often the task was begun, and how each attempt failed. More than one only if it was to be [tried
    /// again](crate::Call::retry_if); none if what ended it was no failure of its own: it was cancelled, or ended with its pool.
    #[must_use]
    pub fn attempts(&self) -> &Attempts {
        match self {
            TaskError::Raised(raised) => &raised.attempts,
            TaskError::WorkerLost(lost) => &lost.attempts,
            TaskError::TimedOut { attempts, .. }
            | TaskError::Arguments { attempts, .. }
            | TaskError::Value { attempts, .. } => attempts,
            TaskError::Cancelled
            | TaskError::Interrupted
            | TaskError::Terminated
            | TaskError::Closed
            | TaskError::Broken(_) => Attempts::NONE,
        }
    }

    /// This is how another attempt failed, after `before`: what is known then.
    pub(crate) fn after(&mut self, before: Option<Attempts>) -> Attempts {
        let mut all = before.unwrap_or_default();
        all.0.extend(FailureKind::of(self));
        let attempts = match self {
            TaskError::Raised(raised) => &mut raised.attempts,
            TaskError::WorkerLost(lost) => &mut lost.attempts,
            TaskError::TimedOut { attempts, .. }
            | TaskError::Arguments { attempts, .. }
            | TaskError::Value { attempts, .. } => attempts,
            TaskError::Cancelled
            | TaskError::Interrupted
            | TaskError::Terminated
            | TaskError::Closed
            | TaskError::Broken(_) => {
                return all;
            }
        };
        attempts.clone_from(&all);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_before_is_told_by_kind() {
        use FailureKind::{Death, Error, TimeOut};
        let text = |failures: &[FailureKind]| Attempts(failures.to_vec()).to_string();
        assert_eq!([text(&[]), text(&[Error])], ["", ""]);
        assert_eq!(text(&[TimeOut, Error]), " (attempt 2, after a time-out)");
        assert_eq!(text(&[Error, Death, Error, Death]), " (attempt 4, after 2 errors and a death)");
        assert_eq!(
            text(&[Death, Error, TimeOut, Error]),
            " (attempt 4, after an error, a death and a time-out)"
        );
    }
}
