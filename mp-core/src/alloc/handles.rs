//! Handles of this process: for each block, the number of handles, and the seat that these handles share.
//!
//! All handles of one process to a block share one seat of the block. The handles are counted in private
//! memory of this process. So cloning and dropping a handle is one atomic addition that touches no shared
//! memory, and a block that is received twice is held only once.

use crate::alloc::Allocator;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::SLAB_BLOCKS;
use crate::mem::{Mem, Word, run_straight};
use crate::members::Members;
use crate::parking::Notices;
use crate::parking::detach_notice::{self, DetachedProcess, LastDetached};
use crate::setup::Backing;
use crate::steps::{INLINE_SEATS, ReleaseOutcome, link_of};
use crate::sync::shared::{AtomicU64, Ordering};
use crate::words::{Access, Attachment, BlockId, BlockKind, EnvelopeId, Seat, SeatAt};

/// Value that counts a single handle in an entry of the table of held blocks. The entry of a block packs the
/// number of handles (31 bits), a [ring flag](RING) (1 bit) and the seat (32 bits).
const ONE: u64 = 1;
/// Ring flag of an entry, set for a ring, whose waiters are notified when the last handle is dropped. The
/// flag repeats information of the block's state word. That word is slow to read, because other processes
/// write it often.
const RING: u64 = 1 << 31;
/// Block number of a handle whose seat was moved into a message. The handle holds nothing and is not counted.
const NOWHERE: BlockId = BlockId::MAX;

/// Maximum number of handles, reached only by forgetting handles without dropping them. More could overflow
/// the count.
const MOST: u32 = 1 << 30;
const fn entry(ring: bool, seat: SeatAt) -> u64 {
    ONE | if ring { RING } else { 0 } | (seat.raw() as u64) << 32
}
const fn count(e: u64) -> u32 {
    (e & (RING - 1)) as u32
}
const fn seat(e: u64) -> SeatAt {
    SeatAt::from_raw((e >> 32) as u32)
}

/// Counted handle to a block. The block lives at least as long as the handle.
///
/// Cloning increments the count. Dropping the last handle releases this process's seat, and the block is
/// freed if it has no other holder. In a forked child, dropping does nothing, because the child holds
/// nothing.
///
/// A handle keeps memory alive, but gives no access to it. The tensor that owns the handle decides whether
/// the caller may read and write. For example, only one exclusive tensor of a block exists at a time, even if
/// the block has several handles.
pub struct Hold {
    arena: Arena,
    block: BlockId,
}

impl Hold {
    /// Returns the arena of the block.
    #[inline]
    pub fn arena(&self) -> Arena {
        self.arena
    }

    /// Returns the ID of the block.
    #[inline]
    pub fn block(&self) -> BlockId {
        self.block
    }

    /// Moves the handle out of `self`, and leaves a handle that holds nothing.
    #[inline]
    pub(crate) fn take(&mut self) -> Self {
        let left = Self::nowhere(self.arena);
        std::mem::replace(self, left)
    }

    /// Returns a handle that holds nothing.
    #[inline]
    pub(crate) const fn nowhere(arena: Arena) -> Self {
        Self { arena, block: NOWHERE }
    }

    /// Returns `true` if the handle holds nothing, because its seat is in a message.
    #[inline]
    pub fn is_nowhere(&self) -> bool {
        self.block == NOWHERE
    }

    /// Returns the offset and the length in bytes of the block's memory. The length is 0 if the handle holds
    /// nothing, or if the process was forked.
    #[inline]
    pub(crate) fn memory(&self) -> (u64, u64) {
        if self.is_nowhere() || !self.arena.is_here() {
            (0, 0)
        } else {
            Blocks(self.arena).data_of(self.block)
        }
    }

    /// Sets the ring flag of the block's entry, after this process has turned the block into a ring.
    /// Waiters of a ring are notified when this process drops its last handle.
    pub(crate) fn note_ring(&self) {
        if let Some(at) = self.entry() {
            at.fetch_or(RING, Ordering::AcqRel);
        }
    }

    /// Returns the first word of the block's memory, and its length in bytes: 0 if the handle holds nothing.
    pub fn words(&self) -> (Word, u64) {
        let (at, len) = self.memory();
        (Word::at(at), len)
    }

    /// Returns the mark of the block, never 0: `block + 1` in 24 bits, the generation in 40 bits. With the
    /// mark, other processes may [check](Blocks::lives) whether the block still lives.
    #[inline]
    pub fn mark(&self) -> u64 {
        Blocks(self.arena).mark_of(self.block)
    }

