//! Processes of the arena.
//!
//! `membership` records members and detects their deaths. `intents` has the announcements of threads before
//! changes that take more than one access.
//!
//! # Slabs in which a member may hold something
//! Each member has a bit for each slab. It sets the bit **before** its first action in the slab that a
//! reclaim would have to undo. These actions are: taking a hint, claiming a block, taking a seat for itself,
//! and releasing the seat of a message or child object. (After the release, the member may have to free the
//! block.) The member never clears a bit, so its bits include every slab in which it may hold something, and
//! a reclaim reads no other slabs.
//!
//! | change | killed | consequence |
//! |---|---|---|
//! | the member sets its bit | after the bit, before the announced action | the reclaim reads 64 blocks without result |
//! | the reclaiming process clears all bits, when all blocks are reclaimed | half way | the next reclaiming process repeats the work for the remaining bits |
//!
//! For the same reason each member has a bit for each group of 64 envelopes. It sets the bit before it owns
//! or leases an envelope of the group, or announces that it may do so ([`TouchedGroups`]). It also sets the
//! bit before it takes hints of the group, or begins to fill or empty the group. A member that has had many
//! messages has many bits, and its recovery reads all envelopes of these groups.
//!
//! A reclaiming process sets its own bits for all slabs that it reads, since it takes over the blocks that it
//! finds. A recovering process sets the dead member's bits, since a block that loses its last holder is
//! claimed for that member.

use crate::arena::{Arena, view};
use crate::error::Result;
use crate::layout::{slab_count, used_groups};
use crate::mem::{Mem, Word};
use crate::steps::TouchedGroups;
use crate::words::{EnvelopeId, Member};

pub(crate) mod intents;
pub(crate) mod membership;

view! {
    /// Processes of an arena.
    pub struct Members;
}

impl Members {
    /// Calls `f` with the member tag of this process and the intent word of this thread's lane.
    ///
    /// `f` must not run user code, and must not call this function.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    #[inline]
    pub fn with_intent<R>(self, f: impl FnOnce(Member, Word) -> R) -> Result<R> {
        let me = self.me()?;
        Ok(intents::with(|lane| self.note_lane(me, lane), |lane| f(me, self.layout().intent(me, lane))))
    }
}

impl Members {
    /// Sets this process's bit for a slab. Must be called before the process holds a block or seat in the
    /// slab.
    #[inline]
    pub(crate) fn touch(self, me: Member, slab: u32) {
        let (at, bit) = (self.layout().touched(me.slot(), slab), 1 << (slab % 64));
        if self.map().load_relaxed(at) & bit == 0 {
            self.map().or(at, bit);
        }
    }

    /// Returns `true` if a member may have held something in a slab.
    pub(crate) fn has_touched(self, m: Member, slab: u32) -> bool {
        self.map().load(self.layout().touched(m.slot(), slab)) & 1 << (slab % 64) != 0
    }

    /// Calls `f` with each slab that a member in one of these slots has touched.
    pub(crate) fn each_touched_slab(self, slots: impl Iterator<Item = u32> + Clone, f: impl FnMut(u32)) {
        let words = |first| slots.clone().map(move |slot| self.layout().touched(slot, first));
        self.each_bit(slab_count(self.map()), words, f);
    }

    /// Returns the position of a member's bits for groups of envelopes.
    #[inline]
    pub fn touched_groups(self, m: Member) -> TouchedGroups {
        self.layout().touched_groups(m.slot())
    }

    /// Sets this process's bit for the group of an envelope. Must be called before the process owns or leases
    /// the envelope.
    pub(crate) fn touch_group_of(self, me: Member, e: EnvelopeId) {
        self.touched_groups(me).touch(self.map(), e);
    }

    /// Calls `f` with each group of envelopes that a member in one of these slots has touched.
    pub(crate) fn each_touched_group(self, slots: impl Iterator<Item = u32> + Clone, f: impl FnMut(u32)) {
        let words = |first| slots.clone().map(move |slot| self.layout().touched_groups(slot).word(first));
        self.each_bit(used_groups(self.map(), self.layout()), words, f);
    }

    /// Calls `f` with each number whose bit is set. `words(n)` returns the words that have bits for the
    /// numbers `n` to `n + 63`, and the last of these numbers may be `end` or larger.
    fn each_bit<W: Iterator<Item = Word>>(self, end: u32, words: impl Fn(u32) -> W, mut f: impl FnMut(u32)) {
        for first in (0..end).step_by(64) {
            let mut bits = words(first).fold(0, |bits, word| bits | self.map().load(word));
            while bits != 0 {
                f(first + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    /// Clears all bits of a dead member, after everything that the member held was reclaimed.
    pub(crate) fn forget_touched(self, slot: u32) {
        // One more than the count: the member may have died while it added that slab.
        let slabs = (0..=slab_count(self.map())).step_by(64).map(|slab| self.layout().touched(slot, slab));
        let used = 0..used_groups(self.map(), self.layout());
        let groups = used.step_by(64).map(|group| self.layout().touched_groups(slot).word(group));
        for at in slabs.chain(groups) {
            if self.map().load_relaxed(at) != 0 {
                self.map().store(at, 0);
            }
        }
    }
}
