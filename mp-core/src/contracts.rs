//! Operations on shared words for the layers above.
//!
//! # Safety
//! These functions dereference nothing. They are `unsafe` because a caller that breaks their contract could
//! create two owners of the same memory.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::layout::control;
use crate::mem::{Mem, Word};
use crate::messages::envelope::Envelope;
use crate::messages::lease::Leased;
use crate::parking::Parking;
use crate::parking::detach_notice::Gone;
use crate::waiting::lock::{RawGuard, RawLock};
use crate::words::{BlockId, BlockKind, BlockState, EnvelopeId, Holder, Member, Owner};

/// Possible location of a message that both a dead member and a living thread were handling.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InDoubt {
    /// There is no such message.
    Nothing,
    /// A message that was sent to this ring, and may return to this ring only.
    Ring(BlockId),
    /// Several messages of several rings.
    Rings,
}

/// Operations that the arena needs from the layer that implements rings.
///
/// # Safety
/// `settle` assigns an envelope to the dead member only if no living process has it or can get it. `drain`
/// and `holder_gone` change only the words of the ring that they are called for. `contents` lists only
/// messages that are in that ring.
pub unsafe trait RingLayer: Send + Sync {
    /// Settles the intents of a dead member. `dead` is that member and the locations of its intents. `others`
    /// lists the intent words of all members not known to be dead, at the time of the call. Any number of
    /// processes may call this at once. Messages in doubt that belong to no living process then belong to the
    /// dead member, or are leased by it. Returns the messages that a living thread kept from being settled:
    /// call again later.
    fn settle(&self, arena: Arena, dead: (Member, &[Word]), others: &dyn Fn() -> Vec<Word>) -> InDoubt;

    /// Returns an envelope that a dead member leased to its queue, if its owner word is still `owner`.
    /// Changes no word of that queue, because this process may not hold it: a call of
    /// [`holder_gone`](Self::holder_gone) follows, if the dead member had a seat there.
    fn take_back(&self, arena: Arena, envelope: EnvelopeId, owner: Owner);

    /// Removes and drops every envelope in a ring that has no holders. One process may begin this and another
    /// may finish it.
    fn drain(&self, arena: Arena, memory: (Word, u64), block: BlockId);

    /// Calls `each` with every message that is in a ring or was returned to it. No living process holds that
    /// ring.
    fn contents(&self, arena: Arena, memory: (Word, u64), block: BlockId, each: &mut dyn FnMut(EnvelopeId));

    /// Records that a member that held this ring died or gives it up, or that a process never received the
    /// ring's handle, and wakes the sleepers. `memory` is the ring's place. This process holds the ring or
    /// recovers the dead member, whose seat remains in place meanwhile. Messages that the member had leased
    /// were [taken back](Self::take_back) before. Any number of processes may call this at once.
    fn holder_gone(&self, arena: Arena, memory: (Word, u64), block: BlockId, gone: Gone, pid: u32);

    /// Wakes all sleepers of a ring, under the same conditions. Called when a condition that they check has
    /// changed outside of the ring.
    fn wake(&self, arena: Arena, memory: (Word, u64), block: BlockId);
}

