//! A message that is read and retained: its envelope is not emptied, so another process can get the message
//! if the reader dies.
//!
//! The attachments are shared with the reader. For each attachment, an idle envelope of the reader takes one
//! more seat, like an envelope that is being packed, and the reader takes over the seat from the envelope. If
//! the reader is killed meanwhile, that envelope is emptied like any other envelope of a dead member.

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::envelopes::Meta;
use crate::error::{Error, Result};
use crate::layout::envelope as field;
use crate::mem::{Mem, Word};
use crate::steps::AttachRecord;
use crate::transport::attachments::AttachRequest;
use crate::transport::bytes::Spill;
use crate::transport::envelope::Envelope;
use crate::transport::{Incoming, Messages};
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

    /// Increments the number of deliveries. Returns the new number, up to 127.
    pub fn deliver(&self) -> u32 {
        let at = Envelopes(self.arena).envelope_word(self.id, field::META);
        let meta = self.arena.map().load_relaxed(at);
        let meta = delivered(meta);
        self.arena.map().store(at, meta);
        deliveries(meta)
    }

    /// Reads the message into an empty `inc`. The message stays in its envelope.
    ///
    /// # Errors
    /// [`Error::Version`] or [`Error::Malformed`] if the message's words are invalid. [`Error::Unsupported`]
    /// if it has an exclusive attachment. [`Error::OutOfMemory`] if an attachment has no room for another
    /// holder.
    pub fn read(&self, inc: &mut Incoming) -> Result<()> {
        let map = self.arena.map();
        let word = |f| Envelopes(self.arena).envelope_word(self.id, f);
        let meta = Meta::unpack(map.load_relaxed(word(field::META)))?;
        inc.typed(map.load_relaxed(word(field::TYPE)));
        let spill = Attachment::unpack(map.load_relaxed(word(field::SPILL)));
        let spill = spill.filter(|a| Blocks(self.arena).block_exists(a.block));
        let from = meta.bytes_at(spill.map(|a| Blocks(self.arena).data_of(a.block).1))?;
        if meta.attachments != 0 || spill.is_some() {
            let list = spill.filter(|_| meta.spilled).map(|a| Blocks(self.arena).data_of(a.block).0);
            let entries = list.map_or(word(field::INLINE), Word::at);
            // Envelope that holds each seat for a moment.
            let between = Messages(self.arena).spare_envelope()?;
            for k in 0..meta.attachments as u64 {
                let attach = Attachment::unpack(map.load_relaxed(entries.plus(k)))
                    .ok_or_else(|| Error::Malformed("an attachment of a message is missing".into()))?;
                if attach.grant.access() == Access::Exclusive {
                    let why = "an exclusive tensor can't be leased: no other process could get it then";
                    return Err(Error::Unsupported(why.into()));
                }
                let hold = Messages(self.arena).share(&between, attach)?;
                inc.arrives(|| AttachRequest { hold, grant: attach.grant });
            }
            if let Some(attach) = spill {
                let hold = Messages(self.arena).share(&between, attach)?;
                inc.spilled(Spill { hold, from, len: meta.bytes });
                return Ok(());
            }
        }
        Messages(self.arena).read_inline(self.id, from, meta.bytes, inc.buffer());
        Ok(())
    }
}

impl Messages {
    /// Returns a handle to the parent of a held [child](crate::Structure::set_parent), even if this process
    /// did not hold the parent before.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the structure has no parent. [`Error::OutOfMemory`] and [`Error::ArenaFull`]
    /// if an additional holder needs memory. [`Error::Forked`] in a forked copy.
    pub fn parent(self, child: &Hold) -> Result<Hold> {
        let parent = Allocator(self.0).parent_of(child)?;
        match Allocator(self.0).hold_again(parent.block, Blocks(self.0).generation(parent.block)) {
            Some(hold) => Ok(hold),
            // The child keeps its seat meanwhile.
            None => self.share(&self.spare_envelope()?, parent),
        }
    }

    /// Makes this process a holder of the block that `attach` names. The seat is first taken for `between`,
    /// an empty envelope of this process. The holder whose seat `attach` names must keep the block until this
    /// function returns.
    pub(crate) fn share(self, between: &Envelope, attach: Attachment) -> Result<Hold> {
        if !Blocks(self.0).block_exists(attach.block) {
            return Err(Error::Malformed(format!("an attachment of the message names no block: {attach:?}")));
        }
        let entry = Envelopes(self.0).envelope_word(between.id(), field::INLINE);
        let count = Envelopes(self.0).envelope_word(between.id(), field::META);
        let counted = Meta { attachments: 1, ..Meta::default() }.pack();
        let note = AttachRecord { entry, count, counted, grant: attach.grant };
        self.share_block_seat(Seat::Envelope(between.id()), note, attach.block)?;
        let noted = Attachment::unpack(self.map().load_relaxed(entry));
        let taken = noted.ok_or_else(|| Error::Malformed("an attachment vanished".into()))?;
        let hold = Allocator(self.0).adopt(between.id(), taken);
        self.map().store(count, Meta::default().pack());
        hold
    }
}
