//! Reclaim: release of everything that dead members held.
//!
//! First any number of processes at once [recover](super::recover) everything that others wait for. Then one
//! process reclaims each dead member: it releases the member's memory. No process waits for a reclaim. If the
//! reclaiming process dies as well, another process starts again from the beginning. Every step may be done
//! twice. A pass reclaims all dead members together, in this order:
//!
//! 1. Multi-word updates that a dead member had begun, and that no process has completed, are completed.
//! 2. Envelopes that dead members owned are taken over by the reclaiming process, then emptied.
//! 3. Blocks that dead members were claiming or freeing, and blocks that recovering processes have claimed
//!    for dead members, are taken over and freed. The remaining seats of dead members, which by now are only
//!    in pages of seats, are released. (A live block without seats, which may be a queue, stays: recovering
//!    processes have handled all such blocks that existed. A process that has released the last seat since
//!    then handles the block itself.)
//! 4. Lost hints of free blocks and envelopes are set again.
//! 5. The slots of the dead members are freed.
//!
//! The reclaim reads only the blocks in slabs, and the envelopes in groups, that a dead member has touched
//! (see [`Members`]). So its cost depends on the actions of the dead members, not on the contents of the
//! arena.

use std::sync::OnceLock;
use std::time::Instant;

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::clocks::Clocks;
use crate::envelopes::Envelopes;
use crate::error::Result;
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, run};
use crate::members::Members;
use crate::parking::{POLL_INTERVAL, spin};
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::recovery::Recovery;
use crate::recovery::reclaim_events::Tally;
use crate::ring_layer;
use crate::setup::Backing;
use crate::steps::{INLINE_SEATS, ReleaseOutcome, UpdatePlan};
use crate::sync::shared::{AtomicU64, Ordering};
use crate::sys::memory;
use crate::words::{
    BlockId, BlockKind, BlockLife, BlockState, EnvelopeId, Holder, Member, Owner, Presence, Seat, Tenancy,
};

/// Maximum number of recoveries by one process while other processes recover at the same time. After that, a
/// later reclaim frees the dead members' memory.
const ATTEMPTS: u32 = 4;

/// Function that this process calls before it reclaims dead members. The function checks the envelopes
/// promised to processes that are not members yet.
static PROMISES: PerProcess<OnceLock<fn()>> = per_process!(OnceLock::new());

/// Function that this process calls after members were reclaimed.
static ON_DEATHS: PerProcess<OnceLock<fn()>> = per_process!(OnceLock::new());
/// Number of reclaimed members when this process last called the function in `ON_DEATHS`.
static DEATHS_SEEN: PerProcess<AtomicU64> = per_process!(AtomicU64::new(0));

/// Calls the hook of [`Recovery::on_deaths`], in one thread of this process, if members were reclaimed since
/// the last call.
fn tell_of_deaths(deaths: u64) {
    if DEATHS_SEEN.load(Ordering::Relaxed) != deaths
        && DEATHS_SEEN.swap(deaths, Ordering::Relaxed) != deaths
        && let Some(hook) = ON_DEATHS.get()
    {
        hook();
    }
}

/// Serializes the recoveries of this process's threads: a process has one word to announce the members that
/// it recovers.
static RECOVERIES: PerProcess<Mutex<()>> = per_process!(Mutex::new(()));

/// Plan of an update without changes. Running it completes an update that another process had begun.
struct Complete;
impl UpdatePlan for Complete {
    fn reads(&self) -> &[Word] {
        &[]
    }
    fn writes(&self, _: &[u64]) -> Vec<(usize, u64)> {
        Vec::new()
    }
}

/// A dead member that this process recovers or reclaims.
#[derive(Clone, Copy)]
pub(crate) struct Dead {
    pub(crate) member: Member,
    pub(crate) pid: u32,
    pub(crate) epoch: u32,
}

impl Recovery {
    /// Reclaims all resources that dead members held: see [`Arena::reclaim`](crate::Arena::reclaim).
    pub(crate) fn reclaim(self) -> Result<usize> {
        let reclaimed = self.reclaim_unreported();
        self.report_reclaimed();
        reclaimed
    }

    /// Emits the events of the members that this process has reclaimed, if the feature `tracing` is enabled.
    /// The caller holds no lock: subscribers are code of users.
    #[doc(hidden)]
    pub fn report_reclaimed(self) {
        #[cfg(feature = "tracing")]
        crate::recovery::reclaim_events::emit_pending();
    }

    /// Same as [`Arena::reclaim`](crate::Arena::reclaim), for callers that hold a lock. The events of the
    /// members follow with [`report_reclaimed`](Self::report_reclaimed), or with the next reclaim.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    #[doc(hidden)]
    pub fn reclaim_unreported(self) -> Result<usize> {
        self.reclaim_where(|member| Members(self.0).is_dead(member))
    }