    /// Returns the number of other processes, messages and child objects that hold the block. A dead member's
    /// seat counts until the member is recovered. After that it no longer counts, even before the reclaim.
    pub fn other_holders(&self) -> usize {
        let mut others = 0;
        if let (false, Ok(me)) = (self.is_nowhere(), self.arena.me()) {
            Blocks(self.arena)
                .each_holder(self.block, |holder| others += usize::from(holder != Seat::Member(me)));
        }
        others
    }

    /// Returns `true` if no other process, message or child object holds the block, counted like
    /// [`other_holders`](Self::other_holders).
    pub(crate) fn is_only_holder(&self) -> bool {
        let Ok(me) = self.arena.me() else { return false };
        // Usually all seats are free or this process's, and no member must be checked.
        let (at, mine, free) =
            (Blocks(self.arena).block_at(self.block), Seat::Member(me).pack(), Seat::Free.pack());
        let is_no_others = |i| {
            let seat = self.arena.map().load(at.seat(i));
            seat == free || seat == mine
        };
        (0..INLINE_SEATS).all(is_no_others) && link_of(self.arena.map().load(at.link())).is_none()
            || self.other_holders() == 0
    }

    /// Returns `true` if no other process or message holds this ring. `last` is the ring's record of the
    /// process that last announced its release of the ring.
    ///
    /// If the result is `false`, each process that is about to release the ring will notify the ring's
    /// waiters. The waiters include tasks, and threads that wait for several objects. A caller that sleeps
    /// afterwards must announce itself as a waiter before this call.
    #[cold]
    pub fn is_alone_at(&self, last: LastDetached) -> bool {
        let has = |member| Blocks(self.arena).ring_is_held_by(self.block, member);
        detach_notice::is_alone(self.arena.map(), detach_notice::ASKED, last, has, || {
            self.other_holders() == 0
        })
    }

    /// Returns `true` if the block was never frozen or shared.
    pub(crate) fn was_never_opened(&self) -> bool {
        !self.is_nowhere() && (Blocks(self.arena).kind_of(self.block) == BlockKind::Data)
    }

    /// Returns the block's entry in the table of this process's holds.
    #[inline]
    fn entry(&self) -> Option<&AtomicU64> {
        self.arena.holds().get(self.block as usize)
    }

    /// Returns the number of handles of this process to the block. Other threads may change the number at any
    /// time.
    pub fn count(&self) -> u32 {
        self.entry().map_or(0, |at| count(at.load(Ordering::Acquire)))
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "block {} (held {} times here)", self.block, self.count())
    }
}

impl Clone for Hold {
    #[inline]
    fn clone(&self) -> Self {
        // Same as in `Arc`: a new handle is made from an existing handle, so nothing needs to be ordered.
        if let Some(at) = self.entry()
            && count(at.fetch_add(ONE, Ordering::Relaxed)) > MOST
        {
            std::process::abort();
        }
        Self { arena: self.arena, block: self.block }
    }
}

impl Drop for Hold {
    #[inline]
    fn drop(&mut self) {
        if !self.arena.is_here() {
            return;
        }
        let Some(at) = self.entry() else { return };
        let less = |e| Some(if count(e) > 1 { e - ONE } else { 0 });
        if let Ok(e) = at.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less)
            && count(e) <= 1
        {
            Allocator(self.arena).credit(self.block);
            Allocator(self.arena).give_up_seat(self.block, e);
        }
    }
}

impl Allocator {
    /// Returns the first handle of this process to a block. The process has just claimed the block.
    pub(crate) fn first_hold(self, block: BlockId, kind: BlockKind) -> Hold {
        let first = entry(kind == BlockKind::Ring, SeatAt::inline(0));
        self.0.holds()[block as usize].store(first, Ordering::Release);
        Hold { arena: self.0, block }
    }

    /// Returns `true` if this process has a handle to a block of this generation. `block` may be any number.
    pub(crate) fn is_held(self, block: BlockId, generation: u64) -> bool {
        let counted = |at: &AtomicU64| count(at.load(Ordering::Acquire)) > 0;
        self.0.is_here()
            && self.0.holds().get(block as usize).is_some_and(counted)
            && Blocks(self.0).generation(block) == generation
    }

    /// Returns a new handle to a block that this process holds, if the block still has this generation.
    ///
    /// Safe against threads that drop the last handle at the same time, and against a block that was freed
    /// and claimed again. `block` may be any number.
    pub(crate) fn hold_again(self, block: BlockId, generation: u64) -> Option<Hold> {
        let at = self.0.holds().get(block as usize)?;
        // Checked before counting: a handle to another tensor, even for a moment, would keep that tensor from
        // moving its seat into a message.
        let more =
            |now| ((1..=MOST).contains(&count(now)) && self.is_held(block, generation)).then_some(now + ONE);
        at.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        // From here on the block is held, so its generation can't change: this check decides.
        let hold = Hold { arena: self.0, block };
        (Blocks(self.0).generation(block) == generation).then_some(hold)
    }

