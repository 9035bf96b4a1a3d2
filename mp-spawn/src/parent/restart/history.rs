//! Record of the starts of a process, and the decision about the next one.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::{FailedAttempt, GaveUp, GaveUpReason, ProcessName, SpawnError};
use crate::parent::restart::Restart;

/// Maximum number of stored failures, without the last failure.
const MAX_FAILURES: usize = 8;

/// Action after the end of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RestartDecision {
    /// No restart, because the policy requires none.
    Stop,
    /// Restart after this delay.
    Restart(Duration),
    /// The process has failed, and has no restarts left.
    GiveUp,
}

/// Record of the starts of a process and their results.
#[derive(Debug)]
pub(crate) struct RestartHistory {
    restart: Restart,
    /// Run time after which a process counts as healthy.
    healthy_after: Duration,
    /// Number of the last start, counted from 1.
    pub(crate) attempt: u32,
    /// Number of restarts since the last healthy process.
    consecutive: u32,
    /// Run time of the last process.
    lasted: Duration,
    earlier: VecDeque<FailedAttempt>,
}

impl RestartHistory {
    pub(crate) fn new(restart: Restart, healthy_after: Duration) -> RestartHistory {
        let earlier = VecDeque::new();
        RestartHistory { restart, healthy_after, attempt: 1, consecutive: 0, lasted: Duration::ZERO, earlier }
    }

    /// Returns `true` if the process is restarted however it ends.
    pub(crate) fn is_endless(&self) -> bool {
        matches!(self.restart, Restart::Always { .. })
    }

    /// Decides on a restart after a process has ended, or could not be started. `lasted` is its run time as a
    /// worker.
    pub(crate) fn decide(&mut self, failed: bool, lasted: Duration) -> RestartDecision {
        self.lasted = lasted;
        if lasted >= self.healthy_after {
            self.consecutive = 0;
        }
        let backoff = match self.restart {
            Restart::Never => return RestartDecision::Stop,
            Restart::OnFailure { .. } if !failed => return RestartDecision::Stop,
            Restart::OnFailure { max, .. } if self.consecutive >= max => {
                return RestartDecision::GiveUp;
            }
            Restart::OnFailure { backoff, .. } | Restart::Always { backoff } => backoff,
        };
        self.consecutive = self.consecutive.saturating_add(1);
        RestartDecision::Restart(backoff.before(self.consecutive.saturating_add(1)))
    }

    /// Records a restart, and the failure of the last process, if it failed.
    pub(crate) fn record_restart(&mut self, failure: Option<SpawnError>) {
        if let Some(error) = failure {
            if self.earlier.len() == MAX_FAILURES {
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
    use crate::parent::restart::Backoff;

    const SHORT: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(60);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn failure() -> Option<SpawnError> {
        Some(SpawnError::NotInitialised)
    }

    fn history(restart: Restart) -> RestartHistory {
        RestartHistory::new(restart, LONG)
    }

    #[test]
    fn restart_gives_up_after_consecutive_failures_only() {
        let backoff = Backoff::new(ms(10)).jitter(0.0).max(ms(30));
        let mut all = history(Restart::OnFailure { max: 3, backoff });
        let mut verdicts = Vec::new();
        for lasted in [SHORT, SHORT, SHORT, LONG, SHORT, SHORT, SHORT] {
            verdicts.push(all.decide(true, lasted));
            all.record_restart(failure());
        }
        let again = |time| RestartDecision::Restart(ms(time));
        let row = [again(10), again(20), again(30), again(10), again(20), again(30), RestartDecision::GiveUp];
        assert_eq!(verdicts, row);
        assert_eq!(all.decide(false, SHORT), RestartDecision::Stop);
    }

    #[test]
    fn restart_never_and_always_ignore_the_outcome() {
        assert_eq!(history(Restart::Never).decide(true, SHORT), RestartDecision::Stop);
        assert_eq!(history(Restart::Never).decide(false, SHORT), RestartDecision::Stop);
        assert_eq!(history(Restart::on_failure(0)).decide(true, SHORT), RestartDecision::GiveUp);
        let mut always = history(Restart::Always { backoff: ms(5).into() });
        for failed in [true, false, true] {
            for _ in 0..100 {
                assert_eq!(always.decide(failed, SHORT), RestartDecision::Restart(ms(5)));
            }
        }
    }

    #[test]
    fn restart_history_keeps_only_the_last_failures() {
        let mut all = history(Restart::always());
        for _ in 0..100 {
            all.decide(true, SHORT);
            all.record_restart(failure());
        }
        all.record_restart(None);
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