    /// Same as [`reclaim_unreported`](Self::reclaim_unreported), after the end of the process `pid`. Checks
    /// the member of that process, and members that are known to be dead. Checks all other members [at most
    /// every 100 ms](Self::reclaim_if_due), because the check of each takes a system call, whose time grows
    /// with the number of members.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    #[doc(hidden)]
    pub fn reclaim_ended(self, pid: u32) -> Result<usize> {
        if self.takes_turn(self.me()?) {
            return self.reclaim_unreported();
        }
        let members = Members(self.0);
        self.reclaim_where(|member| {
            members.is_known_dead(member) || (members.has_pid(member, pid) && members.is_dead(member))
        })
    }

    fn reclaim_where(self, is_dead: impl Fn(Member) -> bool) -> Result<usize> {
        let me = self.me()?;
        if let Some(look) = PROMISES.get() {
            look();
        }
        let reclaimed = self.reclaim_members(me, is_dead);
        Clocks(self.0).end_clocks();
        tell_of_deaths(self.deaths());
        Ok(reclaimed)
    }

    /// Sets a function that each reclaim of this process calls first.
    pub(crate) fn before_reclaims(look: fn()) {
        _ = PROMISES.set(look);
    }

    /// Same as [`Arena::reclaim`](crate::Arena::reclaim), for the memory of dead members only.
    fn reclaim_members(self, me: Member, is_dead: impl Fn(Member) -> bool) -> usize {
        let dead: Vec<Dead> = Members(self.0)
            .tenants()
            .filter(|&(member, _)| member != me && is_dead(member))
            // A process without a ring layer leaves members that had one to others.
            .filter(|&(member, _)| !Members(self.0).knew_rings(member) || ring_layer::is_registered())
            .map(|(member, t)| Dead { member, pid: Members(self.0).pid_of(member), epoch: t.epoch })
            .collect();
        if dead.is_empty() {
            return 0;
        }
        let begun = Instant::now();
        let _visits = RECOVERIES.lock();
        let mut reclaimed = 0;
        for _ in 0..ATTEMPTS {
            let (mut to_reclaim, disturbed) = self.recover(&dead, me);
            to_reclaim.extend(dead.iter().filter(|d| self.take_over(d, me)));
            reclaimed += self.reclaim_all(&to_reclaim, me, begun);
            if !disturbed {
                break;
            }
            std::thread::yield_now();
        }
        reclaimed
    }

    /// Returns the number of members reclaimed since the arena was created.
    fn deaths(self) -> u64 {
        self.map().load(Word::at(control::DEATHS))
    }

    /// Sets a function that this process calls when it detects that any process has reclaimed members since
    /// its last check. This process checks in each [`reclaim`](crate::Arena::reclaim), and in waits of all
    /// kinds. For caches of objects that only dead members held.
    ///
    /// The thread that checks calls the hook, holding no lock of this crate, and waits until it returns. Only
    /// the first call sets a hook. A forked child may set another hook.
    pub fn on_deaths(hook: fn()) {
        _ = ON_DEATHS.set(hook);
    }

