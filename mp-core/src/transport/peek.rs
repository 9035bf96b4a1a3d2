//! Messages that are copied while they stay in their queue.
//!
//! A process that peeks does not own the message. Another process may take the message meanwhile, write the
//! memory of its attachments, and free it. All reads are atomic accesses of words, so a copy may be a mixture
//! of old and new bytes. The caller discards its copy unless the message is still in its place afterwards.

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::envelopes::{Envelopes, Meta, WIRE_VERSION};
use crate::error::{Error, Result};
use crate::layout::envelope as field;
use crate::mem::{Mem, Word, bytes};
use crate::transport::Messages;
use crate::transport::envelope::Envelope;
use crate::transport::relay::leaving;
use crate::words::{Attachment, EnvelopeId, Grant, deliveries, with_deliveries};

/// Location of bytes in the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaBytes {
    at: u64,
    len: u64,
}

impl ArenaBytes {
    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Parts of a message that another process may take at any time.
#[derive(Debug)]
pub struct PeekedMessage {
    /// Encoded bytes.
    pub bytes: ArenaBytes,
    /// Grants and memory of the attachments.
    pub blocks: Vec<(Grant, ArenaBytes)>,
    /// Number of deliveries, up to 127.
    pub deliveries: u32,
}

impl Messages {
    /// Version of the format of encoded bytes.
    pub const WIRE_VERSION: u64 = WIRE_VERSION;

    /// Returns the parts of the message in an envelope.
    ///
    /// # Errors
    /// [`Error::Unsendable`] if an attachment can't leave this arena. Any other error if the message was
    /// taken meanwhile, or its words are invalid.
    pub fn peek(self, id: EnvelopeId) -> Result<PeekedMessage> {
        let (arena, map) = (self.0, self.map());
        arena.me()?;
        // The memory of absent envelopes is not touched.
        if id >= self.layout().envelopes || !Envelopes(arena).may_be_in_use(id) {
            return Err(Error::Stale("the message was taken".into()));
        }
        let word = |f| Envelopes(arena).envelope_word(id, f);
        let meta_word = map.load(word(field::META));
        let meta = Meta::unpack(meta_word)?;
        let spill = Attachment::unpack(map.load_relaxed(word(field::SPILL)));
        let spill = spill.and_then(|a| Blocks(arena).existing(a.block));
        let from = meta.bytes_at(spill.map(|(_, len)| len))? as u64;
        let first = spill.map_or(word(field::INLINE).offset(), |(at, _)| at);
        let (list, length) = Allocator(arena).attachments_at(id, meta);
        let block = |k| {
            let attach = Attachment::unpack(map.load_relaxed(list.plus(k)))
                .ok_or_else(|| Error::Malformed("an attachment of a message is missing".into()))?;
            let (grant, _) = leaving(arena, attach.block, attach.grant)?;
            let (at, len) = Blocks(arena).data_of(attach.block);
            Ok((grant, ArenaBytes { at, len }))
        };
        let blocks = (0..length).map(block).collect::<Result<Vec<_>>>()?;
        if blocks.len() != meta.attachments {
            return Err(Error::Malformed("an attachment of a message is missing".into()));
        }
        let bytes = ArenaBytes { at: first + from, len: meta.bytes as u64 };
        Ok(PeekedMessage { bytes, blocks, deliveries: deliveries(meta_word) })
    }

    /// Copies bytes into `to`, from offset `at` on. Bytes beyond the end stay as they are.
    pub fn copy_out(self, from: ArenaBytes, at: u64, to: &mut [u8]) {
        let len = from.len.saturating_sub(at).min(to.len() as u64);
        bytes::read(self.map(), Word::at((from.at + at) & !7), (from.at + at) % 8, &mut to[..len as usize]);
    }
}

impl Envelope {
    /// Sets the number of deliveries of a packed message, up to 127.
    pub fn set_deliveries(&self, times: u32) {
        if self.is_whole() {
            let at = Envelopes(self.arena).envelope_word(self.id(), field::META);
            self.arena.map().store(at, with_deliveries(self.arena.map().load_relaxed(at), times));
        }
    }
}
