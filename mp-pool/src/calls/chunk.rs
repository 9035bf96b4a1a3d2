//! Consecutive tasks of one call, which a worker receives in one message and answers in a few.

use std::sync::Arc;

use mp_core::message::Outgoing;
use mp_core::user_code::UserValue;
use mp_queue::EncodedMessage;

use crate::calls::job::Job;
use crate::calls::source::Keep;
use crate::message::Task;
use crate::run::values::Slice;

/// Arguments kept for a retry, or for sending the rest of a chunk to another worker. Dropping them catches
/// panics.
pub(crate) enum Kept {
    /// Bytes of the arguments.
    Plain(Slice),
    /// Arguments with attachments, taken from their message.
    Original(UserValue<Box<dyn Keep>>),
    Not,
}

/// Tasks that have left their job. Its items are numbered from 0.
pub(crate) struct Chunk {
    pub(crate) id: u64,
    pub(crate) job: Arc<Job>,
    /// Index of item 0 in its call.
    pub(crate) first: usize,
    /// Number of items with outcomes; they come first.
    pub(crate) reported: usize,
    /// Number of items: smaller than in its message if the last ones were withdrawn.
    pub(crate) end: usize,
    /// Number of earlier attempts at its only item.
    pub(crate) tries: u32,
    pub(crate) kept: Kept,
}

impl Chunk {
    /// Returns the number of tasks without an outcome.
    pub(crate) fn left(&self) -> usize {
        self.end - self.reported
    }

    /// Splits off the items from `from` on as a new chunk. Returns `None` if there are none, or their
    /// arguments were not kept.
    pub(crate) fn split_off(&mut self, from: usize, id: u64) -> Option<Chunk> {
        let Kept::Plain(slice) = &self.kept else { return None };
        if from >= self.end {
            return None;
        }
        let kept = Kept::Plain(slice.part(from, self.end));
        let (first, end) = (self.first + from, self.end - from);
        self.end = from;
        Some(Chunk { id, job: Arc::clone(&self.job), first, reported: 0, end, tries: 0, kept })
    }

    /// Returns the arguments for a retry of one item.
    pub(crate) fn keep(&mut self, item: usize) -> Option<Kept> {
        match &mut self.kept {
            Kept::Plain(slice) => Some(Kept::Plain(slice.part(item, item + 1))),
            Kept::Not => None,
            original => Some(std::mem::replace(original, Kept::Not)),
        }
    }
}

/// Chunk that can be sent to a worker.
pub(crate) struct Ready {
    pub(crate) chunk: Chunk,
    pub(crate) message: ForWorker,
}

/// Message for a worker.
pub(crate) enum ForWorker {
    /// Encoded message of the chunk.
    Packed(EncodedMessage<Task>),
    /// Arguments with attachments, for which a message could not be allocated.
    Alone(Outgoing),
    /// Arguments kept by the chunk, which are still to be encoded.
    Kept,
}

impl Ready {
    pub(crate) fn packed(chunk: Chunk, message: EncodedMessage<Task>) -> Ready {
        Ready { chunk, message: ForWorker::Packed(message) }
    }

    /// Creates a chunk without a message.
    pub(crate) fn rest(chunk: Chunk) -> Ready {
        Ready { chunk, message: ForWorker::Kept }
    }
}