    /// Same as [`Arena::reclaim`](crate::Arena::reclaim), unless any member has made such a reclaim within
    /// the last 100 ms: a thousand waiting processes reclaim no more often than one process.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn reclaim_if_due(self) -> Result<usize> {
        let me = self.me()?;
        Backing(self.0).hold_extents();
        tell_of_deaths(self.deaths());
        if self.takes_turn(me) { self.reclaim() } else { Ok(0) }
    }

    /// Returns `true` if no process has checked all members within the last 100 ms. The caller then checks
    /// them.
    fn takes_turn(self, me: Member) -> bool {
        let (at, now) = (Word::at(control::LOOKED), memory::monotonic_ms());
        let last = self.map().load(at);
        let due = now.saturating_sub(last) >= POLL_INTERVAL.as_millis() as u64;
        let takes = due && self.map().cas(at, last, now).is_ok();
        if takes {
            Envelopes(self.0).trim_idle_envelopes(me);
        }
        takes
    }

    /// Returns `true` if this process, which has no ring layer, leaves some dead members to members that have
    /// one.
    #[cfg(feature = "inject")]
    pub(crate) fn leaves_some_to_others(self) -> bool {
        let (Ok(me), false) = (self.me(), ring_layer::is_registered()) else { return false };
        let is_left = |m| m != me && Members(self.0).knew_rings(m) && Members(self.0).is_dead(m);
        Members(self.0).tenants().any(|(member, _)| is_left(member))
    }

    /// Takes over the reclaim of a member whose reclaiming process is dead. Returns `true` if this process
    /// now reclaims the member.
    fn take_over(self, dead: &Dead, me: Member) -> bool {
        let t = Members(self.0).tenancy(dead.member.slot());
        let reclaimer_died =
            matches!(t.presence, Presence::Reclaiming(by) if by != me && Members(self.0).is_dead(by));
        let mine = Tenancy { presence: Presence::Reclaiming(me), epoch: dead.epoch };
        reclaimer_died && t.epoch == dead.epoch && Members(self.0).change_tenancy(dead.member.slot(), t, mine)
    }

    /// Reclaims members whose state names this process as their reclaimer. Returns their number.
    fn reclaim_all(self, dead: &[Dead], me: Member, begun: Instant) -> usize {
        if dead.is_empty() {
            return 0;
        }
        let mut tally = Tally::new(self.0, dead.iter().map(|d| (d.member, d.pid)));
        for d in dead {
            if Allocator(self.0).update_is_of(d.member) {
                Allocator(self.0).update(me, Complete);
            }
        }
        Backing(self.0).reclaim_extents(|m| dead.iter().any(|d| d.member == m), me);
        dead.iter().for_each(|d| spin::free_processors(self.0, d.member));
        let slots = dead.iter().map(|d| d.member.slot());
        Envelopes(self.0).reclaim_groups(slots, |m| dead.iter().any(|d| d.member == m), me);
        self.reclaim_envelopes(dead, me, &mut tally);
        Members(self.0).each_touched_slab(dead.iter().map(|d| d.member.slot()), |slab| {
            if slab >= Blocks(self.0).slab_count() {
                return;
            }
            // This process holds everything that it takes over in this slab, until it is released.
            Members(self.0).touch(me, slab);
            // All blocks that a slab can have: the member may have died while it gave this slab a class with
            // fewer blocks.
            for i in 0..SLAB_BLOCKS {
                self.reclaim_block(slab * SLAB_BLOCKS + i, dead, me, &mut tally);
            }
        });
        for d in dead {
            Members(self.0).forget_touched(d.member.slot());
        }
        for d in dead {
            self.map().add(Word::at(control::DEATHS), 1);
            let reclaiming = Tenancy { presence: Presence::Reclaiming(me), epoch: d.epoch };
            let free = Tenancy { presence: Presence::Free, ..reclaiming };
            Members(self.0).change_tenancy(d.member.slot(), reclaiming, free);
        }
        Backing(self.0).clean_up();
        tally.end(begun);
        dead.len()
    }

    /// Empties and frees an envelope that this process owns.
    fn release_taken(self, e: EnvelopeId) {
        let owner = Owner::unpack(self.map().load(Envelopes(self.0).owner_words().of(e)));
        Allocator(self.0).empty_envelope(e);
        Envelopes(self.0).free_envelope(e, owner);
    }

    fn reclaim_envelopes(self, dead: &[Dead], me: Member, tally: &mut Tally) {
        Envelopes(self.0).each_touched(dead.iter().map(|d| d.member.slot()), |e| {
            let word = Envelopes(self.0).owner_words().of(e);
            let found = self.map().load(word);
            let owner = Owner::unpack(found);
            match owner.holder {
                Holder::Member(m) if dead.iter().any(|d| d.member == m) => {
                    // Taken over first: if this process dies while emptying, the process that reclaims it
                    // finds the envelope.
                    Members(self.0).touch_group_of(me, e);
                    let mine = owner.then(Holder::Member(me));
                    if self.map().cas(word, found, mine.pack()).is_ok() {
                        self.release_taken(e);
                        tally.add_envelope(m);
                    }
                }
                Holder::Free if Owner::claimable(found).is_some() => Envelopes(self.0).hint_envelope(e),
                _ => {}
            }
        });
    }

    fn reclaim_block(self, block: BlockId, dead: &[Dead], me: Member, tally: &mut Tally) {
        let at = Blocks(self.0).block_at(block);
        let found = self.map().load(at.state);
        let state = BlockState::unpack(found);
        match state.life {
            BlockLife::Free if Blocks(self.0).block_exists(block) => Allocator(self.0).hint_free(block),
            BlockLife::Free => {}
            BlockLife::Busy(m) if dead.iter().any(|d| d.member == m) => {
                let mine = state.with(BlockLife::Busy(me));
                if self.map().cas(at.state, found, mine.pack()).is_ok() {
                    // The member may have died before it cleared its seat, or after it set one.
                    for i in 0..INLINE_SEATS {
                        self.map().store(at.seat(i), Seat::Free.pack());
                    }
                    Allocator(self.0).finish_free(block, mine);
                    tally.add_block(m);
                }
            }
            BlockLife::Busy(_) => {}
            BlockLife::Live => Blocks(self.0).each_seat(block, |seat| {
                let holder = Seat::unpack(self.map().load(seat));
                if let Some(d) = dead.iter().find(|d| holder == Seat::Member(d.member))
                    && self.release_dead_seat(block, state.kind, seat, d, me)
                {
                    tally.add_block(d.member);
                }
            }),
        }
    }

    /// Releases the seat of a dead member. A page of seats that the member had already linked is handed over
    /// to its block. Returns `true` if the block was freed.
    fn release_dead_seat(self, block: BlockId, kind: BlockKind, seat: Word, dead: &Dead, me: Member) -> bool {
        let theirs = Seat::Member(dead.member).pack();
        if kind == BlockKind::Seats
            && let Some(owner) = Allocator(self.0).page_is_linked(block)
        {
            _ = self.map().cas(seat, theirs, Seat::Block(owner).pack());
            return false;
        }
        let release = Blocks(self.0).release(block, me, (seat, Seat::Member(dead.member)));
        let ReleaseOutcome::MustFree(state) = run(release, self.map()) else { return false };
        Allocator(self.0).finish_free(block, state);
        true
    }
}
