//! Attempts at a task and their failures.

use std::fmt;

use serde::{Deserialize, Serialize};

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
}

/// Number of attempts at a task and the kinds of their failures, for a task that was
/// [retried](crate::Call::retry_if). See [`TaskError::attempts`](crate::TaskError::attempts).
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
    /// Kinds of the last failures, at most [`MOST_FAILURES`].
    failures: Vec<FailureKind>,
    /// Number of failures of each kind.
    counts: [u32; FailureKind::NAMES.len()],
    /// Index of the task among the items of its call.
    index: Option<usize>,
}

/// Number of failures that are stored one by one. A task may be retried for days.
const MOST_FAILURES: usize = 1000;

impl Attempts {
    /// Record of a task that was not begun.
    pub(crate) const NONE: &'static Attempts = &Attempts(None);

    /// Returns the index of the task among the items of its call.
    pub(super) fn index(&self) -> Option<usize> {
        self.record().index
    }

    /// Sets the index of the task among the items of its call.
    pub(super) fn set_index(&mut self, index: usize) {
        self.0.get_or_insert_default().index = Some(index);
    }

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

    /// Returns the kind of each failure, the last failure included. Only the last 1000 failures are stored.
    #[must_use]
    pub fn failures(&self) -> &[FailureKind] {
        &self.record().failures
    }

    /// Records a failure.
    pub(super) fn add(&mut self, failure: FailureKind) {
        let record = self.0.get_or_insert_default();
        if record.failures.len() == MOST_FAILURES {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_attempts_are_summarized_by_kind() {
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
        assert_eq!(
            (many.count(), many.failures().len(), many.failures()[MOST_FAILURES - 1]),
            (5001, MOST_FAILURES, Error)
        );
    }
}
