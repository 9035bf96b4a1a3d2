//! Puts that are sent together: one call with several messages.
//!
//! | state | changed by | owner of the messages |
//! |---|---|---|
//! | open | the putting thread, which adds messages | the batch |
//! | sent | the driver, when the credits allow it | the stream, and the batch until they are reclaimed |
//! | reclaimed | the putting thread, after the call's outcome | the putting thread |
//!
//! A batch is sent as soon as the driver can send it, however few messages it has. Messages that are put
//! until then are added to the batch.

use std::sync::Arc;

use mp_core::message::Outgoing;
use mp_core::mutex::Mutex;

use crate::wire::held::HeldMessage;
use crate::wire::messages::Value;
use crate::wire::value::{heads, size_of};
use crate::wire::{MOST_VALUES, TOGETHER};

/// An encoded message, and the sizes of its attachments in bytes.
pub(crate) struct EncodedPut {
    pub(crate) head: Value,
    pub(crate) message: Outgoing,
    pub(crate) sizes: Vec<u64>,
}

impl EncodedPut {
    /// Returns the size of the message in bytes, with its attachments.
    pub(crate) fn size(&self) -> u64 {
        size_of(&self.head)
    }
}

/// Messages of a batch before it is sent.
#[derive(Default)]
struct OpenBatch {
    heads: Vec<Value>,
    messages: Vec<Outgoing>,
    sizes: Vec<u64>,
    /// Size of the messages in bytes, with attachments.
    size: u64,
    /// Upper bound in bytes for the lengths and lists of attachments that are sent with the messages
    /// ([`heads`]).
    described: u64,
}

impl OpenBatch {
    fn add(&mut self, put: EncodedPut) {
        self.size += put.size();
        self.described += heads(&put.head);
        self.heads.push(put.head);
        self.messages.push(put.message);
        self.sizes.extend(put.sizes);
    }

    fn has_room(&self, put: &EncodedPut) -> bool {
        let described = self.described + heads(&put.head);
        let bytes = self.size.saturating_add(put.size()).saturating_add(described);
        self.heads.is_empty() || (self.heads.len() < MOST_VALUES && bytes <= TOGETHER)
    }
}

enum BatchState {
    Open(OpenBatch),
    Sent(Arc<HeldMessage>),
    Reclaimed,
}

/// Messages that one call puts.
pub(crate) struct PutBatch(Mutex<BatchState>);

impl PutBatch {
    pub(crate) fn new(first: EncodedPut) -> Arc<Self> {
        let mut open = OpenBatch::default();
        open.add(first);
        Arc::new(Self(Mutex::new(BatchState::Open(open))))
    }

    /// Adds a message. Returns the message if the batch was sent or is full.
    pub(crate) fn join(&self, put: EncodedPut) -> Option<EncodedPut> {
        match &mut *self.0.lock() {
            BatchState::Open(open) if open.has_room(&put) => {
                open.add(put);
                None
            }
            _ => Some(put),
        }
    }

    /// Returns the size of the batch in bytes (at least 1), and `true` if the batch has only one message.
    /// After the batch was sent, returns `(1, true)`.
    pub(super) fn size(&self) -> (u64, bool) {
        match &*self.0.lock() {
            BatchState::Open(open) => (open.size.max(1), open.heads.len() == 1),
            _ => (1, true),
        }
    }

    /// Closes the batch. Returns its values, their size in bytes, and the memory of their attachments.
    /// Returns `None` if the batch was closed before.
    pub(super) fn send(&self) -> Option<(Vec<Value>, u64, Arc<HeldMessage>)> {
        let mut state = self.0.lock();
        let BatchState::Open(open) = &mut *state else { return None };
        let OpenBatch { heads, messages, sizes, size, .. } = std::mem::take(open);
        let memory = HeldMessage::values(messages, &heads, sizes);
        *state = BatchState::Sent(memory.clone());
        Some((heads, size.max(1), memory))
    }

    /// Blocks until no stream reads the messages, and returns them.
    pub(crate) fn reclaim(&self) -> Vec<Outgoing> {
        let mut state = self.0.lock();
        let state = std::mem::replace(&mut *state, BatchState::Reclaimed);
        match state {
            BatchState::Open(open) => open.messages,
            BatchState::Sent(memory) => memory.reclaim(),
            BatchState::Reclaimed => Vec::new(),
        }
    }
}
