//! Attempts at a task and their failures.

use std::fmt;
use std::ops::Deref;

use mp_spawn::{ProcessName, ProcessRaised, RaisedKind};
use serde::{Deserialize, Serialize};

use crate::error::TaskError;

/// Kind of failure of one attempt at a task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FailureKind {
    /// The function returned an error.
    Error,
    /// The function panicked.
    Panic,
    /// The worker of the task ended.
    Death,
    /// The task took longer than its [time-out](crate::Call::timeout).
    TimeOut,
    /// The arguments could not be sent, or not be read.
    Arguments,
    /// The result could not be sent.
    Value,
}

impl FailureKind {
    /// Singular and plural names, in the order of the variants.
    const NAMES: [(&str, &str); 6] = [
        ("an error", "errors"),
        ("a panic", "panics"),
        ("a death", "deaths"),
        ("a time-out", "time-outs"),
        ("unreadable arguments", "times unreadable arguments"),
        ("an unreadable result", "unreadable results"),
    ];

    /// Returns the kind of a failed attempt, or `None` if the error is not the failure of an attempt.
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
            | TaskError::Closed { .. }
            | TaskError::Broken(_) => None,
        }
    }
}

/// Number of attempts at a task and the kinds of their failures, for a task that was
/// [retried](crate::Call::retry_if). See [`TaskError::attempts`].
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
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Attempts(Option<Box<Record>>);

/// Contents of [`Attempts`]. Boxed, so that task errors are small.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
struct Record {
    /// The last failures.
    failures: Vec<FailureKind>,
    /// Number of failures of each kind.
    counts: [u32; FailureKind::NAMES.len()],
    /// Index of the task among the items of its call.
    index: Option<usize>,
}

/// Number of failures that are stored one by one. A task may be retried for days.
const KEPT: usize = 1000;

impl Attempts {
    /// Record of a task that was not begun.
    pub(crate) const NONE: &'static Attempts = &Attempts(None);

    fn record(&self) -> &Record {
        const EMPTY: &Record =
            &Record { failures: Vec::new(), counts: [0; FailureKind::NAMES.len()], index: None };
        self.0.as_deref().unwrap_or(EMPTY)
    }

    /// Returns the number of attempts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.record().counts.iter().map(|count| *count as usize).sum()
    }

    /// Returns the kind of each failure, including the last one. Limited to the last thousand.
    #[must_use]
    pub fn failures(&self) -> &[FailureKind] {
        &self.record().failures
    }

    fn add(&mut self, failure: FailureKind) {
        let record = self.0.get_or_insert_default();
        if record.failures.len() == KEPT {
            record.failures.remove(0);
        }
        record.failures.push(failure);
        let count = &mut record.counts[failure as usize];
        *count = count.saturating_add(1);
    }
}

impl fmt::Display for Attempts {
    /// Writes ` (attempt 4, after a time-out and 2 errors)`, or nothing after a single attempt.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(last) = self.record().failures.last().filter(|_| self.count() > 1) else { return Ok(()) };
        write!(f, " (attempt {}, after ", self.count())?;
        let mut before = self.record().counts;
        before[*last as usize] -= 1;
        let counts = || before.into_iter().zip(FailureKind::NAMES).filter(|(count, _)| *count > 0);
        let mut left = counts().count();
        for (count, (one, more)) in counts() {
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

/// Error returned when the function of a task returned an error or panicked. Dereferences to
/// [`ProcessRaised`], and records the attempts.
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TaskRaised {
    /// The error or panic.
    pub raised: ProcessRaised,
    /// Attempts at the task.
    pub attempts: Attempts,
    /// Last [note](crate::note()) of the task, if any: its progress.
    pub note: Option<u64>,
}

/// Returns `worker 3 (pid 77)`, with the name of its process if its pool has one.
pub(crate) fn worker_named(worker: usize, who: &ProcessName) -> String {
    let ProcessName { name, pid, .. } = who;
    if *name == format!("pool-worker-{worker}") {
        return format!("worker {worker} (pid {pid})");
    }
    format!("worker {worker} ({name}, pid {pid})")
}

impl TaskRaised {
    pub(crate) fn new(raised: ProcessRaised, note: u64) -> Self {
        let note = Some(note).filter(|note| *note != 0);
        TaskRaised { raised, attempts: Attempts::default(), note }
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
        let ProcessRaised { who, .. } = &self.raised;
        let text = if f.alternate() { format!("{:#}", self.raised) } else { self.raised.to_string() };
        match (who.rank, text.strip_prefix(&who.to_string())) {
            (Some(worker), Some(rest)) => write!(f, "{}{rest}", worker_named(worker, who))?,
            _ => f.write_str(&text)?,
        }
        fmt::Display::fmt(&self.attempts, f)
    }
}

mp_core::readable_debug!(TaskRaised);

impl std::error::Error for TaskRaised {}

impl TaskError {
    /// Returns the attempts at the task. More than one are recorded only if the task was
    /// [retried](crate::Call::retry_if). None are recorded if the task did not fail itself: it was cancelled,
    /// or ended with its pool.
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
            | TaskError::Closed { .. }
            | TaskError::Broken(_) => Attempts::NONE,
        }
    }

