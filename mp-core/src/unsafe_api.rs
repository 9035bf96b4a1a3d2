//! Operations on shared words for the layers above.
//!
//! # Safety
//! These functions dereference nothing. They are `unsafe` because a caller that breaks their contract could
//! create two owners of the same memory.
#![allow(unsafe_code)]

use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocking::lock::{RawGuard, RawLock};
use crate::blocks::Blocks;
use crate::error::Result;
use crate::mem::{Mem, Word};
use crate::members::Members;
use crate::parking::Parking;
use crate::transport::envelope::Envelope;
use crate::transport::lease::Leased;
use crate::words::{BlockKind, BlockState, EnvelopeId, Holder, Member, Owner};

impl Members {
    /// Declares a member dead. Called by the member's parent, after a pidfd or `waitid` reported the exit.
    /// Does nothing if another process has the slot by then.
    ///
    /// # Safety
    /// The process is dead: everything it holds is released and reused.
    pub unsafe fn declare_dead(self, m: Member) {
        self.set_dead(m);
    }
}

impl Hold {
    /// Turns the block, whose memory is initialized, into a ring. After its last holder has released it, the
    /// ring is drained before it is freed.
    ///
    /// # Safety
    /// Only this process holds the block, and the memory is a ring for the ring layer
    /// ([`register_ring_layer`](crate::register_ring_layer)).
    pub unsafe fn become_ring(&self) {
        let (map, at) = (self.arena().map(), Blocks(self.arena()).block_at(self.block()).state);
        let state = BlockState { kind: BlockKind::Ring, ..BlockState::unpack(map.load(at)) };
        map.store(at, state.pack());
        self.note_ring();
    }
}

impl Leased {
    /// Returns an envelope that this process has already leased, or that stays in its queue while this
    /// process reads it.
    ///
    /// # Safety
    /// Either of these conditions holds:
    /// - A protocol has just made this process the leaseholder, and has returned `id` and `owner`. The caller
    ///   makes only one [`Leased`] of them.
    /// - A protocol keeps the message unchanged, whole and published until the [`Leased`] is dropped. The
    ///   caller only reads from this [`Leased`].
    pub unsafe fn from_raw(arena: Arena, id: EnvelopeId, owner: Owner) -> Self {
        Self { arena, id: id.min(arena.layout().envelopes - 1), owner }
    }
}

impl Envelope {
    /// Returns an envelope that this process already owns.
    ///
    /// # Safety
    /// - `id` and `owner` come from a protocol that has just made this process the owner: taking the envelope
    ///   out of a ring, or [`Envelope::into_raw`].
    /// - They are made into an [`Envelope`] once.
    #[inline]
    pub unsafe fn from_raw(arena: Arena, id: EnvelopeId, owner: Owner) -> Self {
        debug_assert_eq!(owner.holder, Holder::Member(arena.me().unwrap_or(Member::from_raw(0))));
        Self::new(arena, id.min(arena.layout().envelopes - 1), owner.pack())
    }

    /// Records the present owner. Dropping the envelope does nothing if the owner is not this process.
    ///
    /// # Safety
    /// `owner` is the value of the owner word, after a step of this process that may have changed it.
    #[inline]
    pub unsafe fn set_owner(&mut self, owner: Owner) {
        self.note_owner(owner.pack());
    }
}

impl Parking {
    /// Returns the parking word at `word`.
    ///
    /// # Safety
    /// `word` has no other use, and lives at least as long as the returned value.
    pub unsafe fn new(arena: Arena, word: Word) -> Self {
        Self { arena, word }
    }
}

impl RawLock {
    /// Returns the lock whose three words begin at `word`. An unused lock is all zero.
    ///
    /// # Safety
    /// The words have no other use, and live at least as long as the returned value.
    pub unsafe fn at(arena: Arena, word: Word) -> Self {
        Self::new(arena, word)
    }

    /// Returns a guard for a lock whose guard was forgotten.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    ///
    /// # Safety
    /// The calling thread took the lock, has not released it since, and has no other guard of it.
    pub unsafe fn resume(&self, arena: Arena) -> Result<RawGuard<'_>> {
        Ok(self.held(arena.me()?))
    }
}
