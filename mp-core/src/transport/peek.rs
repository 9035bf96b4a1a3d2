//! Messages that are copied while they stay in their queue.
//!
//! A process that peeks does not own the message. Another process may take the message meanwhile, write the
//! memory of its attachments, and free that memory, so a copy may be a mixture of old and new bytes. After
//! the copy, the caller checks that the message is still at its position in the queue, and otherwise discards
//! the copy.
//!
//! The kernel copies the bytes out of their file. So a peek allocates no pages for freed blocks, maps no
//! file, and gets no SIGBUS if the file system is full. A local arena has no file: its words are read as
//! atomics, and other threads of this process must not take a message and write its memory during a peek.

use crate::blocks::Blocks;
use crate::envelopes::{Envelopes, Meta, WIRE_VERSION};
use crate::error::{Error, Result};
use crate::layout::envelope as field;
use crate::mem::{Mem, Word, bytes};
use crate::setup::Backing;
use crate::sys::foreign;
use crate::transport::Messages;
use crate::transport::between_arenas::leaving;
use crate::transport::envelope::Envelope;
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

/// Parts of a message that a process has peeked at. Another process may take the message at any time.
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
        // The memory of absent envelopes is not accessed.
        if id >= self.layout().envelopes || !Envelopes(arena).may_be_in_use(id) {
            return Err(Error::Stale("the message was taken".into()));
        }
        let word = |f| Envelopes(arena).envelope_word(id, f);
        let meta_word = map.load(word(field::META));
        let meta = Meta::unpack(meta_word)?;
        let spill = Attachment::unpack(map.load_relaxed(word(field::SPILL)));
        let spill = spill.and_then(|a| Blocks(arena).existing(a.block));
        let from = meta.bytes_at(spill.map(|(_, len)| len))? as u64;
        let inline = word(field::INLINE).offset();
        let first = spill.map_or(inline, |(at, _)| at);
        let mut list = vec![0; 8 * meta.attachments];
        let at = if meta.spilled { first } else { inline };
        self.copy_out(ArenaBytes { at, len: list.len() as u64 }, 0, &mut list)?;
        let block = |entry: &[u8; 8]| {
            let attach = Attachment::unpack(u64::from_ne_bytes(*entry))
                .ok_or_else(|| Error::Malformed("an attachment of a message is missing".into()))?;
            let (at, len) = leaving(arena, attach.block, attach.grant)?;
            Ok((attach.grant, ArenaBytes { at, len }))
        };
        let blocks = list.as_chunks().0.iter().map(block).collect::<Result<_>>()?;
        let bytes = ArenaBytes { at: first + from, len: meta.bytes as u64 };
        Ok(PeekedMessage { bytes, blocks, deliveries: deliveries(meta_word) })
    }

    /// Returns the number of deliveries of the message in an envelope, up to 127, or 0 if the envelope is not
    /// in use. Another process may take the message meanwhile.
    pub fn deliveries(self, id: EnvelopeId) -> u32 {
        let is_there = id < self.layout().envelopes && Envelopes(self.0).may_be_in_use(id);
        let meta = || self.map().load(Envelopes(self.0).envelope_word(id, field::META));
        if is_there { deliveries(meta()) } else { 0 }
    }

    /// Copies bytes of `from` into `to`, from offset `at` on. If `from` has fewer bytes than `to`, the
    /// remaining bytes of `to` stay unchanged.
    ///
    /// # Errors
    /// The file of the bytes can't be opened or read.
    pub fn copy_out(self, from: ArenaBytes, at: u64, to: &mut [u8]) -> Result<()> {
        let len = from.len.saturating_sub(at).min(to.len() as u64);
        let (first, to) = (from.at + at, &mut to[..len as usize]);
        if self.0.is_local() {
            bytes::read(self.map(), Word::at(first & !7), first % 8, to);
            return Ok(());
        }
        let (file, first) = Backing(self.0).file_at(first)?;
        match foreign::read_at(file, first, to)? {
            read if read == to.len() => Ok(()),
            _ => Err(Error::Malformed("a message exceeds the file of its memory".into())),
        }
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

#[cfg(all(test, not(mp_loom), not(miri)))]
mod tests {
    use super::*;
    use crate::Arena;
    use crate::sys::memory;

    #[test]
    fn copy_of_free_arena_memory_allocates_no_pages() {
        let arena = Arena::current().unwrap();
        let (file, at) = (arena.file().unwrap(), arena.size() - (1 << 20));
        let mut copy = vec![7; 1 << 16];
        Messages(arena).copy_out(ArenaBytes { at, len: 1 << 16 }, 0, &mut copy).unwrap();
        assert_eq!(copy, vec![0; 1 << 16]);
        assert!(!memory::has_data_from(file, at));
    }
}