    /// Records this failure after the failures `before`, and returns all of them.
    pub(crate) fn after(&mut self, before: Option<Attempts>) -> Attempts {
        let mut all = before.unwrap_or_default();
        FailureKind::of(self).into_iter().for_each(|failure| all.add(failure));
        if let Some(attempts) = self.attempts_mut() {
            attempts.clone_from(&all);
        }
        all
    }

    fn attempts_mut(&mut self) -> Option<&mut Attempts> {
        match self {
            TaskError::Raised(raised) => Some(&mut raised.attempts),
            TaskError::WorkerLost(lost) => Some(&mut lost.attempts),
            TaskError::TimedOut { attempts, .. }
            | TaskError::Arguments { attempts, .. }
            | TaskError::Value { attempts, .. } => Some(attempts),
            TaskError::Cancelled
            | TaskError::Interrupted
            | TaskError::Terminated
            | TaskError::Closed { .. }
            | TaskError::Broken(_) => None,
        }
    }

    /// Returns the index of the failed item, for calls of many items such as `map` and `imap`. The error's
    /// text begins with it.
    ///
    /// ```
    /// let pool = mp_pool::Pool::new(2)?;
    /// let error = pool.map(|x: u32| 7_u32.checked_rem(x).ok_or("zero"), [2, 0, 1]).unwrap_err();
    /// assert_eq!(error.index(), Some(1));
    /// assert!(error.to_string().starts_with("item 1: worker "), "{error}");
    /// assert_eq!(pool.apply(|x: u32| 7_u32.checked_rem(x).ok_or("zero"), 0).unwrap_err().index(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// `None` for a call of one item, for a [`Stream`](crate::Stream), whose outcomes have tickets, and for a
    /// task that did not begin because its call was cancelled or its pool ended.
    #[must_use]
    pub fn index(&self) -> Option<usize> {
        self.attempts().record().index
    }

    /// Returns the error with the index of its item.
    pub(crate) fn of_item(mut self, index: usize) -> Self {
        if let Some(attempts) = self.attempts_mut() {
            attempts.0.get_or_insert_default().index = Some(index);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_before_is_told_by_kind() {
        use FailureKind::{Death, Error, TimeOut};
        let of = |failures: &[FailureKind]| {
            let mut all = Attempts::default();
            failures.iter().for_each(|failure| all.add(*failure));
            all
        };
        let text = |failures: &[FailureKind]| of(failures).to_string();
        assert_eq!([text(&[]), text(&[Error])], ["", ""]);
        assert_eq!(text(&[TimeOut, Error]), " (attempt 2, after a time-out)");
        assert_eq!(text(&[Error, Death, Error, Death]), " (attempt 4, after 2 errors and a death)");
        assert_eq!(
            text(&[Death, Error, TimeOut, Error]),
            " (attempt 4, after an error, a death and a time-out)"
        );
        // All failures are counted, but only the last ones are stored.
        let many = of(&[&[Death; 5000][..], &[Error]].concat());
        assert_eq!(many.to_string(), " (attempt 5001, after 5000 deaths)");
        assert_eq!((many.count(), many.failures().len(), many.failures()[KEPT - 1]), (5001, KEPT, Error));
    }
}
