//! Which tasks are tried again, how often, and when.
//!
//! A task that a worker has begun and that has failed is offered to its call's [`Retry`] before it has an outcome, by the pool's
//! thread, which holds no lock then. It has one of these states, and moves on under the lock of `workers::state`:
//!
//! | where | it goes to | when |
//! |---|---|---|
//! | has failed | settled with its error | it was tried as often as it may, it is not to be tried again, its worker was told of Ctrl-C, its call is cancelled or the pool is ended, or its arguments could not be kept |
//! | | `later`, or its job at once | else |
//! | `later`: its arguments, and a time; no worker knows of it | its job, from which it is given out as any task is | the time is over |
//! | | settled: `Cancelled`, `Terminated`, `Broken` | its call is cancelled, or the pool is ended |
//!
//! What a death leaves: a worker's leaves all of that as it is, and the pool's takes all of it along.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mp_core::user_code::{Apart, caught};
use mp_spawn::Backoff;
use mp_spawn::RaisedKind;

use crate::error::TaskError;

type When = dyn Fn(&TaskError) -> bool + Send + Sync;

/// Which tasks of a call are tried again.
#[derive(Clone, Default)]
pub(crate) struct Retry {
    /// How often at most.
    pub(crate) times: u32,
    /// After which errors.
    when: Option<Arc<Apart<Box<When>>>>,
    pub(crate) backoff: Backoff,
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("times", &self.times)
            .field("backoff", &self.backoff)
            .finish_non_exhaustive()
    }
}

impl Retry {
    /// So often, after the errors that `when` says.
    pub(crate) fn set(&mut self, times: u32, when: impl Fn(&TaskError) -> bool + Send + Sync + 'static) {
        self.times = times;
        self.when = Some(Arc::new(Apart::new(Box::new(when))));
    }

    /// How long to wait before a task is tried again that was begun `tries` times; `None` if it is not. Code of the user runs here: if it
    /// panics, the task is not tried again.
    pub(crate) fn wait(&self, tries: u32, error: &TaskError) -> Option<Duration> {
        let tries_left = tries <= self.times && self.times > 0;
        // Of Ctrl-C a worker may hear before this process does.
        let told = matches!(error, TaskError::Raised(raised) if raised.kind == RaisedKind::Interrupted);
        let wanted = || self.when.as_deref().and_then(Apart::get).is_some_and(|when| when(error));
        if !tries_left || told || !caught(wanted).unwrap_or(false) {
            return None;
        }
        Some(self.backoff.before(tries.saturating_add(1)))
    }
}
