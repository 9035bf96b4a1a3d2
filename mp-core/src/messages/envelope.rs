//! Envelopes: containers of messages that belong to no process.
//!
//! An envelope has an owner word, up to 216 inline bytes (attachments first, then the message's bytes), and,
//! if that is too little, a spill block with the rest. Each attachment is a seat that the envelope holds in
//! some block.
//!
//! | word | written by | when |
//! |---|---|---|
//! | owner | a process that claims it; its owner; a ring's producer and consumer; a recovering or reclaiming process | see [`Owner`] |
//! | place | its owner | before it is queued |
//! | meta, type | its owner | while it fills or empties it |
//! | spill | its owner | before the spill block's seat moves to the envelope (write-ahead) |
//! | attachments | its owner | before the seat is taken (write-ahead) |
//!
//! If a process is killed while filling or emptying an envelope, the owner word names the dead process.
//! Recovery and reclaim then release exactly those seats that name the envelope. Each process keeps a few
//! idle envelopes, whose owner words name it, too.

use crate::alloc::Allocator;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::envelopes::grants::DESCRIPTORS;
use crate::envelopes::meta::{INLINE, Meta, TAIL};
use crate::envelopes::{EmptyEnvelope, Envelopes};
use crate::error::{Error, Result};
use crate::layout::{SLAB_BLOCKS, envelope as field};
use crate::mem::{Mem, Word};
use crate::messages::attachments::AttachRequest;
use crate::messages::bytes::Spill;
use crate::messages::incoming::Claimed;
use crate::messages::{Incoming, Messages};
use crate::parking::notices::Notices;
use crate::words::{Attachment, BlockKind, EnvelopeId, Holder, Owner};

/// Number of attachments by which the blocks of a message are prefetched ahead: another process wrote their
/// words last, and waiting for each of them is most of the cost of a message with many tensors.
pub(crate) const AHEAD: usize = 8;
/// Maximum number of attachments of a message.
pub(crate) const MAX_ATTACHMENTS: usize = u16::MAX as usize;

/// A packed message that belongs to this process, until it is [opened](Self::open). Dropping the envelope
/// [loses](Self::lose) the message and releases everything in it.
#[derive(Debug)]
pub struct Envelope {
    pub(crate) arena: Arena,
    /// Index of the envelope. It is as wide as the other fields, so that no copy reads a value that was
    /// written in pieces: see [`push`](super::push).
    index: u64,
    /// Owner word, packed, because an unpacked one is written in pieces.
    owner: u64,
}

impl From<EmptyEnvelope> for Envelope {
    #[inline(always)]
    fn from(empty: EmptyEnvelope) -> Self {
        Self::new(empty.arena, empty.id, empty.owner)
    }
}

impl Envelope {
    /// Returns an envelope of this process with this owner word.
    #[inline]
    pub(crate) fn new(arena: Arena, id: EnvelopeId, owner: u64) -> Self {
        Self { arena, index: id.into(), owner }
    }

    /// Records the owner word.
    #[inline]
    pub(crate) fn note_owner(&mut self, owner: u64) {
        self.owner = owner;
    }

    /// Returns the index of the envelope.
    #[inline]
    pub fn id(&self) -> EnvelopeId {
        self.index as EnvelopeId
    }

    /// Returns the present value of the owner word.
    #[inline]
    pub fn owner(&self) -> Owner {
        Owner::unpack(self.owner)
    }

    /// Returns `true` if the envelope contains a message of this process.
    #[inline]
    fn is_whole(&self) -> bool {
        matches!(self.owner().holder, Holder::Member(_))
    }

    /// Transfers the envelope to a ring or to another process. The receiver turns it into an `Envelope` again
    /// with [`Envelope::from_raw`].
    #[inline]
    pub fn into_raw(self) -> (EnvelopeId, Owner) {
        let this = std::mem::ManuallyDrop::new(self);
        (this.id(), this.owner())
    }

    /// Returns the fingerprint of the message's type, or 0 after the message was taken out.
    pub fn fingerprint(&self) -> u64 {
        if !self.is_whole() {
            return 0;
        }
        self.arena.map().load(Envelopes(self.arena).envelope_word(self.id(), field::TYPE))
    }

    /// Returns the size of the message in bytes: its encoded length, and the allocated length of each
    /// attached block.
    pub fn weight(&self) -> u64 {
        if !self.is_whole() {
            return 0;
        }
        let (arena, id) = (self.arena, self.id());
        let map = arena.map();
        let meta = Meta::of_any_version(map.load_relaxed(Envelopes(arena).envelope_word(id, field::META)));
        let (entries, n) = Allocator(arena).attachments_at(id, meta);
        let attached = |k| Attachment::unpack(map.load_relaxed(entries.plus(k)));
        let sizes = (0..n).filter_map(attached).map(|a| Blocks(arena).data_of(a.block).1);
        meta.bytes as u64 + sizes.sum::<u64>()
    }

    /// Returns `true` if the message has attachments.
    #[inline]
    pub fn has_attachments(&self) -> bool {
        if !self.is_whole() {
            return false;
        }
        let meta = self.arena.map().load_relaxed(Envelopes(self.arena).envelope_word(self.id(), field::META));
        Meta::of_any_version(meta).attachments != 0
    }

