//! Causes of failed batches.

use std::error::Error;

use mp_pool::TaskError;
use mp_spawn::{CallFailure, ProcessName, SpawnError};

pub(crate) type DynError = Box<dyn Error + Send + Sync>;

/// Maximum number of sources of an error that are read. A limit is needed because an error may be its own
/// source.
pub(crate) const SOURCES: usize = 64;

/// Cause of a failed batch.
pub(crate) struct BatchFailure {
    /// Note (number for errors) of the item at which the batch failed: the number of the item in the batch,
    /// from 1. In a stream, the note consists of a `Moment` and a position.
    pub(crate) note: Option<u64>,
    pub(crate) worker: Option<usize>,
    pub(crate) attempts: usize,
    /// `true` if the worker died or exceeded the time-out. In that case, `note` is the last note of any of
    /// the worker's threads, so the failed item may be another one.
    pub(crate) lost: bool,
    /// `true` if no batch can be made any more.
    pub(crate) fatal: bool,
    /// `true` if the cause is missing shared memory.
    pub(crate) no_memory: bool,
    pub(crate) source: DynError,
}

impl BatchFailure {
    /// Creates a failure of `fetch`, or of the loader itself.
    pub(crate) fn new(source: impl Into<DynError>) -> BatchFailure {
        let source = source.into();
        BatchFailure {
            note: None,
            worker: None,
            attempts: 1,
            lost: false,
            fatal: false,
            no_memory: false,
            source,
        }
    }

    /// Creates a failure after which no other batch can be made.
    pub(crate) fn fatal(source: impl Into<DynError>) -> BatchFailure {
        BatchFailure { fatal: true, ..BatchFailure::new(source) }
    }

    pub(crate) fn with_note(self, note: u64) -> BatchFailure {
        BatchFailure { note: Some(note), ..self }
    }
}

/// Returns a panic of user code in the trainer as an error.
pub(crate) fn panic_error(panic: CallFailure) -> DynError {
    let name = ProcessName::new(None, "the trainer".into(), std::process::id());
    Box::new(SpawnError::ProcessRaised(Box::new(panic.into_raised(name))))
}

impl From<TaskError> for BatchFailure {
    fn from(error: TaskError) -> Self {
        let (note, worker, lost, fatal) = match &error {
            TaskError::Raised(raised) => (raised.note, raised.who.rank, false, false),
            TaskError::WorkerLost(lost) => (lost.note, Some(lost.worker), true, false),
            TaskError::TimedOut { note, worker, .. } => (*note, Some(*worker), true, false),
            TaskError::Arguments { .. } | TaskError::Value { .. } => (None, None, false, false),
            _ => (None, None, false, true),
        };
        let (attempts, no_memory) = (error.attempts().count().max(1), is_out_of_memory(&error));
        BatchFailure { note, worker, attempts, lost, fatal, no_memory, source: Box::new(error) }
    }
}

/// Returns `true` if an error or one of its sources reports missing shared memory.
pub(crate) fn is_out_of_memory(error: &(dyn Error + 'static)) -> bool {
    let says = |error: &(dyn Error + 'static)| {
        let of_memory = match error.downcast_ref::<mp_reduce::Error>() {
            Some(mp_reduce::Error::Memory(error)) => Some(error),
            _ => error.downcast_ref::<mp_core::Error>(),
        };
        matches!(of_memory, Some(mp_core::Error::OutOfMemory { .. } | mp_core::Error::ArenaFull { .. }))
    };
    std::iter::successors(Some(error), |error| (*error).source()).take(SOURCES).any(says)
}
