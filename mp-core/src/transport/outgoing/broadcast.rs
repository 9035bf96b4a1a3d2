//! A message for several receivers: encoded once, with one copy of its bytes in memory.
//!
//! Each receiver gets a separate envelope, with separate seats for the attachments. Bytes that don't fit into
//! an envelope are in one block, in which each envelope also has a seat. No process writes these bytes after
//! the first message was packed.
//!
//! | killed | remaining state | action of the reclaim |
//! |---|---|---|
//! | the packer, at any time | its own seat of the block, and envelopes as [`pack`](crate::transport::outgoing::pack) leaves them | releases those seats; the block is freed with its last seat |
//! | a receiver | its seat of the block | releases that seat; the other receivers keep theirs |

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::envelopes::OBJECT;
use crate::envelopes::{INLINE, Meta, TAIL};
use crate::error::{Error, Result};
use crate::layout::envelope as field;
use crate::mem::Mem;
use crate::steps::AttachRecord;
use crate::transport::attachments::AttachRequest;
use crate::transport::envelope::Envelope;
use crate::transport::{Messages, Outgoing};
use crate::words::{Access, BlockKind};

/// A message that can be packed any number of times.
#[derive(Debug)]
pub struct Repeated {
    arena: Arena,
    fingerprint: u64,
    bytes: Vec<u8>,
    attachments: Vec<AttachRequest>,
    /// Block with the bytes, if they don't fit into an envelope.
    block: Option<Hold>,
}

impl Repeated {
    /// Creates a repeatable message from an encoded message.
    ///
    /// # Errors
    /// [`Error::Unsendable`] if the message contains an exclusive value, which can't be sent twice.
    /// [`Error::OutOfMemory`].
    pub fn new(arena: Arena, message: Outgoing, fingerprint: u64) -> Result<Self> {
        let (bytes, attachments) = message.into_parts();
        if attachments.iter().any(|a| a.grant.access() == Access::Exclusive) {
            return Err(Error::Unsendable(
                "an exclusive tensor can't be sent to several processes: freeze() or share() it first".into(),
            ));
        }
        let head = 8 * attachments.len();
        // Each envelope needs its own list of attachments. A list that is too long for the envelope is stored
        // with the bytes in a spill block, so each envelope has such a block of its own.
        let apart = head <= INLINE - TAIL && head + bytes.len() > INLINE;
        let mut block = None;
        if apart && bytes.len() <= u32::MAX as usize {
            let hold = Allocator(arena).alloc_kind(bytes.len() as u64, BlockKind::Spill)?;
            crate::transport::bytes::write_own(arena.map(), Blocks(arena).data_of(hold.block()).0, &bytes);
            block = Some(hold);
        }
        Ok(Self { arena, fingerprint, bytes, attachments, block })
    }

    /// Packs the message once more.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], [`Error::LimitExceeded`] (too many attachments or
    /// bytes).
    pub fn pack(&self) -> Result<Envelope> {
        let (arena, map) = (self.arena, self.arena.map());
        let envelope = Messages(arena).spare_envelope()?;
        let word = |field| Envelopes(arena).envelope_word(envelope.id(), field);
        map.store_relaxed(word(field::TYPE), self.fingerprint);
        let Some(block) = &self.block else {
            let mut attachments = self.attachments.iter().map(AttachRequest::again).collect();
            Messages(arena).fill(&envelope, &self.bytes, &mut attachments)?;
            return Ok(envelope);
        };
        let (entries, count) = (word(field::INLINE), word(field::META));
        for k in 0..self.attachments.len() as u64 {
            map.store_relaxed(entries.plus(k), 0);
        }
        let meta = Meta { attachments: self.attachments.len(), spilled: false, bytes: self.bytes.len() };
        let counted = meta.pack();
        map.store(count, counted);
        let note = |entry, grant| AttachRecord { entry, count, counted, grant };
        let share = || {
            Messages(arena).share_seat(envelope.id(), note(word(field::SPILL), OBJECT), block)?;
            let mut attached = (0..).zip(&self.attachments);
            attached.try_for_each(|(k, a)| {
                Messages(arena).share_seat(envelope.id(), note(entries.plus(k), a.grant), &a.hold)
            })
        };
        match share() {
            Ok(()) => Ok(envelope),
            Err(error) => {
                // This process still has all the handles.
                envelope.received();
                Err(error)
            }
        }
    }
}
