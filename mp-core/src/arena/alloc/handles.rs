//! What this process holds: how many handles there are to each block, and in which seat of the block.
//!
//! Handles of one process share one seat. They are counted here, in memory of this process, so that cloning and
//! dropping a handle is one atomic addition without touching anything shared, and so that a block received twice
//! is one block.

use crate::arena::Arena;
use crate::arena::layout::SLAB_BLOCKS;
use crate::arena::waiting::giving_up::{self, Gone};
use crate::error::{Error, Result};
use crate::mem::{Mem, run_straight};
use crate::steps::{Release, Released, generation_of};
use crate::sync::shared::{AtomicU64, Ordering};
use crate::words::{Access, Attach, BlockId, EnvelopeId, Kind, Seat, SeatAt};

/// Handles and their seat: how many 31 bits, whether the block is a ring 1, seat 32. (A ring is notified of
/// the last handle. The block's state says so, too, in a word that others write all the time.)
const ONE: u64 = 1;
const RING: u64 = 1 << 31;
/// The block of a handle that was given to a message: none. Such a handle is not counted.
const NOWHERE: BlockId = BlockId::MAX;

/// The limit of handles, reached only by forgetting them without a drop: beyond it, more could overflow the
/// count.
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

/// A counted handle to a block: as long as it lives, the block does.
///
/// Cloning counts, dropping the last one gives this process's seat up; the block is freed when it has no
/// other holder. In a forked copy of the process, dropping does nothing: the copy holds nothing.
///
/// A handle keeps memory; it gives no access to it. The tensor that has it decides whether the caller may
/// read and write: there is one exclusive tensor of a block, which moves, however many handles there are.
pub struct Hold {
    arena: Arena,
    block: BlockId,
}

impl Hold {
    /// The arena it is in.
    #[inline]
    pub fn arena(&self) -> Arena {
        self.arena
    }

    /// Which block it is.
    #[inline]
    pub fn block(&self) -> BlockId {
        self.block
    }

    /// Takes the handle; what is left holds nothing.
    #[inline]
    pub(crate) fn take(&mut self) -> Self {
        let left = Self::nowhere(self.arena);
        std::mem::replace(self, left)
    }

    /// One that holds nothing.
    #[inline]
    pub(crate) const fn nowhere(arena: Arena) -> Self {
        Self { arena, block: NOWHERE }
    }

    /// Whether it holds nothing, because its seat is in a message.
    #[inline]
    pub fn is_nowhere(&self) -> bool {
        self.block == NOWHERE
    }

    /// Where the memory of its block is, and how many bytes there are: none, if it holds nothing, also because the process
    /// was forked.
    #[inline]
    pub(crate) fn memory(&self) -> (u64, u64) {
        if self.is_nowhere() || !self.arena.is_here() { (0, 0) } else { self.arena.data_of(self.block) }
    }

    /// Whether the block was never frozen or shared.
    pub(crate) fn was_never_opened(&self) -> bool {
        !self.is_nowhere() && (self.arena.kind_of(self.block) == Kind::Data)
    }

    /// Where it is counted.
    #[inline]
    fn entry(&self) -> Option<&AtomicU64> {
        self.arena.holds().get(self.block as usize)
    }

    /// How many handles this process has to the block. Others may come and go meanwhile.
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
        // As `Arc`: a new handle comes from an existing one, so that nothing needs to be ordered.
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
        let mut e = at.load(Ordering::Relaxed);
        loop {
            let next = if count(e) > 1 { e - ONE } else { 0 };
            match at.compare_exchange_weak(e, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if next == 0 => break,
                Ok(_) => return,
                Err(now) => e = now,
            }
        }
        self.arena.credit(self.block);
        self.arena.give_up_seat(self.block, e);
    }
}

impl Arena {
    /// The first handle of this process to a block that it has just claimed.
    pub(crate) fn first_hold(&self, block: BlockId, kind: Kind) -> Hold {
        let first = entry(kind == Kind::Ring, SeatAt::inline(0));
        self.holds()[block as usize].store(first, Ordering::Release);
        Hold { arena: *self, block }
    }

    /// Which allocation of its memory a block is in: another one each time that it is claimed. Of no block, and
    /// in a forked copy, none.
    #[inline]
    pub(crate) fn generation(&self, block: BlockId) -> u64 {
        if self.is_here() && (block as usize) < self.holds().len() {
            generation_of(self.map().load(self.block_at(block).link()))
        } else {
            0
        }
    }

    /// Whether this process has a handle to a block, in this generation. The block may be any number.
    pub(crate) fn is_held(&self, block: BlockId, generation: u64) -> bool {
        let counted = |at: &AtomicU64| count(at.load(Ordering::Acquire)) > 0;
        self.is_here()
            && self.holds().get(block as usize).is_some_and(counted)
            && self.generation(block) == generation
    }