    /// Releases everything in the envelope, if it contains a message. `note` records the loss in the queues
    /// whose handles are in the message.
    #[inline]
    pub(crate) fn discard(&self, note: impl FnOnce(&Self) -> bool) {
        if !self.is_whole() || !self.arena.is_here() {
            return;
        }
        let noted = self.has_attachments() && note(self);
        Allocator(self.arena).empty_envelope(self.id());
        Envelopes(self.arena).keep(self.id(), self.owner);
        if noted {
            Notices(self.arena).tell_of_a_lost_holder();
        }
    }

    /// Copies the descriptors of a message before it is opened. Until then, the message can return to its
    /// queue.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`] if this process can't open more descriptors, and the errors of the locker.
    /// [`Error::Stale`] if the message was taken out.
    pub fn claim(&self) -> Result<Claimed> {
        if !self.is_whole() {
            return Err(opened());
        }
        let (arena, id, mut claimed) = (self.arena, self.id(), Claimed::default());
        let map = arena.map();
        let meta = Meta::of_any_version(map.load_relaxed(Envelopes(arena).envelope_word(id, field::META)));
        if meta.attachments == 0 {
            return Ok(claimed);
        }
        let (entries, n) = Allocator(arena).attachments_at(id, meta);
        for attach in (0..n).filter_map(|k| Attachment::unpack(map.load_relaxed(entries.plus(k)))) {
            if attach.grant == DESCRIPTORS
                && Blocks(arena).block_exists(attach.block)
                && Blocks(arena).kind_of(attach.block) == BlockKind::Descriptors
            {
                claimed.add(arena, attach.block)?;
            }
        }
        Ok(claimed)
    }

    /// Frees the last two words of the envelope ([`Envelopes::tail_words`]) for its queue.
    ///
    /// # Errors
    /// The errors of an allocation, if their contents can't be moved. [`Error::Stale`] if the message was
    /// taken out.
    pub fn free_tail(&self) -> Result<()> {
        if !self.is_whole() {
            return Err(opened());
        }
        Messages(self.arena).spill(self)
    }

    /// Takes the message out, once, into an empty `inc`. Its attachments become handles of this process, and
    /// the envelope is free for another message.
    ///
    /// # Errors
    /// [`Error::Version`] if the message has another wire version, [`Error::Malformed`] if its words are
    /// invalid. Dropping the envelope then releases everything in it. [`Error::Stale`] if the message was
    /// taken out already. [`Error::Forked`] in a forked child, which has no access to it.
    // Not by value: it would be copied just after it was assembled from its parts, see `index`.
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

    /// Same as [`open`](Self::open), with attachments or a spill block.
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

#[cold]
fn opened() -> Error {
    Error::Stale("this message was taken out of its envelope already".into())
}

impl Drop for Envelope {
    #[inline]
    fn drop(&mut self) {
        self.discard(|envelope| envelope.note_loss(0));
    }
}

impl Messages {
    /// Writes bytes into an envelope, beginning at byte `from` of its inline bytes. The last bytes ([`TAIL`])
    /// are only accessed as words: a producer of a queue that is bounded by bytes may read the words of an
    /// envelope that was just taken out of it. They are stored with release, so a producer that reads them
    /// also finds that the earlier message was taken.
    #[inline]
    pub(crate) fn write_inline(self, id: EnvelopeId, from: usize, bytes: &[u8]) {
        let at = Envelopes(self.0).envelope_word(id, field::INLINE);
        let (bytes, tail) = bytes.split_at(bytes.len().min((INLINE - TAIL).saturating_sub(from)));
        crate::messages::bytes::write_own(self.map(), at.offset() + from as u64, bytes);
        if !tail.is_empty() {
            let first = at.plus((from + bytes.len()) as u64 / 8);
            let (words, rest) = tail.as_chunks();
            for (i, word) in words.iter().enumerate() {
                self.map().store(first.plus(i as u64), u64::from_ne_bytes(*word));
            }
            if !rest.is_empty() {
                // Byte by byte, which is faster than `memcpy` for so few.
                let word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
                self.map().store(first.plus(words.len() as u64), word.to_le());
            }
        }
    }

    /// Reads bytes that [`write_inline`](Self::write_inline) has written. They replace the contents of `to`.
    #[inline]
    pub(crate) fn read_inline(self, id: EnvelopeId, from: usize, len: usize, to: &mut Vec<u8>) {
        let at = Envelopes(self.0).envelope_word(id, field::INLINE);
        let plain = len.min((INLINE - TAIL).saturating_sub(from));
        to.clear();
        // With room for the whole last word.
        to.reserve(len + 8);
        crate::messages::bytes::read_own(self.map(), at.offset() + from as u64, plain, to);
        if plain < len {
            let first = at.plus((from + plain) as u64 / 8);
            for i in 0..(len - plain).div_ceil(8) as u64 {
                to.extend_from_slice(&self.map().load_relaxed(first.plus(i)).to_ne_bytes());
            }
            to.truncate(len);
        }
    }

    /// Prefetches the words of an envelope's first attachments, all at once: another process wrote them last,
    /// and reading them one by one would wait for each.
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
