//! Releasing what a dead member held.
//!
//! One sweeper at a time for each dead member; if it dies as well, the next one starts again from the beginning, and
//! every step of it may be done twice:
//!
//! 1. the redo lock, if the dead member held it: completed and let go;
//! 2. the intents of its threads: each names the one envelope whose owner may be in doubt (the ring layer decides);
//! 3. the envelopes it owned: taken over by the sweeper, then emptied;
//! 4. the blocks: what it was claiming or freeing is taken over and freed; the seats that name it are given up; a
//!    live block without seats (it died between giving up the last one and freeing) is freed;
//! 5. free blocks and envelopes whose hint was lost get it back;
//! 6. the slot is free again.
//!
//! It looks at every block once, some 10 ms for a million of them: a member keeps no list of what it holds.

use std::sync::OnceLock;

use super::class::blocks_of;
use super::layout::{SLAB_BLOCKS, control};
use super::member::{Presence, Tenancy};
use super::{Arena, Hold};
use crate::error::Result;
use crate::mem::{Mem, Word, run};
use crate::steps::{FreeCheck, INLINE_SEATS, Plan, Released, link_of};
use crate::words::{BlockId, BlockState, EnvelopeId, Holder, Kind, Life, Member, Owner, Seat};

/// What this layer needs from the one that knows rings.
pub trait RingLayer: Send + Sync {
    /// Settles the intents of a dead member. `others` are the intent words of all members not known to be dead. Calls
    /// `taken` with each envelope that it took over. `false`: something live is in the way, come back later.
    fn settle(&self, arena: Arena, dead: &[Word], others: &[Word], taken: &mut dyn FnMut(EnvelopeId))
    -> bool;

    /// Takes every envelope out of a ring that nobody holds any more, and drops it. May be begun by one process and ended
    /// by another.
    fn drain(&self, arena: Arena, memory: (Word, u64), block: BlockId);

    /// A member that held this ring died; its sleepers should look again. `memory` is where the ring is.
    fn holder_died(&self, arena: Arena, memory: (Word, u64), block: BlockId, dead: Member, pid: u32);
}

static RINGS: OnceLock<&'static dyn RingLayer> = OnceLock::new();

/// The empty plan: completes what a dead holder of the redo lock began.
struct Recover;
impl Plan for Recover {
    fn reads(&self) -> &[Word] {
        &[]
    }
    fn writes(&self, _: &[u64]) -> Vec<(Word, u64)> {
        Vec::new()
    }
}