    /// One more handle to a block that this process holds, if it is in this generation still.
    ///
    /// Safe against threads that drop the last handle meanwhile, and against a block that was freed and claimed again.
    ///
    /// The block may be any number.
    pub(crate) fn hold_again(&self, block: BlockId, generation: u64) -> Option<Hold> {
        let at = self.holds().get(block as usize)?;
        let mut now = at.load(Ordering::Acquire);
        loop {
            // Before it is counted: a handle to another tensor, however short-lived, would keep that tensor
            // from giving its seat away.
            if !(1..=MOST).contains(&count(now)) || !self.is_held(block, generation) {
                return None;
            }
            match at.compare_exchange_weak(now, now + ONE, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        // From here on the block is held, and its generation stays: this check is the one that counts.
        let hold = Hold { arena: *self, block };
        (self.generation(block) == generation).then_some(hold)
    }

    /// The block that this process has just made is a ring: it is told when the last handle goes.
    pub(in crate::arena) fn holds_a_ring(&self, hold: &Hold) {
        if let Some(at) = self.holds().get(hold.block as usize) {
            at.fetch_or(RING, Ordering::AcqRel);
        }
    }

    /// Gives up the seat that the last handle's entry names.
    fn give_up_seat(&self, block: BlockId, e: u64) {
        let Ok(me) = self.me() else { return };
        let Some(word) = self.seat_word(block, seat(e)) else { return };
        // A waiter of the ring may be its last holder now. The ring must be notified while this process holds
        // it.
        let is_told = e & RING != 0;
        let (at, m) = (self.block_at(block), *self.map());
        let releases = || {
            let release =
                Release::new(at, self.pages(), me, word, Seat::Member(me)).beside(at.beside(seat(e), word));
            if let Released::ToFree(state) = run_straight(release, &m) {
                self.finish_free(block, state);
            }
        };
        if !is_told {
            return releases();
        }
        // Waiters may look before the release, and sleep again.
        let says = || self.ring_holder_gone(block, Gone::Member(me), std::process::id());
        if giving_up::give_up(&m, Self::ASKED, says, releases) {
            self.tell_of_a_lost_holder();
        }
    }

    /// Takes over an envelope's seat as a handle of this process.
    ///
    /// The envelope is this process's. If the process holds the block already, the seat is just given up.
    #[inline(always)]
    pub(crate) fn adopt(&self, e: EnvelopeId, attach: Attach) -> Result<Hold> {
        self.adopt_seat(e, attach)?;
        Ok(self.adopted(attach))
    }

    /// The handle that [`adopt_seat`](Self::adopt_seat) has counted. That has several ends, and could return it through memory only, from
    /// where it would be [copied](crate::arena::messages::push).
    #[inline(always)]
    pub(in crate::arena) fn adopted(&self, attach: Attach) -> Hold {
        Hold { arena: *self, block: attach.block }
    }

    /// As [`adopt`](Self::adopt), but for the handle itself.
    #[inline(always)]
    pub(in crate::arena) fn adopt_seat(&self, e: EnvelopeId, attach: Attach) -> Result<()> {
        let me = self.me()?;
        let gone = || Error::Malformed(format!("an attachment of the message names no block: {attach:?}"));
        let Some(at) = self.existing(attach.block) else { return Err(gone()) };
        self.reach(at)?;
        let word = self.seat_word(attach.block, attach.seat).ok_or_else(gone)?;
        let mine = &self.holds()[attach.block as usize];
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
                self.touch(me, attach.block / SLAB_BLOCKS);
                if self.map().cas(word, Seat::Envelope(e).pack(), Seat::Member(me).pack()).is_err() {
                    return Err(gone());
                }
                seated = true;
            } else {
                // A ring is attached as an object, always.
                let ring =
                    attach.grant.access() == Access::Object && self.kind_of(attach.block) == Kind::Ring;
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
        // Held already, in another seat: this seat is superfluous. No need to check whether the block is
        // free.
        let extra = if seated { Seat::Member(me) } else { Seat::Envelope(e) };
        match self.map().cas(word, extra.pack(), Seat::Free.pack()) {
            Ok(()) => Ok(()),
            Err(_) => {
                drop(self.adopted(attach));
                Err(gone())
            }
        }
    }

    /// The seat of the only handle, which holds nothing any more then; `None` if there are others, which keep
    /// it.
    pub(crate) fn take_seat(&self, hold: &mut Hold) -> Option<SeatAt> {
        let at = hold.entry()?;
        let e = at.load(Ordering::Acquire);
        // One atomic step: a thread that upgrades a weak reference comes before it, and counts, or after it,
        // and finds nothing.
        if count(e) != 1 || at.compare_exchange(e, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return None;
        }
        self.credit(hold.block);
        hold.block = NOWHERE;
        Some(seat(e))
    }
}
