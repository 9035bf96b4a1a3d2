//! Sweep: release of everything that dead members held.
//!
//! First the dead members are visited (`visit`): any number of processes at once recover everything that
//! others wait for. Then each dead member has one sweeper, which releases its memory, and for which no
//! process waits. If the sweeper dies as well, the next one starts again from the beginning, and every step
//! may be done twice. All members to be swept are swept in one pass:
//!
//! 1. the multi-word update that one of them had begun, if no process has completed it;
//! 2. the envelopes that they owned: taken over by the sweeper, then emptied;
//! 3. the blocks that they were claiming or freeing, and blocks that visitors have claimed for them: taken
//!    over and freed. Their seats, which by now are in pages of seats only, are released. (A live block
//!    without seats, which may be a queue, stays: visitors have handled all that existed, and a process that
//!    has released the last seat since then handles the block itself.)
//! 4. hints of free blocks and envelopes that were lost: set again;
//! 5. their slots: freed.
//!
//! The sweep visits the blocks in slabs that a dead member has touched (`touched`), so its cost depends on
//! the actions of the dead members, not on the contents of the arena. It visits all envelopes that were ever
//! in use at once: recording them would slow each message, and there are rarely many.

use std::sync::OnceLock;

use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::contracts::RingLayer;
use crate::error::Result;
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, run};
use crate::parking::POLL_INTERVAL;
use crate::parking::detach_notice::Gone;
use crate::process::mutex::Mutex;
use crate::process::{GENERATIONS, PerProcess, SetOnce};
use crate::steps::{INLINE_SEATS, PAGE_HEADER, ReleaseOutcome, ReleaseSeat, UpdatePlan, link_of, page_next};
use crate::sync::shared::{AtomicU64, Ordering};
use crate::sys::memory;
use crate::words::{
    BlockId, BlockKind, BlockLife, BlockState, EnvelopeId, Holder, Member, Owner, Presence, Seat, Tenancy,
};

/// Maximum number of pages of seats that a walk follows. More mean that the links form a cycle.
const MOST_PAGES: u32 = 1 << 16;

/// Maximum number of visits of a process if others visit at the same time. After that the dead members'
/// memory is freed a little later.
const ATTEMPTS: u32 = 4;

/// The ring layer, in a program that is linked with it.
// fork: code, which a child has as well.
pub(crate) static RINGS: SetOnce<&'static dyn RingLayer> = SetOnce::new();

/// Function that this process calls before it sweeps: it checks the envelopes promised to processes that are
/// not members yet.
static PROMISES: PerProcess<OnceLock<fn()>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

/// Function that this process calls after members were swept, and the number of swept members at its last
/// call.
static ON_DEATHS: PerProcess<OnceLock<fn()>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);
static DEATHS_SEEN: PerProcess<AtomicU64> = PerProcess::new([const { AtomicU64::new(0) }; GENERATIONS]);

/// Calls the hook, in one thread of this process, if members were swept since its last call.
fn tell_of_deaths(deaths: u64) {
    if DEATHS_SEEN.load(Ordering::Relaxed) != deaths
        && DEATHS_SEEN.swap(deaths, Ordering::Relaxed) != deaths
        && let Some(hook) = ON_DEATHS.get()
    {
        hook();
    }
}

/// Serializes the visits of this process's threads: a process has one word to announce the members that it
/// visits.
static VISITS: PerProcess<Mutex<()>> = PerProcess::new([const { Mutex::new(()) }; GENERATIONS]);

/// The empty plan: completes an update that another process had begun.
struct Complete;
impl UpdatePlan for Complete {
    fn reads(&self) -> &[Word] {
        &[]
    }
    fn writes(&self, _: &[u64]) -> Vec<(usize, u64)> {
        Vec::new()
    }
    fn exclusive(&self) -> bool {
        false
    }
}

/// A dead member that this process visits or sweeps.
#[derive(Clone, Copy)]
pub(crate) struct Dead {
    pub(crate) member: Member,
    pub(crate) pid: u32,
    pub(crate) epoch: u32,
}

impl Arena {
    /// Registers the ring layer, before this process joins an arena. With it, the process can release what
    /// other processes had in queues, even if it uses none itself. The layer that is registered first stays.
    pub fn register_ring_layer(rings: &'static &'static dyn RingLayer) {
        RINGS.set_static(rings);
    }

