//! Failed tasks that wait for their retry: see [`retry`](crate::tasks::retry).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::tasks::call_state::{CallState, RetryTask};

/// Task that is to be retried at a certain time.
pub(crate) struct ScheduledRetry {
    pub(crate) job: Arc<CallState>,
    pub(crate) task: RetryTask,
}

/// Scheduled retries, by their time and a unique number.
#[derive(Default)]
pub(crate) struct RetryQueue {
    scheduled: BTreeMap<(Instant, u64), ScheduledRetry>,
    next: u64,
}

impl RetryQueue {
    /// Schedules a retry.
    pub(crate) fn push(&mut self, at: Instant, later: ScheduledRetry) {
        self.scheduled.insert((at, self.next), later);
        self.next += 1;
    }

    /// Returns the time of the next retry.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.scheduled.keys().next().map(|(at, _)| *at)
    }

    /// Removes a retry that is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<ScheduledRetry> {
        let first = self.scheduled.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }

    /// Removes all retries.
    pub(crate) fn take_all(&mut self) -> Vec<ScheduledRetry> {
        std::mem::take(&mut self.scheduled).into_values().collect()
    }

    /// Removes the retries of a call.
    pub(crate) fn take_of(&mut self, job: &Arc<CallState>) -> Vec<ScheduledRetry> {
        let is_its = |later: &ScheduledRetry| Arc::ptr_eq(&later.job, job);
        let keys = self.scheduled.iter().filter(|(_, later)| is_its(later)).map(|(key, _)| *key);
        let keys: Vec<_> = keys.collect();
        keys.iter().filter_map(|key| self.scheduled.remove(key)).collect()
    }
}