    /// Releases this process's seat of a block, after the last handle was dropped. `e` is the entry of the
    /// block in the table of held blocks, which contains the seat.
    fn give_up_seat(self, block: BlockId, e: u64) {
        let Ok(me) = self.me() else { return };
        let Some(word) = Blocks(self.0).seat_word(block, seat(e)) else { return };
        // After the release, a waiter may be the ring's only holder. So waiters are notified, and this must
        // happen while this process still holds the ring.
        let wakes_waiters = e & RING != 0;
        let (at, m) = (Blocks(self.0).block_at(block), *self.map());
        let releases = || {
            let release = Blocks(self.0).release(block, me, (word, Seat::Member(me)));
            let release = release.neighbor(at.neighbor(seat(e), word));
            if let ReleaseOutcome::MustFree(state) = run_straight(release, &m) {
                self.finish_free(block, state);
            }
        };
        if !wakes_waiters {
            return releases();
        }
        // A waiter may check after `says` and before the release, and sleep again. Then `give_up` returns
        // `true`.
        let says = || Blocks(self.0).ring_holder_gone(block, DetachedProcess::Member(me), std::process::id());
        if detach_notice::give_up(&m, detach_notice::ASKED, says, releases) {
            Notices(self.0).tell_of_a_lost_holder();
        }
    }

    /// Moves a seat of an envelope to this process, and returns a handle to the block. This process must own
    /// the envelope. If this process already holds the block, the envelope's seat is released instead.
    #[inline(always)]
    pub(crate) fn adopt(self, e: EnvelopeId, attach: Attachment) -> Result<Hold> {
        self.adopt_seat(e, attach)?;
        Ok(self.adopted(attach))
    }

    /// Returns the handle that [`adopt_seat`](Self::adopt_seat) has counted.
    ///
    /// This is a separate function for speed. `adopt_seat` has several exits, so the compiler would return
    /// the handle through memory and copy it from there (`transport::push`).
    #[inline(always)]
    pub(crate) fn adopted(self, attach: Attachment) -> Hold {
        Hold { arena: self.0, block: attach.block }
    }

    /// Same as [`adopt`](Self::adopt), but does not return the handle.
    #[inline(always)]
    pub(crate) fn adopt_seat(self, e: EnvelopeId, attach: Attachment) -> Result<()> {
        let me = self.me()?;
        let gone = || Error::Malformed(format!("an attachment of the message names no block: {attach:?}"));
        let Some((at, _)) = Blocks(self.0).existing(attach.block) else { return Err(gone()) };
        Backing(self.0).reach(at)?;
        let word = Blocks(self.0).seat_word(attach.block, attach.seat).ok_or_else(gone)?;
        let mine = &self.0.holds()[attach.block as usize];
        let mut seated = false;
        let mut now = mine.load(Ordering::Acquire);
        loop {
            if count(now) > MOST {
                return Err(Error::LimitExceeded(
                    "too many handles to one block in this process: drop some".into(),
                ));
            }
            if count(now) > 0 {
                match mine.compare_exchange_weak(now, now + ONE, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break,
                    Err(other) => now = other,
                }
            } else if !seated {
                Members(self.0).touch(me, attach.block / SLAB_BLOCKS);
                if self.map().cas(word, Seat::Envelope(e).pack(), Seat::Member(me).pack()).is_err() {
                    return Err(gone());
                }
                seated = true;
            } else {
                // A ring is always attached as an object.
                let ring = attach.grant.access() == Access::Object
                    && Blocks(self.0).kind_of(attach.block) == BlockKind::Ring;
                let first = entry(ring, attach.seat);
                match mine.compare_exchange_weak(now, first, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        self.charge(attach.block);
                        return Ok(());
                    }
                    Err(other) => now = other,
                }
            }
        }
        // This process already holds the block in another seat, so this seat is released. No check whether
        // the block is free: it has a holder.
        let extra = if seated { Seat::Member(me) } else { Seat::Envelope(e) };
        match self.map().cas(word, extra.pack(), Seat::Free.pack()) {
            Ok(()) => Ok(()),
            Err(_) => {
                drop(self.adopted(attach));
                Err(gone())
            }
        }
    }

    /// Takes the seat out of the handle, which then holds nothing. Returns `None` if this process has other
    /// handles to the block, which keep the seat.
    pub(crate) fn take_seat(self, hold: &mut Hold) -> Option<SeatAt> {
        let at = hold.entry()?;
        let e = at.load(Ordering::Acquire);
        // One atomic step: a thread that upgrades a weak reference either precedes it and is counted, or
        // follows it and finds no handle.
        if count(e) != 1 || at.compare_exchange(e, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return None;
        }
        self.credit(hold.block);
        hold.block = NOWHERE;
        Some(seat(e))
    }
}
