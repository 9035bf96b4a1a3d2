//! Failed tasks that wait for their retry: see [`retry`](crate::retry).

use std::sync::Arc;
use std::time::Instant;

use crate::calls::job::{Job, Lost};
use crate::workers::state::{State, next_chunk};

/// Task that is to be retried at a certain time.
pub(crate) struct Later {
    pub(crate) job: Arc<Job>,
    pub(crate) lost: Lost,
}

impl State {
    /// Schedules a retry.
    pub(crate) fn try_later(&mut self, at: Instant, later: Later) {
        self.later.insert((at, next_chunk()), later);
    }

    /// Returns the time of the next retry.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.later.keys().next().map(|(at, _)| *at)
    }

    /// Retries the tasks that are due.
    pub(crate) fn try_due(&mut self, now: Instant) {
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let Later { job, lost } = first.remove();
            job.again(lost);
            self.enlist(&job);
        }
    }
}
