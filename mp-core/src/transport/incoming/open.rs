//! Opening: receives a message from its envelope, whose seats become handles of this process.

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::envelopes::{INLINE, Meta, TAIL};
use crate::error::{Error, Result};
use crate::layout::{SLAB_BLOCKS, envelope as field};
use crate::mem::{Mem, Word};
use crate::transport::attachments::AttachRequest;
use crate::transport::bytes::{Spill, read_own};
use crate::transport::envelope::{AHEAD, Envelope, opened};
use crate::transport::{Incoming, Messages};
use crate::words::{Attachment, EnvelopeId, Owner};

impl Envelope {
    /// Moves the message into an empty `inc`. Its attachments become handles of this process, and the
    /// envelope is free for another message.
    ///
    /// # Errors
    /// [`Error::Version`] if the message has another wire version, [`Error::Malformed`] if its words are
    /// invalid. Dropping the envelope then releases everything in it. [`Error::Stale`] if the message was
    /// taken out already. [`Error::Forked`] in a forked child, which has no access to the message.
    // Takes `&mut self`: a value would be copied just after it was assembled from its parts, see `index`.
    #[inline]
    pub fn open(&mut self, inc: &mut Incoming) -> Result<()> {
        let (arena, id) = (self.arena, self.id());
        arena.me()?;
        if !self.is_whole() {
            return Err(opened());
        }
        let map = arena.map();
        let meta = Meta::unpack(map.load_relaxed(Envelopes(arena).envelope_word(id, field::META)))?;
        inc.typed(map.load_relaxed(Envelopes(arena).envelope_word(id, field::TYPE)));
        let spill = map.load_relaxed(Envelopes(arena).envelope_word(id, field::SPILL));
        if meta.attachments == 0 && spill == 0 && meta.bytes <= INLINE {
            Messages(arena).read_inline(id, 0, meta.bytes, inc.buffer());
        } else {
            self.open_attached(meta, Attachment::unpack(spill), inc)?;
        }
        Envelopes(arena).keep(id, std::mem::replace(&mut self.owner, Owner::free(0).pack()));
        Ok(())
    }

    /// Receives a message with attachments or a spill block, like [`open`](Self::open).
    fn open_attached(&self, meta: Meta, spill: Option<Attachment>, inc: &mut Incoming) -> Result<()> {
        let (arena, id) = (self.arena, self.id());
        let map = arena.map();
        if !meta.spilled {
            Messages(arena).fetch_early(id, meta.attachments);
        }
        // The spill block remains the envelope's until every attachment that it lists is taken: if this
        // process dies before, the reclaim finds the list.
        let spill = spill.filter(|a| Blocks(arena).block_exists(a.block));
        let (list, room) = spill.map(|a| Blocks(arena).data_of(a.block)).unzip();
        let from = meta.bytes_at(room)?;
        let list = list.filter(|_| meta.spilled).map(Word::at);
        let entries = list.unwrap_or(Envelopes(arena).envelope_word(id, field::INLINE));
        let attached = |k: usize| Attachment::unpack(map.load_relaxed(entries.plus(k as u64)));
        for k in 0..meta.attachments {
            let ahead = k + AHEAD;
            if ahead < meta.attachments
                && let Some(attach) = attached(ahead)
            {
                Messages(arena).fetch_seat(attach);
            }
            let attach = attached(k)
                .ok_or_else(|| Error::Malformed("an attachment of a message is missing".into()))?;
            Allocator(arena).adopt_seat(id, attach)?;
            inc.arrives(|| AttachRequest { hold: Allocator(arena).adopted(attach), grant: attach.grant });
        }
        if meta.attachments != 0 {
            map.store(Envelopes(arena).envelope_word(id, field::META), Meta::default().pack());
        }
        match spill {
            Some(attach) => {
                let hold = Allocator(arena).adopt(id, attach)?;
                map.store(Envelopes(arena).envelope_word(id, field::SPILL), 0);
                inc.spilled(Spill { hold, from, len: meta.bytes });
            }
            None => {
                Messages(arena).read_inline(id, from, meta.bytes, inc.buffer());
            }
        }
        Ok(())
    }
}

impl Messages {
    /// Reads bytes that [`write_inline`](Self::write_inline) has written. They replace the contents of `to`.
    #[inline]
    pub(crate) fn read_inline(self, id: EnvelopeId, from: usize, len: usize, to: &mut Vec<u8>) {
        let at = Envelopes(self.0).envelope_word(id, field::INLINE);
        let plain = len.min((INLINE - TAIL).saturating_sub(from));
        to.clear();
        // With room for the whole last word.
        to.reserve(len + 8);
        read_own(self.map(), at.offset() + from as u64, plain, to);
        if plain < len {
            let first = at.plus((from + plain) as u64 / 8);
            for i in 0..(len - plain).div_ceil(8) as u64 {
                to.extend_from_slice(&self.map().load_relaxed(first.plus(i)).to_ne_bytes());
            }
            to.truncate(len);
        }
    }

    /// Prefetches the words of an envelope's first attachments. Another process wrote these words last, so
    /// reading them one by one would wait for each word. Prefetches overlap.
    fn fetch_early(self, id: EnvelopeId, attachments: usize) {
        for k in 0..attachments.min(4) as u64 {
            let entry = self.map().load_relaxed(Envelopes(self.0).envelope_word(id, field::INLINE).plus(k));
            if let Some(attach) = Attachment::unpack(entry) {
                self.fetch_seat(attach);
            }
        }
    }

    /// Prefetches the seat of an attachment that will be taken over.
    #[inline]
    fn fetch_seat(self, attach: Attachment) {
        if attach.block / SLAB_BLOCKS < self.layout().slabs
            && let Some(seat) = Blocks(self.0).seat_word(attach.block, attach.seat)
        {
            self.map().will_write(seat);
        }
    }
}
