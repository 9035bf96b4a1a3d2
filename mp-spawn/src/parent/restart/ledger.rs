//! Record of the starts of a process, and the decision about the next one.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::SpawnError;
use crate::error::gave_up::{FailedAttempt, GaveUp, GaveUpReason};
use crate::error::process_name::ProcessName;
use crate::parent::restart::Restart;

/// Number of failures before the last one that are stored.
const KEPT: usize = 8;

/// Action after the end of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// No restart, and none is needed.
    Over,
    /// Restart after this delay.
    Again(Duration),
    /// The process has failed, and has no restarts left.
    GiveUp,
}

/// Record of the starts of a process and their results.
#[derive(Debug)]
pub(crate) struct Ledger {
    restart: Restart,
    /// Run time after which a process counts as healthy.
    healthy_after: Duration,
    /// Number of the last start, counted from 1.
    pub(crate) attempt: u32,
    /// Restarts since the last healthy process.
    in_a_row: u32,
    /// Run time of the last process.
    lasted: Duration,
    earlier: VecDeque<FailedAttempt>,
}

impl Ledger {
    pub(crate) fn new(restart: Restart, healthy_after: Duration) -> Ledger {
        let earlier = VecDeque::new();
        Ledger { restart, healthy_after, attempt: 1, in_a_row: 0, lasted: Duration::ZERO, earlier }
    }

    /// Returns `true` if the process is restarted however it ends.
    pub(crate) fn is_endless(&self) -> bool {
        matches!(self.restart, Restart::Always { .. })
    }

    /// Decides on a restart after a process has ended, or could not be started. `lasted` is its run time as a
    /// worker.
    pub(crate) fn ended(&mut self, failed: bool, lasted: Duration) -> Verdict {
        self.lasted = lasted;
        if lasted >= self.healthy_after {
            self.in_a_row = 0;
        }
        let backoff = match self.restart {
            Restart::Never => return Verdict::Over,
            Restart::OnFailure { .. } if !failed => return Verdict::Over,
            Restart::OnFailure { max, .. } if self.in_a_row >= max => {
                return Verdict::GiveUp;
            }
            Restart::OnFailure { backoff, .. } | Restart::Always { backoff } => backoff,
        };
        self.in_a_row = self.in_a_row.saturating_add(1);
        Verdict::Again(backoff.before(self.in_a_row.saturating_add(1)))
    }

    /// Records a restart, and the failure of the last process, if it failed.
    pub(crate) fn begin(&mut self, failure: Option<SpawnError>) {
        if let Some(error) = failure {
            if self.earlier.len() == KEPT {
                self.earlier.pop_front();
            }
            self.earlier.push_back(FailedAttempt { attempt: self.attempt, lasted: self.lasted, error });
        }
        self.attempt = self.attempt.saturating_add(1);
    }

    /// Returns the failure of the previous process, if it failed.
    pub(crate) fn failure_before(&self) -> Option<&SpawnError> {
        self.earlier.back().filter(|failed| failed.attempt + 1 == self.attempt).map(|failed| &failed.error)
    }

    /// Creates the error with all recorded failures.
    pub(crate) fn gave_up(&self, who: ProcessName, reason: GaveUpReason, last: SpawnError) -> SpawnError {
        let earlier = self.earlier.iter().cloned().collect();
        SpawnError::GaveUp(Box::new(GaveUp { who, reason, attempts: self.attempt, earlier, last }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parent::restart::backoff::Backoff;

    const SHORT: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(60);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn failure() -> Option<SpawnError> {
        Some(SpawnError::NotInitialised)
    }

    fn ledger(restart: Restart) -> Ledger {
        Ledger::new(restart, LONG)
    }

    #[test]
    fn after_failures_in_a_row_it_is_given_up_and_health_ends_the_row() {
        let backoff = Backoff::new(ms(10)).jitter(0.0).max(ms(30));
        let mut all = ledger(Restart::OnFailure { max: 3, backoff });
        let mut verdicts = Vec::new();
        for lasted in [SHORT, SHORT, SHORT, LONG, SHORT, SHORT, SHORT] {
            verdicts.push(all.ended(true, lasted));
            all.begin(failure());
        }
        let again = |time| Verdict::Again(ms(time));
        let row = [again(10), again(20), again(30), again(10), again(20), again(30), Verdict::GiveUp];
        assert_eq!(verdicts, row);
        assert_eq!(all.ended(false, SHORT), Verdict::Over);
    }

    #[test]
    fn never_is_never_and_always_has_no_end() {
        assert_eq!(ledger(Restart::Never).ended(true, SHORT), Verdict::Over);
        assert_eq!(ledger(Restart::Never).ended(false, SHORT), Verdict::Over);
        assert_eq!(ledger(Restart::on_failure(0)).ended(true, SHORT), Verdict::GiveUp);
        let mut always = ledger(Restart::Always { backoff: ms(5).into() });
        for failed in [true, false, true] {
            for _ in 0..100 {
                assert_eq!(always.ended(failed, SHORT), Verdict::Again(ms(5)));
            }
        }
    }

    #[test]
    fn the_history_is_short_however_long_it_takes() {
        let mut all = ledger(Restart::always());
        for _ in 0..100 {
            all.ended(true, SHORT);
            all.begin(failure());
        }
        all.begin(None);
        assert!(all.failure_before().is_none());
        let who = ProcessName::new(None, "one".to_string(), 7);
        let SpawnError::GaveUp(error) = all.gave_up(who, GaveUpReason::Stopped, SpawnError::NotInitialised)
        else {
            panic!("another error")
        };
        let attempts: Vec<u32> = error.earlier.iter().map(|failed| failed.attempt).collect();
        assert_eq!((error.attempts, attempts), (102, (93..=100).collect()));
    }
}