impl Arena {
    /// Tells this layer about the one that knows rings, before the process uses its first ring.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn set_ring_layer(&self, rings: &'static dyn RingLayer) -> Result<()> {
        self.note_rings(self.me()?);
        _ = RINGS.set(rings);
        Ok(())
    }

    pub(crate) fn finalize_ring(&self, block: BlockId) {
        if let Some(rings) = RINGS.get() {
            let (at, len) = self.data_of(block);
            rings.drain(*self, (Word::at(at), len), block);
        }
    }

    /// Looks for dead members and sweeps them; how many were swept.
    ///
    /// Cheap when nobody died (1–3 µs a member). Waiting functions call it every now and then, and parents call it
    /// when a child has ended, so that there is rarely a reason to call it oneself.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn sweep(&self) -> Result<usize> {
        let me = self.me()?;
        let mut swept = 0;
        for (slot, t) in self.used_slots() {
            let member = Member::new(slot, t.epoch);
            if member == me || t.presence == Presence::Free {
                continue;
            }
            if self.is_dead(member) && self.sweep_member(slot, me) {
                swept += 1;
            }
        }
        Ok(swept)
    }

    /// Sweeps one slot; `false` if it isn't to be swept, or must be swept again later.
    fn sweep_member(&self, slot: u32, me: Member) -> bool {
        let t = self.tenancy(slot);
        let dead = Member::new(slot, t.epoch);
        let to_sweep = match t.presence {
            Presence::Dead => true,
            Presence::Sweeping(by) => by != me && self.is_dead(by),
            Presence::Free | Presence::Live => false,
        };
        if !to_sweep || self.uses_rings(dead) && RINGS.get().is_none() {
            return false;
        }
        let mine = Tenancy { presence: Presence::Sweeping(me), epoch: t.epoch };
        if !self.change_tenancy(slot, t, mine) {
            return false;
        }
        let pid = self.pid_of(dead);
        if self.map().load(Word::at(control::REDO)) == Seat::Member(dead).pack() {
            self.redo(me, Recover);
        }
        let later = !self.settle_intents(dead);
        self.sweep_envelopes(dead, me);
        if later {
            // The ring that is in doubt must stay: so do the seats.
            self.change_tenancy(slot, mine, Tenancy { presence: Presence::Dead, ..mine });
            return false;
        }
        self.sweep_blocks(dead, me, pid);
        self.map().add(Word::at(control::DEATHS), 1);
        self.change_tenancy(slot, mine, Tenancy { presence: Presence::Free, ..mine })
    }

    fn settle_intents(&self, dead: Member) -> bool {
        let Some(rings) = RINGS.get() else { return true };
        let intents: Vec<_> = self.intents(dead).filter(|&w| self.map().load(w) != 0).collect();
        if intents.is_empty() {
            return true;
        }
        let others: Vec<_> = self
            .used_slots()
            .filter(|(_, t)| t.presence == Presence::Live)
            .flat_map(|(slot, t)| self.intents(Member::new(slot, t.epoch)))
            .collect();
        let mut taken = Vec::new();
        let done = rings.settle(*self, &intents, &others, &mut |e| taken.push(e));
        for e in taken {
            self.release_taken(e);
        }
        done
    }

    /// Empties and frees an envelope that this process owns.
    fn release_taken(&self, e: EnvelopeId) {
        let owner = Owner::unpack(self.map().load(self.owner_words().of(e)));
        self.empty_envelope(e);
        self.free_envelope(e, owner);
    }

    fn sweep_envelopes(&self, dead: Member, me: Member) {
        for e in 0..self.map().load(Word::at(control::ENVELOPES)) as u32 {
            let word = self.owner_words().of(e);
            let found = self.map().load(word);
            let owner = Owner::unpack(found);
            match owner.holder {
                Holder::Member(m) if m == dead => {
                    // Ours first: if we die in it, whoever sweeps us finds it.
                    let mine = owner.then(Holder::Member(me));
                    if self.map().cas(word, found, mine.pack()).is_ok() {
                        self.release_taken(e);
                    }
                }
                Holder::Free => self.hint_envelope(e),
                Holder::Member(_) | Holder::Queued => {}
            }
        }
    }

    fn sweep_blocks(&self, dead: Member, me: Member, pid: u32) {
        for slab in 0..self.slab_count() {
            let Some((class, _)) = self.slab(slab) else { continue };
            for i in 0..blocks_of(class) {
                self.sweep_block(slab * SLAB_BLOCKS + i, dead, me, pid);
            }
        }
    }

    fn sweep_block(&self, block: BlockId, dead: Member, me: Member, pid: u32) {
        let at = self.block_at(block);
        let found = self.map().load(at.state);
        let state = BlockState::unpack(found);
        match state.life {
            Life::Free => self.hint_free(block),
            Life::Busy(m) if m == dead => {
                let mine = state.with(Life::Busy(me));
                if self.map().cas(at.state, found, mine.pack()).is_ok() {
                    // It may have died before it cleared its seat, or after it set one.
                    for i in 0..INLINE_SEATS {
                        self.map().store(at.seat(i), Seat::Free.pack());
                    }
                    self.finish_free(block, mine);
                }
            }
            Life::Busy(_) => {}
            Life::Live => {
                let mut held = false;
                let mut died = false;
                self.each_seat(block, |seat| match Seat::unpack(self.map().load(seat)) {
                    Seat::Free => {}
                    Seat::Member(m) if m == dead => {
                        died = true;
                        held |= self.give_up_dead_seat(block, state.kind, seat, dead);
                    }
                    _ => held = true,
                });
                if state.kind == Kind::Ring
                    && died
                    && let Some(rings) = RINGS.get()
                {
                    let (at, len) = self.data_of(block);
                    rings.holder_died(*self, (Word::at(at), len), block, dead, pid);
                }
                if !held
                    && let Released::ToFree(state) = run(FreeCheck::new(at, self.pages(), me), self.map())
                {
                    self.finish_free(block, state);
                }
            }
        }
    }

    /// Frees the seat of a dead member; a page of seats that it had linked already goes over to its block (`true`).
    fn give_up_dead_seat(&self, block: BlockId, kind: Kind, seat: Word, dead: Member) -> bool {
        let owner = if kind == Kind::Seats { self.page_is_linked(block) } else { None };
        let next = owner.map_or(Seat::Free, Seat::Block);
        self.map().cas(seat, Seat::Member(dead).pack(), next.pack()).is_ok() && owner.is_some()
    }

    /// Calls `f` with each seat word of a block.
    fn each_seat(&self, block: BlockId, mut f: impl FnMut(Word)) {
        let at = self.block_at(block);
        (0..INLINE_SEATS).for_each(|i| f(at.seat(i)));
        let mut link = self.map().load(at.link());
        while let Some(page) = link_of(link).filter(|&p| self.block_exists(p)) {
            let first = Word::at(self.data_of(page).0);
            (0..u64::from(at.per_page)).for_each(|i| f(first.plus(2 + i)));
            link = self.map().load(first.plus(1));
        }
    }

    /// How many other processes and messages hold a block, besides this process.
    pub fn other_holders(&self, hold: &Hold) -> usize {
        let me = self.me().ok().map(|me| Seat::Member(me).pack());
        let mut others = 0;
        self.each_seat(hold.block(), |word| {
            let seat = self.map().load(word);
            others += usize::from(seat != 0 && Some(seat) != me);
        });
        others
    }
}
