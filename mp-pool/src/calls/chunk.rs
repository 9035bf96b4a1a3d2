//! Tasks of one call in a row: what a worker is given as one message, and answers in a few.

use std::sync::Arc;

use mp_core::message::Outgoing;
use mp_core::user_code::Apart;
use mp_queue::EncodedMessage;

use crate::calls::job::Job;
use crate::calls::source::Keep;
use crate::message::Task;
use crate::run::values::Slice;

/// What another attempt at a task is made with, or the rest of a chunk is given to another worker; dropping it lets no panic out.
pub(crate) enum Kept {
    /// The bytes of the arguments.
    Plain(Slice),
    /// Arguments with attachments, which their message had.
    Original(Apart<Box<dyn Keep>>),
    Not,
}

/// Tasks that have left their job. Their items are numbered from 0.
pub(crate) struct Chunk {
    pub(crate) id: u64,
    pub(crate) job: Arc<Job>,
    /// The index in its call of item 0.
    pub(crate) first: usize,
    /// The items before this one have outcomes.
    pub(crate) reported: usize,
    /// How many items it has: fewer than its message, if the last ones were taken back.
    pub(crate) end: usize,
    /// How often its one item was begun before.
    pub(crate) tries: u32,
    pub(crate) kept: Kept,
}

impl Chunk {
    /// How many of its tasks have no outcome.
    pub(crate) fn left(&self) -> usize {
        self.end - self.reported
    }

    /// Takes the items from `from` on out of it, as a chunk of their own; `None` if there are none, or their arguments are gone.
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

    /// What another attempt at one of its items is made with.
    pub(crate) fn keep(&mut self, item: usize) -> Option<Kept> {
        match &mut self.kept {
            Kept::Plain(slice) => Some(Kept::Plain(slice.part(item, item + 1))),
            Kept::Not => None,
            original => Some(std::mem::replace(original, Kept::Not)),
        }
    }
}

/// A chunk that can be given to a worker.
pub(crate) struct Ready {
    pub(crate) chunk: Chunk,
    pub(crate) message: ForWorker,
}

/// What a worker is sent of a chunk.
pub(crate) enum ForWorker {
    /// Its message.
    Packed(EncodedMessage<Task>),
    /// These arguments, with which something travels: there was no room for a message of them.
    Alone(Outgoing),
    /// The arguments that the chunk keeps, of which a message is still to be made.
    Kept,
}

impl Ready {
    pub(crate) fn packed(chunk: Chunk, message: EncodedMessage<Task>) -> Ready {
        Ready { chunk, message: ForWorker::Packed(message) }
    }

    /// One without a message.
    pub(crate) fn rest(chunk: Chunk) -> Ready {
        Ready { chunk, message: ForWorker::Kept }
    }
}
