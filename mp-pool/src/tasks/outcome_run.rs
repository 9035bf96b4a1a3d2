//! Outcomes of consecutive tasks, as they arrived.

use std::ops::Range;
use std::time::Duration;

use mp_core::message::Incoming;

use crate::error::TaskError;
use crate::worker::values::ReceivedValues;

/// Outcomes of consecutive tasks.
#[derive(Debug)]
pub(crate) struct OutcomeRun {
    /// Index of the first task.
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) data: OutcomeData,
    /// Run time of each task, if a worker has answered them.
    pub(crate) run_time: Option<Duration>,
}

/// Contents of a run: bytes of results, not decoded yet, or an error.
#[derive(Debug)]
pub(crate) enum OutcomeData {
    /// Results from this position on.
    Values(ReceivedValues, usize),
    /// Single result with its attachments.
    Single(Box<Incoming>),
    /// The same error for all tasks. (Boxed, because errors are rare, and runs stay in memory until they are
    /// taken.)
    Failed(Box<TaskError>),
}

impl OutcomeRun {
    /// Creates a run of tasks with the same error.
    pub(crate) fn failed(tasks: Range<usize>, error: TaskError) -> OutcomeRun {
        OutcomeRun {
            first: tasks.start,
            count: tasks.len(),
            data: OutcomeData::Failed(Box::new(error)),
            run_time: None,
        }
    }

    pub(crate) fn end(&self) -> usize {
        self.first + self.count
    }

    /// Returns the error of all tasks of the run.
    pub(crate) fn error(&self) -> Option<&TaskError> {
        if let OutcomeData::Failed(error) = &self.data { Some(error) } else { None }
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.data, OutcomeData::Failed(_))
    }
}
