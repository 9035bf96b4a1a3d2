//! Tasks that have failed, and wait until they are tried again: see [`retry`](crate::retry).

use std::sync::Arc;
use std::time::Instant;

use crate::calls::job::{Job, Lost};
use crate::workers::state::{State, next_chunk};

/// A task that is to be tried again at some time.
pub(crate) struct Later {
    pub(crate) job: Arc<Job>,
    pub(crate) lost: Lost,
}

impl State {
    /// Has a task tried again, when it is time.
    pub(crate) fn try_later(&mut self, at: Instant, later: Later) {
        self.later.insert((at, next_chunk()), later);
    }

    /// When [`try_due`](Self::try_due) has something.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.later.keys().next().map(|(at, _)| *at)
    }

    /// Has tasks tried again whose time it is.
    pub(crate) fn try_due(&mut self, now: Instant) {
        while let Some(first) = self.later.first_entry().filter(|first| first.key().0 <= now) {
            let Later { job, lost } = first.remove();
            job.again(lost);
            self.enlist(&job);
        }
    }
}
