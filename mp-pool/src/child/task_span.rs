//! Spans of the `tracing` crate around the tasks of a worker. Without the feature `tracing`, the types of
//! this file are empty.
//!
//! Subscribers are code of users: a worker calls them before and after the function of a task, without a
//! lock. Their panics are caught.

#[cfg(feature = "tracing")]
use mp_core::Error;
use mp_core::Result;
use mp_core::message::{Incoming, Outgoing};
#[cfg(feature = "tracing")]
use mp_core::user_code::{catch_panic, emit};
use serde::{Deserialize, Serialize};
#[cfg(feature = "tracing")]
use tracing::{Level, Span};

/// Pool and number of a worker.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct WorkerLabel {
    #[cfg(feature = "tracing")]
    pool: Option<String>,
    #[cfg(feature = "tracing")]
    worker: usize,
}

impl WorkerLabel {
    pub(crate) fn new(_pool: Option<&str>, _worker: usize) -> WorkerLabel {
        WorkerLabel {
            #[cfg(feature = "tracing")]
            pool: _pool.map(str::to_owned),
            #[cfg(feature = "tracing")]
            worker: _worker,
        }
    }
}

/// Index of a chunk's first task in its call.
#[derive(Clone, Copy, Default)]
pub(crate) struct FirstTask {
    #[cfg(feature = "tracing")]
    index: u64,
}

impl FirstTask {
    pub(crate) fn new(_index: usize) -> FirstTask {
        FirstTask {
            #[cfg(feature = "tracing")]
            index: _index as u64,
        }
    }

    pub(crate) fn write(self, _out: &mut Outgoing) {
        #[cfg(feature = "tracing")]
        _out.bytes().extend_from_slice(&self.index.to_le_bytes());
    }

    pub(crate) fn read(_inc: &mut Incoming) -> Result<FirstTask> {
        #[cfg(feature = "tracing")]
        let index = {
            let too_short = || Error::Malformed("a message of a pool is too short".into());
            let bytes = *_inc.rest().first_chunk().ok_or_else(too_short)?;
            _inc.advance(size_of_val(&bytes));
            u64::from_le_bytes(bytes)
        };
        Ok(FirstTask {
            #[cfg(feature = "tracing")]
            index,
        })
    }
}

/// Entered span of a task. Dropping the value exits the span.
#[cfg(feature = "tracing")]
pub(crate) struct TaskSpan {
    span: Span,
    is_entered: bool,
}

#[cfg(feature = "tracing")]
impl TaskSpan {
    /// Enters the span of the task `item` of a chunk. Returns `None` if no subscriber accepts it.
    #[inline]
    pub(crate) fn enter(label: &WorkerLabel, first: FirstTask, item: usize) -> Option<TaskSpan> {
        tracing::level_enabled!(Level::INFO).then(|| TaskSpan::begin(label, first.index + item as u64))?
    }

    #[cold]
    fn begin(WorkerLabel { pool, worker }: &WorkerLabel, task: u64) -> Option<TaskSpan> {
        let span = emit(|| tracing::info_span!(target: "mp::task", "task", pool, worker, task))?;
        let mut entered = TaskSpan { span, is_entered: false };
        entered.is_entered = emit(|| entered.span.with_subscriber(|(id, to)| to.enter(id))).is_some();
        Some(entered)
    }
}

#[cfg(feature = "tracing")]
impl Drop for TaskSpan {
    fn drop(&mut self) {
        if self.is_entered {
            catch_panic(|| self.span.with_subscriber(|(id, to)| to.exit(id)));
        }
        let span = std::mem::replace(&mut self.span, Span::none());
        catch_panic(|| drop(span));
    }
}
