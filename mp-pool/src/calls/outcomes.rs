//! Outcomes of tasks in a row, as they came.

use std::ops::Range;
use std::time::Duration;

use mp_core::message::Incoming;

use crate::error::TaskError;
use crate::run::values::Many;

/// What came of tasks in a row.
#[derive(Debug)]
pub(crate) struct Run {
    /// The index of the first.
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) what: What,
    /// How long each ran, if a worker has answered them.
    pub(crate) ran: Option<Duration>,
}

/// What came of them: bytes of results, not read yet, or an error.
#[derive(Debug)]
pub(crate) enum What {
    /// These results, from the one with this number on.
    Values(Many, usize),
    /// One result, and what is attached to it.
    One(Box<Incoming>),
    /// The same for all. (Apart, since most are none of these, and lie in memory until they are asked for.)
    Failed(Box<TaskError>),
}

impl Run {
    /// Of these tasks, which have the same error.
    pub(crate) fn failed(tasks: Range<usize>, error: TaskError) -> Run {
        Run { first: tasks.start, count: tasks.len(), what: What::Failed(Box::new(error)), ran: None }
    }

    pub(crate) fn end(&self) -> usize {
        self.first + self.count
    }

    /// What all of them failed with.
    pub(crate) fn error(&self) -> Option<&TaskError> {
        if let What::Failed(error) = &self.what { Some(error) } else { None }
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.what, What::Failed(_))
    }
}
