//! A message that is read and kept: its envelope stays whole, so another process can get the message if this
//! one dies.
//!
//! The attachments are shared with the reader. For each attachment an idle envelope of this process takes one
//! more seat, as a message being packed does, and this process takes the seat from there. If this process is
//! killed meanwhile, that envelope is emptied like any other of a dead member.

use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::layout::envelope as field;
use crate::mem::{Column, Mem, Word};
use crate::messages::Incoming;
use crate::messages::envelope::{Envelope, Meta, Spill};
use crate::messages::outgoing::pack::AttachRequest;
use crate::steps::AttachRecord;
use crate::words::{Access, Attachment, EnvelopeId, Owner, Seat, delivered, deliveries};

/// A message that this process has leased: its owner word is `LEASED`. Dropping this value changes nothing.
#[derive(Debug)]
pub struct Leased {
    pub(crate) arena: Arena,
    pub(crate) id: EnvelopeId,
    pub(crate) owner: Owner,
}

impl Leased {
    /// Returns the index of the envelope.
    pub fn id(&self) -> EnvelopeId {
        self.id
    }

    /// Returns the present value of the owner word.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Counts a delivery, and returns the number of deliveries including this one, up to 127.
    pub fn deliver(&self) -> u32 {
        let at = self.arena.envelope_word(self.id, field::META);
        let meta = self.arena.map().load_relaxed(at);
        let meta = delivered(meta);
        self.arena.map().store(at, meta);
        deliveries(meta)
    }

    /// Reads the message into an empty `inc`, and keeps it.
    ///
    /// # Errors
    /// [`Error::Version`] or [`Error::Malformed`] if its words are invalid. [`Error::Unsupported`] if it has
    /// an exclusive attachment. [`Error::OutOfMemory`] if an attachment has no room for another holder.
    pub fn read(&self, inc: &mut Incoming) -> Result<()> {
        let map = self.arena.map();
        let word = |f| self.arena.envelope_word(self.id, f);
        let meta = Meta::unpack(map.load_relaxed(word(field::META)))?;
        inc.typed(map.load_relaxed(word(field::TYPE)));
        let spill = Attachment::unpack(map.load_relaxed(word(field::SPILL)));
        let spill = spill.filter(|a| self.arena.block_exists(a.block));
        let parts = meta.parts(spill.map(|a| self.arena.data_of(a.block).1))?;
        if meta.attachments != 0 || spill.is_some() {
            let list = spill.filter(|_| meta.spilled).map(|a| self.arena.data_of(a.block).0);
            let entries = list.map_or(word(field::INLINE), Word::at);
            // Holds each seat for a moment.
            let between = self.arena.spare_envelope()?;
            for k in 0..meta.attachments as u64 {
                let attach = Attachment::unpack(map.load_relaxed(entries.plus(k)))
                    .ok_or_else(|| Error::Malformed("an attachment of a message is missing".into()))?;
                if attach.grant.access() == Access::Exclusive {
                    let why = "an exclusive tensor can't be leased: no other process could get it then";
                    return Err(Error::Unsupported(why.into()));
                }
                let hold = self.arena.share(&between, attach)?;
                inc.arrives(|| AttachRequest { hold, grant: attach.grant });
            }
            if let Some(attach) = spill {
                let hold = self.arena.share(&between, attach)?;
                inc.spilled(Spill { hold, from: parts.from, len: meta.bytes });
                return Ok(());
            }
        }
        self.arena.read_inline(self.id, parts.from, meta.bytes, inc.buffer());
        Ok(())
    }
}

impl Arena {
    /// Makes this process a holder of a block, as described by this attachment. The block must have another
    /// holder until this returns.
    pub(crate) fn share(&self, between: &Envelope, attach: Attachment) -> Result<Hold> {
        if !self.block_exists(attach.block) {
            return Err(Error::Malformed(format!("an attachment of the message names no block: {attach:?}")));
        }
        let entry = self.envelope_word(between.id(), field::INLINE);
        let count = self.envelope_word(between.id(), field::META);
        let counted = Meta { attachments: 1, ..Meta::default() }.pack();
        let note = AttachRecord { entry, count, counted, grant: attach.grant };
        self.share_block_seat(Seat::Envelope(between.id()), note, attach.block)?;
        let noted = Attachment::unpack(self.map().load_relaxed(entry));
        let taken = noted.ok_or_else(|| Error::Malformed("an attachment vanished".into()))?;
        let hold = self.adopt(between.id(), taken);
        self.map().store(count, Meta::default().pack());
        hold
    }

    /// Returns the column of the meta words of all envelopes.
    pub fn meta_words(&self) -> Column {
        self.layout().envelope_column(field::META)
    }
}
