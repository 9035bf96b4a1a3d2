//! Envelopes: containers of messages in shared memory. Any process may own an envelope.
//!
//! An envelope has an owner word, up to 216 inline bytes (attachments first, then the message's bytes), and,
//! if that is too little, a spill block with the rest. Each attachment is a seat that the envelope holds in
//! some block.
//!
//! | word | written by | when |
//! |---|---|---|
//! | owner | a process that claims it; its owner; a ring's producer and consumer; a recovering or reclaiming process | see [`Owner`] |
//! | place | its owner | before it is queued |
//! | meta, type | its owner | while the owner fills or empties the envelope |
//! | spill | its owner | before the spill block's seat moves to the envelope (write-ahead) |
//! | attachments | its owner | before the seat is taken (write-ahead) |
//!
//! If a process is killed while filling or emptying an envelope, the owner word names the dead process.
//! Recovery and reclaim then release exactly those seats that name the envelope. The owner words of the few
//! idle envelopes that each process keeps also name the process.

use std::mem::ManuallyDrop;

use crate::alloc::Allocator;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::envelopes::Meta;
use crate::envelopes::{DESCRIPTORS, OBJECT};
use crate::envelopes::{EmptyEnvelope, Envelopes};
use crate::error::{Error, Result};
use crate::layout::envelope as field;
use crate::mem::Mem;
use crate::parking::Notices;
use crate::parking::detach_notice::DetachedProcess;
use crate::transport::Messages;
use crate::transport::attachments::Claimed;
use crate::words::{BlockKind, EnvelopeId, Holder, Owner};

/// Number of attachments by which prefetching runs ahead. It fetches the words of the attached blocks, which
/// another process wrote last. Waiting for each of them is most of the cost of a message with many tensors.
pub(crate) const AHEAD: usize = 8;
/// Maximum number of attachments of a message.
pub(crate) const MAX_ATTACHMENTS: usize = u16::MAX as usize;

/// A packed message that belongs to this process, until it is [opened](Self::open). Dropping the envelope
/// [loses](Self::lose) the message and releases everything in it.
#[derive(Debug)]
pub struct Envelope {
    pub(crate) arena: Arena,
    /// Index of the envelope. The type is as wide as those of the other fields, so that a copy of this struct
    /// need not read words that were written in pieces: see [`push`](super::push).
    index: u64,
    /// Owner word. Stored packed, because an unpacked word is written in pieces: see [`push`](super::push).
    pub(super) owner: u64,
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

    /// Records a new value of the owner word.
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

    /// Returns `true` if the envelope contains a message of this process, `false` after the message was taken
    /// out.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
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
    /// attached block. Returns 0 after the message was taken out.
    pub fn weight(&self) -> u64 {
        if !self.is_whole() {
            return 0;
        }
        let attached = Allocator(self.arena).attachments(self.id());
        let sizes = attached.map(|(_, attach)| Blocks(self.arena).data_of(attach.block).1);
        self.meta().bytes as u64 + sizes.sum::<u64>()
    }

    /// Returns `true` if the message has attachments.
    #[inline]
    pub fn has_attachments(&self) -> bool {
        self.is_whole() && self.meta().attachments != 0
    }

    #[inline]
    fn meta(&self) -> Meta {
        let at = Envelopes(self.arena).envelope_word(self.id(), field::META);
        Meta::of_any_version(self.arena.map().load_relaxed(at))
    }

    /// Releases everything in the envelope, if it contains a message. `note` records the loss in each queue
    /// whose handle is in the message, and returns `true` if there is such a queue.
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

    /// Copies the descriptors of a message. Called before the message is opened, because a message that is
    /// not opened yet can return to its queue if the copies fail.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`] if this process can't open more descriptors, and the errors of the locker.
    /// [`Error::Stale`] if the message was taken out.
    pub fn claim(&self) -> Result<Claimed> {
        if !self.is_whole() {
            return Err(opened());
        }
        let (arena, mut claimed) = (self.arena, Claimed::default());
        for (_, attach) in Allocator(arena).attachments(self.id()) {
            let kind = Blocks(arena).existing_kind(attach.block);
            if attach.grant == DESCRIPTORS && kind == Some(BlockKind::Descriptors) {
                claimed.add(arena, attach.block)?;
            }
        }
        Ok(claimed)
    }

    /// Moves the bytes in the last two words of the envelope ([`Envelopes::tail_words`]) elsewhere, so that
    /// the message's queue can use these words.
    ///
    /// # Errors
    /// The errors of an allocation, if the bytes can't be moved. [`Error::Stale`] if the message was taken
    /// out.
    pub fn free_tail(&self) -> Result<()> {
        if !self.is_whole() {
            return Err(opened());
        }
        Messages(self.arena).spill(self)
    }

    /// Discards a message that process `pid` never received. In each queue whose handle is in the message,
    /// that process is recorded as gone. Dropping the envelope has the same effect for an unknown process.
    pub fn lose(self, pid: u32) {
        ManuallyDrop::new(self).discard(|envelope| envelope.note_loss(pid));
    }

    /// Discards a message without recording a loss: this process has other handles for all attachments.
    pub fn received(self) {
        ManuallyDrop::new(self).discard(|_| false);
    }

    /// Records the loss of a message in each queue whose handle it contains. Returns `true` if there is such
    /// a queue.
    #[cold]
    pub(crate) fn note_loss(&self, pid: u32) -> bool {
        let (arena, mut any) = (self.arena, false);
        for (entry, attach) in Allocator(arena).attachments(self.id()) {
            let kind = Blocks(arena).existing_kind(attach.block);
            if attach.grant == OBJECT
                && kind == Some(BlockKind::Ring)
                && let Ok(hold) = Allocator(arena).adopt(self.id(), attach)
            {
                arena.map().store(entry, 0);
                Blocks(arena).ring_holder_gone(hold.block(), DetachedProcess::NeverJoined, pid);
                any = true;
            }
        }
        any
    }
}

#[cold]
pub(super) fn opened() -> Error {
    Error::Stale("this message was taken out of its envelope already".into())
}

impl Drop for Envelope {
    #[inline]
    fn drop(&mut self) {
        self.discard(|envelope| envelope.note_loss(0));
    }
}
