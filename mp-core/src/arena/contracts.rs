//! # Safety
//! What the layers above may do to shared words. Nothing here dereferences anything; these functions are
//! `unsafe` because a caller that breaks their contract could make two owners of one piece of memory.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::arena::layout::control;
use crate::arena::waiting::giving_up::Gone;
use crate::arena::waiting::lock::{RawGuard, RawLock};
use crate::arena::{Arena, Envelope, Hold, Leased, Parking};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word};
use crate::words::{BlockId, BlockState, EnvelopeId, Holder, Kind, Member, Owner};

/// Where a message may be that both a dead member and a living thread are in the middle of.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InDoubt {
    /// No such message.
    Nothing,
    /// One message that was put into this ring: it may come back to that ring, and to no other.
    Ring(BlockId),
    /// Several, of several rings.
    Rings,
}

/// What this layer needs from the one that knows rings.
///
/// # Safety
/// `settle` gives an envelope to the dead member only if no living process has it, or can get it; `drain` and
/// `holder_gone` change only the words of the ring that they are called for; `contents` names only messages
/// that lie in that ring.
pub unsafe trait RingLayer: Send + Sync {
    /// Settles the intents of a dead member: `dead` is that member, and where its intents are. `others` lists
    /// the intent words of all members not known to be dead, as of the time of the call. Any number of
    /// processes may do it at once. What was in doubt, and belongs to no living process, is then the dead
    /// member's, or leased by it. What is returned could not be settled because of a living thread: call
    /// again later.
    fn settle(&self, arena: Arena, dead: (Member, &[Word]), others: &dyn Fn() -> Vec<Word>) -> InDoubt;

    /// Returns an envelope that a dead member leased to its queue, if its owner word is still `owner`. It
    /// changes no word of that queue, which this process may not hold: [`holder_gone`](Self::holder_gone)
    /// follows, if the dead member had a seat there.
    fn take_back(&self, arena: Arena, envelope: EnvelopeId, owner: Owner);

    /// Takes every envelope out of a ring that has no holder any more, and drops it. May be begun by one
    /// process and ended by another.
    fn drain(&self, arena: Arena, memory: (Word, u64), block: BlockId);

    /// Calls `each` with every message that lies in a ring, or came back to it. No living process has that ring.
    fn contents(&self, arena: Arena, memory: (Word, u64), block: BlockId, each: &mut dyn FnMut(EnvelopeId));

    /// Notes a member that held this ring and died, or gives it up, or a process that never received its handle; and wakes the
    /// sleepers. `memory` is the ring's place. This process holds the ring, or visits the dead member, whose seat stays there
    /// meanwhile. Messages that the member had leased were [taken back](Self::take_back) before. Any number of processes may do
    /// it at once.
    fn holder_gone(&self, arena: Arena, memory: (Word, u64), block: BlockId, gone: Gone, pid: u32);

    /// Wakes all sleepers of a ring, under the same conditions: what they check has changed outside of the
    /// ring.
    fn wake(&self, arena: Arena, memory: (Word, u64), block: BlockId);
}

