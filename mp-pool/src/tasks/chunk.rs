//! Consecutive tasks of one call, which a worker receives in one message and answers in a few messages.

use std::sync::Arc;

use mp_core::message::Outgoing;
use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU64;
use mp_queue::EncodedMessage;

use crate::child::message::WorkerRequest;
use crate::tasks::call_state::CallState;
use crate::tasks::source::SavedArgs;

/// Returns a unique number for a chunk.
fn next_chunk() -> u64 {
    // fork: a forked process has no workers, and sends them nothing.
    static CHUNKS: AtomicU64 = AtomicU64::new(1);
    CHUNKS.fetch_add(1, Ordering::Relaxed)
}

/// Consecutive tasks of one call that were taken from its source. The items of the chunk are numbered from 0.
pub(crate) struct Chunk {
    pub(crate) id: u64,
    pub(crate) job: Arc<CallState>,
    /// Index of item 0 in its call.
    pub(crate) first: usize,
    /// Number of items with outcomes: the items before this index.
    pub(crate) reported: usize,
    /// Number of items. If the last items were withdrawn, the message of the chunk contains more items.
    pub(crate) end: usize,
    /// Number of earlier attempts at the chunk's only item.
    pub(crate) tries: u32,
    pub(crate) saved: SavedArgs,
    /// `true` if a served pool was asked to cancel the chunk.
    pub(crate) is_cancelled_there: bool,
}

impl Chunk {
    /// Creates a chunk that consists of the task `first` of a call.
    pub(crate) fn new(job: Arc<CallState>, first: usize, saved: SavedArgs) -> Chunk {
        let (id, is_cancelled_there) = (next_chunk(), false);
        Chunk { id, job, first, reported: 0, end: 1, tries: 0, saved, is_cancelled_there }
    }

    /// Returns the number of tasks without an outcome.
    pub(crate) fn remaining(&self) -> usize {
        self.end - self.reported
    }

    /// Splits off the items from `from` on as a new chunk. Returns `None` if no item is left, or the
    /// arguments were not kept.
    pub(crate) fn split_off(&mut self, from: usize) -> Option<Chunk> {
        let SavedArgs::Packed(slice) = &self.saved else { return None };
        if from >= self.end {
            return None;
        }
        let saved = SavedArgs::Packed(slice.part(from, self.end));
        let (first, end) = (self.first + from, self.end - from);
        self.end = from;
        Some(Chunk { end, ..Chunk::new(Arc::clone(&self.job), first, saved) })
    }

    /// Returns one item as a chunk with the arguments for a retry, if they were kept.
    pub(crate) fn item(&mut self, item: usize) -> Chunk {
        let saved = match &mut self.saved {
            SavedArgs::Packed(slice) => SavedArgs::Packed(slice.part(item, item + 1)),
            original => std::mem::replace(original, SavedArgs::None),
        };
        Chunk { tries: self.tries, ..Chunk::new(Arc::clone(&self.job), self.first + item, saved) }
    }
}

/// Chunk that can be sent to a worker.
pub(crate) struct ReadyChunk {
    pub(crate) chunk: Chunk,
    pub(crate) message: ChunkMessage,
}

/// Message for a worker.
pub(crate) enum ChunkMessage {
    /// Encoded message of the chunk.
    Packed(EncodedMessage<WorkerRequest>),
    /// Arguments with attachments, for which a message could not be allocated.
    Unpacked(Outgoing),
    /// Arguments kept by the chunk, which are still to be packed.
    Saved,
}

impl ReadyChunk {
    pub(crate) fn packed(chunk: Chunk, message: EncodedMessage<WorkerRequest>) -> ReadyChunk {
        ReadyChunk { chunk, message: ChunkMessage::Packed(message) }
    }

    /// Creates a chunk without a message.
    pub(crate) fn unpacked(chunk: Chunk) -> ReadyChunk {
        ReadyChunk { chunk, message: ChunkMessage::Saved }
    }
}
