//! Outcomes of consecutive tasks, as they arrived.

use std::ops::Range;
use std::time::Duration;

use mp_core::message::Incoming;

use crate::error::TaskError;
use crate::run::values::Many;

/// Outcomes of consecutive tasks.
#[derive(Debug)]
pub(crate) struct Run {
    /// Index of the first task.
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) what: What,
    /// Run time of each task, if a worker has answered them.
    pub(crate) ran: Option<Duration>,
}

/// Contents of a run: bytes of results, not decoded yet, or an error.
#[derive(Debug)]
pub(crate) enum What {
    /// Results from this position on.
    Values(Many, usize),
    /// Single result with its attachments.
    One(Box<Incoming>),
    /// The same error for all tasks. (Boxed, because errors are rare, and runs stay in memory until they are
    /// taken.)
    Failed(Box<TaskError>),
}

impl Run {
    /// Creates a run of tasks with the same error.
    pub(crate) fn failed(tasks: Range<usize>, error: TaskError) -> Run {
        Run { first: tasks.start, count: tasks.len(), what: What::Failed(Box::new(error)), ran: None }
    }

    pub(crate) fn end(&self) -> usize {
        self.first + self.count
    }

    /// Returns the error of all tasks of the run.
    pub(crate) fn error(&self) -> Option<&TaskError> {
        if let What::Failed(error) = &self.what { Some(error) } else { None }
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.what, What::Failed(_))
    }
}