impl Arena {
    /// Its words, to run [`Steps`](crate::mem::Steps) on.
    ///
    /// # Safety
    /// Words are changed only by the protocols that they belong to, and only within memory that the caller holds.
    #[inline]
    pub unsafe fn words(&self) -> &'static (impl Mem + Copy + use<>) {
        self.map()
    }

    /// The file behind it, to hand to a child. It stays open as long as the process lives.
    ///
    /// # Errors
    /// [`Error::Local`] if there is none, [`Error::Os`] if there is no descriptor to spare.
    ///
    /// # Safety
    /// It is only sent to children that [`attach`](Self::attach) it. Reading, writing or mapping it elsewhere reaches all
    /// tensors of all processes. No descriptor of the same file may be closed in this process: that would drop its
    /// POSIX lock, one of two signs that it is alive.
    pub unsafe fn fd(&self) -> Result<BorrowedFd<'static>> {
        self.file_to_hand_down()
    }

    /// Becomes a member of the arena behind `fd`, and makes it the current one.
    ///
    /// # Errors
    /// [`Error::NotAnArena`] or [`Error::Version`] when it isn't one that this build can use; [`Error::ArenaFull`]
    /// when it has no member slot left; [`Error::Os`] when it can't be mapped at its size.
    ///
    /// # Safety
    /// The file is an arena's, sent by a process of the same tree that got it by [`fd`](Self::fd).
    pub unsafe fn attach(fd: OwnedFd) -> Result<Self> {
        Self::attach_to(fd)
    }

    /// As [`attach`](Self::attach), but only when this process first needs an arena; `joined` is then called
    /// once, with this process's tag. The process begins with settings of its own, not with its parent's: see
    /// [`children_inherit_settings`](Self::children_inherit_settings).
    ///
    /// # Safety
    /// As for [`attach`](Self::attach).
    #[inline]
    pub unsafe fn attach_later(fd: OwnedFd, joined: fn(Member)) {
        crate::arena::setup::attach::put(fd, joined);
    }

    /// Whether this process has settings (sharing strategy, directory) that a child must take over at its
    /// start.
    pub fn children_inherit_settings() -> bool {
        crate::arena::setup::strategy::is_set()
    }

    /// Declares a member dead. For its parent, which has seen its exit through a pidfd or `waitid`. Nothing
    /// happens if the slot has another tenant by now.
    ///
    /// # Safety
    /// The process is dead: what it holds is released and used again.
    pub unsafe fn declare_dead(&self, m: Member) {
        self.set_dead(m);
    }

    /// An envelope that this process owns already.
    ///
    /// # Safety
    /// - `id` and `owner` come from a protocol that has just made this process the owner: taking it out of a ring, or
    ///   [`Envelope::into_raw`];
    /// - they are made into an [`Envelope`] once.
    #[inline]
    pub unsafe fn envelope_from_raw(&self, id: EnvelopeId, owner: Owner) -> Envelope {
        debug_assert_eq!(owner.holder, Holder::Member(self.me().unwrap_or(Member::from_raw(0))));
        Envelope::new(*self, id.min(self.layout().envelopes - 1), owner.pack())
    }

    /// An envelope that this process has leased already, or that stays in its queue while this process reads it.
    ///
    /// # Safety
    /// `id` and `owner` come from a protocol that has just made this process its leaseholder; they are made into a
    /// [`Leased`] once. Or they come from one that keeps the message as it is, whole and published, until the [`Leased`] is
    /// dropped, which is only read.
    pub unsafe fn lease_from_raw(&self, id: EnvelopeId, owner: Owner) -> Leased {
        Leased { arena: *self, id: id.min(self.layout().envelopes - 1), owner }
    }

    /// Takes over an envelope that another member handed to this one by its id and owner word, at most once.
    ///
    /// # Errors
    /// [`Error::Stale`] if it isn't that envelope any more.
    ///
    /// # Safety
    /// The other member handed it to this process, and to no other; it does nothing with it but take it back,
    /// by this same function.
    pub unsafe fn claim_envelope(&self, id: EnvelopeId, owner: u64) -> Result<Envelope> {
        let me = self.me()?;
        let gone = || Error::Stale(format!("envelope {id} was taken back, or never sent"));
        let used = self.map().load(Word::at(control::ENVELOPES));
        let old = Owner::unpack(owner);
        if u64::from(id) >= used || !matches!(old.holder, Holder::Member(_)) {
            return Err(gone());
        }
        let new = old.then(Holder::Member(me));
        let at = self.owner_words().of(id);
        let expected = owner;
        self.map().cas(at, expected, new.pack()).map_err(|_| gone())?;
        Ok(Envelope::new(*self, id, new.pack()))
    }

    /// Makes a held block, whose memory is ready, a ring from now on: when it has no holder any more, it is
    /// drained before it is freed.
    ///
    /// # Safety
    /// The block is held by this process alone, and its memory is a ring's as the ring layer
    /// ([`Arena::set_ring_layer`]) understands it.
    pub unsafe fn become_ring(&self, hold: &Hold) {
        let at = self.block_at(hold.block()).state;
        let state = BlockState { kind: Kind::Ring, ..BlockState::unpack(self.map().load(at)) };
        self.map().store(at, state.pack());
        self.holds_a_ring(hold);
    }
}

impl Envelope {
    /// Notes the present owner. Unless it is this process, dropping it does nothing any more.
    ///
    /// # Safety
    /// `owner` is what its owner word says, after a step of this process that may have changed it.
    #[inline]
    pub unsafe fn set_owner(&mut self, owner: Owner) {
        self.note_owner(owner.pack());
    }
}

impl Parking {
    /// The parking word at `word`.
    ///
    /// # Safety
    /// `word` is used for nothing else, and lives as long as this is used.
    pub unsafe fn new(arena: Arena, word: Word) -> Self {
        Self { arena, word }
    }
}

impl RawLock {
    /// The lock whose three words begin at `word`. All zero is an unused lock.
    ///
    /// # Safety
    /// The words are used for nothing else, and live as long as this is used.
    pub unsafe fn at(arena: Arena, word: Word) -> Self {
        Self::new(arena, word)
    }

    /// The guard of a lock whose guard was forgotten.
    ///
    /// # Errors
    /// [`Error::Forked`].
    ///
    /// # Safety
    /// The calling thread took the lock, has not released it since, and has no other guard of it.
    pub unsafe fn resume(&self, arena: Arena) -> Result<RawGuard<'_>> {
        Ok(self.held(arena.me()?))
    }
}