impl Arena {
    /// Returns the arena's words, to run [`Steps`](crate::mem::Steps) on.
    ///
    /// # Safety
    /// The caller changes words only by the protocols that they belong to, and only within memory that it
    /// holds.
    #[inline]
    pub unsafe fn words(&self) -> &'static (impl Mem + Copy + use<>) {
        self.map()
    }

    /// Returns the file of the arena, to pass to a child. The file stays open as long as the process lives.
    ///
    /// # Errors
    /// [`Error::Local`] if the arena has no file, [`Error::Os`] if no descriptor is available.
    ///
    /// # Safety
    /// The caller sends the file only to children that [`attach`](Self::attach) it. Reading, writing or
    /// mapping the file elsewhere gives access to all tensors of all processes. No descriptor of the same
    /// file may be closed in this process: that would drop its POSIX lock, one of two signs that the process
    /// is alive.
    pub unsafe fn fd(&self) -> Result<BorrowedFd<'static>> {
        self.file_to_hand_down()
    }

    /// Joins the arena in `fd`, and makes it the arena of this process.
    ///
    /// # Errors
    /// [`Error::NotAnArena`] or [`Error::Version`] if this build can't use the file, [`Error::ArenaFull`] if
    /// the arena has no free member slot, [`Error::Os`] if the file can't be mapped at its size.
    ///
    /// # Safety
    /// The file is an arena's, and was sent by a process of the same tree that got it from [`fd`](Self::fd).
    pub unsafe fn attach(fd: OwnedFd) -> Result<Self> {
        Self::attach_to(fd)
    }

    /// Defers [`attach`](Self::attach) until this process first needs an arena. `joined` is then called once,
    /// with this process's tag. The process begins with its own settings, not with its parent's: see
    /// [`children_inherit_settings`](Self::children_inherit_settings).
    ///
    /// # Safety
    /// Same as for [`attach`](Self::attach).
    #[inline]
    pub unsafe fn attach_later(fd: OwnedFd, joined: fn(Member)) {
        crate::setup::attach::put(fd, joined);
    }

    /// Returns `true` if this process has settings (sharing strategy, directory) that a child must take over
    /// at its start.
    pub fn children_inherit_settings() -> bool {
        crate::setup::strategy::is_set()
    }

    /// Declares a member dead. Called by the member's parent, after a pidfd or `waitid` reported the exit.
    /// Does nothing if another process has the slot by then.
    ///
    /// # Safety
    /// The process is dead: everything it holds is released and reused.
    pub unsafe fn declare_dead(&self, m: Member) {
        self.set_dead(m);
    }

    /// Returns an envelope that this process already owns.
    ///
    /// # Safety
    /// - `id` and `owner` come from a protocol that has just made this process the owner: taking the envelope
    ///   out of a ring, or [`Envelope::into_raw`].
    /// - They are made into an [`Envelope`] once.
    #[inline]
    pub unsafe fn envelope_from_raw(&self, id: EnvelopeId, owner: Owner) -> Envelope {
        debug_assert_eq!(owner.holder, Holder::Member(self.me().unwrap_or(Member::from_raw(0))));
        Envelope::new(*self, id.min(self.layout().envelopes - 1), owner.pack())
    }

    /// Returns an envelope that this process has already leased, or that stays in its queue while this
    /// process reads it.
    ///
    /// # Safety
    /// `id` and `owner` come from a protocol that has just made this process the leaseholder, and are made
    /// into a [`Leased`] once. Or they come from a protocol that keeps the message unchanged, whole and
    /// published until the [`Leased`] is dropped. That [`Leased`] is only read.
    pub unsafe fn lease_from_raw(&self, id: EnvelopeId, owner: Owner) -> Leased {
        Leased { arena: *self, id: id.min(self.layout().envelopes - 1), owner }
    }

    /// Takes over an envelope that another member passed to this one by its ID and owner word, at most once.
    ///
    /// # Errors
    /// [`Error::Stale`] if the envelope was taken back or never sent.
    ///
    /// # Safety
    /// The other member passed the envelope to this process only. That member does nothing with the envelope
    /// except taking it back, by this same function.
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

    /// Turns a held block, whose memory is initialized, into a ring. When the ring has no more holders, it is
    /// drained before it is freed.
    ///
    /// # Safety
    /// Only this process holds the block, and the memory is a ring for the ring layer
    /// ([`Arena::set_ring_layer`]).
    pub unsafe fn become_ring(&self, hold: &Hold) {
        let at = self.block_at(hold.block()).state;
        let state = BlockState { kind: BlockKind::Ring, ..BlockState::unpack(self.map().load(at)) };
        self.map().store(at, state.pack());
        self.holds_a_ring(hold);
    }
}

impl Envelope {
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
    /// [`Error::Forked`].
    ///
    /// # Safety
    /// The calling thread took the lock, has not released it since, and has no other guard of it.
    pub unsafe fn resume(&self, arena: Arena) -> Result<RawGuard<'_>> {
        Ok(self.held(arena.me()?))
    }
}
