//! Retries of failed tasks.
//!
//! If a task fails after a worker has begun it, the pool's thread handles the failure, and holds no lock at
//! that time. The thread consults the [`RetryPolicy`] of the call before the task gets an outcome.
//! [`pending`](crate::slots::pending) has the states of a task.

use std::sync::Arc;
use std::time::Duration;

use mp_core::user_code::{UserValue, catch_panic};
use mp_spawn::{Backoff, RaisedKind};

use crate::error::TaskError;

type RetryFilter = dyn Fn(&TaskError) -> bool + Send + Sync;

/// Retry policy of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetryPolicy {
    /// Maximum number of retries.
    pub(crate) times: u32,
    /// Filter of errors.
    when: Option<Arc<UserValue<Box<RetryFilter>>>>,
    pub(crate) backoff: Backoff,
}

impl RetryPolicy {
    /// Sets the number of retries and the filter of errors.
    pub(crate) fn set(&mut self, times: u32, when: impl Fn(&TaskError) -> bool + Send + Sync + 'static) {
        self.times = times;
        self.when = Some(Arc::new(UserValue::new(Box::new(when))));
    }

    /// Returns the delay before the next attempt at a task that was begun `tries` times, or `None` if the
    /// task is not retried. Calls the filter, which is user code. If the filter panics, the task is not
    /// retried.
    pub(crate) fn wait(&self, tries: u32, error: &TaskError) -> Option<Duration> {
        let tries_left = tries <= self.times && self.times > 0;
        // A worker may receive Ctrl-C before this process does. A task that ends because of it is not
        // retried.
        let reported = matches!(error, TaskError::Raised(raised) if raised.kind == RaisedKind::Interrupted);
        let wanted = || self.when.as_deref().and_then(UserValue::get).is_some_and(|when| when(error));
        if !tries_left || reported || !catch_panic(wanted).unwrap_or(false) {
            return None;
        }
        Some(self.backoff.before(tries.saturating_add(1)))
    }
}