    /// Same as [`register_ring_layer`](Self::register_ring_layer), for a process that is already a member,
    /// before it uses its first ring. For platforms on which no function runs before `main`.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn set_ring_layer(&self, rings: &'static &'static dyn RingLayer) -> Result<()> {
        // Before it can access a ring.
        self.note_rings(self.me()?);
        Self::register_ring_layer(rings);
        Ok(())
    }

    /// Returns `true` if this process has a ring layer.
    pub(crate) fn knows_rings() -> bool {
        RINGS.get().is_some()
    }

    /// Sets a function that each sweep of this process calls first.
    pub(crate) fn before_sweeps(look: fn()) {
        _ = PROMISES.set(look);
    }

    /// Drains a ring that is about to be freed. Returns `false` if this process has no ring layer.
    pub(crate) fn finalize_ring(&self, block: BlockId) -> bool {
        let Some(rings) = RINGS.get() else {
            // Only a process with a ring layer may sweep this process.
            if let Ok(me) = self.me() {
                self.note_rings(me);
            }
            return false;
        };
        let (at, len) = self.data_of(block);
        rings.drain(*self, (Word::at(at), len), block);
        true
    }

    /// Records in a ring, which this process holds, that a holder is dead, releases it, or never received it.
    pub(crate) fn ring_holder_gone(&self, block: BlockId, gone: Gone, pid: u32) {
        if let Some(rings) = RINGS.get() {
            let (at, len) = self.data_of(block);
            rings.holder_gone(*self, (Word::at(at), len), block, gone, pid);
        }
    }

    /// Wakes the sleepers of a ring that is held by a dead member, which this process visits.
    pub(crate) fn wake_ring(&self, block: BlockId) {
        if let Some(rings) = RINGS.get() {
            let (at, len) = self.data_of(block);
            rings.wake(*self, (Word::at(at), len), block);
        }
    }

    /// Finds dead members and sweeps them. Returns the number of swept members.
    ///
    /// Cheap when no member died (1–3 µs per member, more with hundreds of members). Waiting functions call
    /// [`sweep_if_due`](Self::sweep_if_due), and parents call this after a child has ended, so programs
    /// rarely need to call it.
    ///
    /// A process whose program is not linked with the layer of queues (`mp-queue`) does not sweep dead
    /// members whose program was. Members with that layer free their memory.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn sweep(&self) -> Result<usize> {
        let me = self.me()?;
        if let Some(look) = PROMISES.get() {
            look();
        }
        let swept = self.sweep_members(me);
        self.end_clocks();
        tell_of_deaths(self.deaths());
        Ok(swept)
    }

    /// Same as [`sweep`](Self::sweep), for the memory of dead members only.
    fn sweep_members(&self, me: Member) -> usize {
        let dead: Vec<Dead> = self
            .used_slots()
            .filter(|(_, t)| t.presence != Presence::Free)
            .map(|(slot, t)| (Member::new(slot, t.epoch), t.epoch))
            .filter(|&(member, _)| member != me && self.is_dead(member))
            // A process without a ring layer leaves members that had one to others.
            .filter(|&(member, _)| !self.knew_rings(member) || Self::knows_rings())
            .map(|(member, epoch)| Dead { member, pid: self.pid_of(member), epoch })
            .collect();
        if dead.is_empty() {
            return 0;
        }
        let _visits = VISITS.lock();
        let mut swept = 0;
        for _ in 0..ATTEMPTS {
            let (mut to_sweep, disturbed) = self.visit(&dead, me);
            to_sweep.extend(dead.iter().filter(|d| self.take_over(d, me)));
            swept += self.sweep_all(&to_sweep, me);
            if !disturbed {
                break;
            }
            std::thread::yield_now();
        }
        swept
    }

    /// Returns the number of members swept since the arena was created.
    fn deaths(&self) -> u64 {
        self.map().load(Word::at(control::DEATHS))
    }

    /// Sets a function that this process calls when it detects that any process has swept members since its
    /// last check. It checks in each [`sweep`](Self::sweep), and in waits of all kinds. For caches of objects
    /// that only dead members held.
    ///
    /// The thread that checks calls the hook, holding no lock of this crate, and waits until it returns. Only
    /// the first call sets a hook. A forked child may set its own.
    pub fn on_deaths(hook: fn()) {
        _ = ON_DEATHS.set(hook);
    }

    /// Same as [`sweep`](Self::sweep), unless a member has swept within the last 100 ms: a thousand waiting
    /// processes sweep no more often than one.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn sweep_if_due(&self) -> Result<usize> {
        let me = self.me()?;
        self.hold_extents();
        tell_of_deaths(self.deaths());
        let (at, now) = (Word::at(control::LOOKED), memory::monotonic_ms());
        let last = self.map().load(at);
        let due = now.saturating_sub(last) >= POLL_INTERVAL.as_millis() as u64;
        if !due || self.map().cas(at, last, now).is_err() {
            return Ok(0);
        }
        self.trim_idle_envelopes(me);
        self.sweep()
    }

    /// Returns `true` if this process, which has no ring layer, leaves some dead members to members that have
    /// one.
    #[cfg(feature = "inject")]
    pub(crate) fn leaves_some_to_others(&self) -> bool {
        let (Ok(me), None) = (self.me(), RINGS.get()) else { return false };
        let members = self.used_slots().filter(|(_, t)| t.presence != Presence::Free);
        let mut others = members.map(|(slot, t)| Member::new(slot, t.epoch)).filter(|&member| member != me);
        others.any(|member| self.knew_rings(member) && self.is_dead(member))
    }

    /// Becomes the sweeper of a member whose sweeper is dead.
    fn take_over(&self, dead: &Dead, me: Member) -> bool {
        let t = self.tenancy(dead.member.slot());
        let sweeper_died = matches!(t.presence, Presence::Reclaiming(by) if by != me && self.is_dead(by));
        let mine = Tenancy { presence: Presence::Reclaiming(me), epoch: dead.epoch };
        sweeper_died && t.epoch == dead.epoch && self.change_tenancy(dead.member.slot(), t, mine)
    }

    /// Sweeps members whose sweeper this process is, and returns their number.
    fn sweep_all(&self, dead: &[Dead], me: Member) -> usize {
        if dead.is_empty() {
            return 0;
        }
        for d in dead {
            if self.update_is_of(d.member) {
                self.update(me, Complete);
            }
        }
        self.sweep_extents(|m| dead.iter().any(|d| d.member == m), me);
        dead.iter().for_each(|d| self.free_seats_of_processors(d.member));
        self.sweep_groups(dead, me);
        self.sweep_envelopes(dead, me);
        self.each_touched_slab(dead.iter().map(|d| d.member.slot()), |slab| {
            if slab >= self.slab_count() {
                return;
            }
            // Everything that this process takes over there belongs to it until it is released.
            self.touch(me, slab);
            // All blocks that a slab can have: the member may have died while it gave this slab a class with
            // fewer blocks.
            for i in 0..SLAB_BLOCKS {
                self.sweep_block(slab * SLAB_BLOCKS + i, dead, me);
            }
        });
        for d in dead {
            self.forget_touched(d.member.slot());
        }
        for d in dead {
            self.map().add(Word::at(control::DEATHS), 1);
            let sweeping = Tenancy { presence: Presence::Reclaiming(me), epoch: d.epoch };
            let free = Tenancy { presence: Presence::Free, ..sweeping };
            self.change_tenancy(d.member.slot(), sweeping, free);
        }
        self.clean_up();
        dead.len()
    }

    /// Empties and frees an envelope that this process owns.
    fn release_taken(&self, e: EnvelopeId) {
        let owner = Owner::unpack(self.map().load(self.owner_words().of(e)));
        self.empty_envelope(e);
        self.free_envelope(e, owner);
    }

    fn sweep_envelopes(&self, dead: &[Dead], me: Member) {
        for e in self.envelopes_in_use(0) {
            let word = self.owner_words().of(e);
            let found = self.map().load(word);
            let owner = Owner::unpack(found);
            match owner.holder {
                Holder::Member(m) if dead.iter().any(|d| d.member == m) => {
                    // Taken over first: if this process dies while emptying, its sweeper finds the envelope.
                    let mine = owner.then(Holder::Member(me));
                    if self.map().cas(word, found, mine.pack()).is_ok() {
                        self.release_taken(e);
                    }
                }
                Holder::Free if Owner::claimable(found).is_some() => self.hint_envelope(e),
                Holder::Free
                | Holder::Member(_)
                | Holder::Queued
                | Holder::Leased(_)
                | Holder::Returned
                | Holder::Undeliverable => {}
            }
        }
    }

    fn sweep_block(&self, block: BlockId, dead: &[Dead], me: Member) {
        let at = self.block_at(block);
        let found = self.map().load(at.state);
        let state = BlockState::unpack(found);
        match state.life {
            BlockLife::Free if self.block_exists(block) => self.hint_free(block),
            BlockLife::Free => {}
            BlockLife::Busy(m) if dead.iter().any(|d| d.member == m) => {
                let mine = state.with(BlockLife::Busy(me));
                if self.map().cas(at.state, found, mine.pack()).is_ok() {
                    // The member may have died before it cleared its seat, or after it set one.
                    for i in 0..INLINE_SEATS {
                        self.map().store(at.seat(i), Seat::Free.pack());
                    }
                    self.finish_free(block, mine);
                }
            }
            BlockLife::Busy(_) => {}
            BlockLife::Live => self.each_seat(block, |seat| {
                let holder = Seat::unpack(self.map().load(seat));
                if let Some(d) = dead.iter().find(|d| holder == Seat::Member(d.member)) {
                    self.release_dead_seat(block, state.kind, seat, d, me);
                }
            }),
        }
    }

    /// Releases the seat of a dead member. A page of seats that the member had already linked is handed over
    /// to its block.
    fn release_dead_seat(&self, block: BlockId, kind: BlockKind, seat: Word, dead: &Dead, me: Member) {
        let theirs = Seat::Member(dead.member).pack();
        if kind == BlockKind::Seats
            && let Some(owner) = self.page_is_linked(block)
        {
            _ = self.map().cas(seat, theirs, Seat::Block(owner).pack());
            return;
        }
        let release =
            ReleaseSeat::new(self.block_at(block), self.pages(), me, seat, Seat::Member(dead.member));
        if let ReleaseOutcome::MustFree(state) = run(release, self.map()) {
            self.finish_free(block, state);
        }
    }

    /// Calls `f` with each seat word of a block. The links may change meanwhile, but always lead to seats.
    ///
    /// Visits the seats in the same order as `FreeCheck`: a dead member may have taken a second seat in the
    /// header without incrementing the version (`steps::part`). That seat is released before its first one,
    /// if a check has already passed it (`tools/models/tests/models/parts.rs`).
    pub(crate) fn each_seat(&self, block: BlockId, mut f: impl FnMut(Word)) {
        let at = self.block_at(block);
        (0..INLINE_SEATS).for_each(|i| f(at.seat(i)));
        let mut link = self.map().load(at.link());
        for _ in 0..MOST_PAGES {
            let Some(first) = link_of(link).and_then(|page| self.seat_page(page)) else { return };
            (0..at.per_page).for_each(|i| f(first.plus((PAGE_HEADER + i).into())));
            link = self.map().load(page_next(first));
        }
    }

    /// Returns `true` if a member holds the ring in `block`, by a seat or because it has claimed the ring to
    /// free it. The answer is certain for a dead member that this process visits before its seats in rings
    /// are released.
    pub fn ring_is_held_by(&self, block: BlockId, member: Member) -> bool {
        if self.ring_memory(block).is_none() {
            return false;
        }
        let mut held =
            BlockState::unpack(self.map().load(self.block_at(block).state)).life == BlockLife::Busy(member);
        self.each_seat(block, |seat| held |= self.map().load(seat) == Seat::Member(member).pack());
        held
    }

    /// Returns the number of other processes, messages and parts that hold a block. The seat of a dead member
    /// counts until everything that others wait for was recovered, not until the member was swept.
    pub fn other_holders(&self, hold: &Hold) -> usize {
        let mut others = 0;
        if let (false, Ok(me)) = (hold.is_nowhere(), self.me()) {
            self.each_holder(hold.block(), |holder| others += usize::from(holder != Seat::Member(me)));
        }
        others
    }

    /// Returns `true` if no other process and no message holds a block, counted like
    /// [`other_holders`](Self::other_holders).
    pub(crate) fn is_only_holder(&self, hold: &Hold) -> bool {
        let Ok(me) = self.me() else { return false };
        // Usually all seats are free or this process's, and no member must be checked.
        let (at, mine, free) = (self.block_at(hold.block()), Seat::Member(me).pack(), Seat::Free.pack());
        let is_no_others = |i| {
            let seat = self.map().load(at.seat(i));
            seat == free || seat == mine
        };
        (0..INLINE_SEATS).all(is_no_others) && link_of(self.map().load(at.link())).is_none()
            || self.other_holders(hold) == 0
    }

    /// Calls `f` with each seat of a member, a message or a block. Seats of dead members count like in
    /// [`other_holders`](Self::other_holders).
    pub(crate) fn each_holder(&self, block: BlockId, mut f: impl FnMut(Seat)) {
        self.each_seat(block, |word| match Seat::unpack(self.map().load(word)) {
            Seat::Free => {}
            Seat::Member(m) if self.has_left(m, block) => {}
            holder @ (Seat::Member(_) | Seat::Envelope(_) | Seat::Block(_)) => f(holder),
        });
    }
}
