//! Recovery of the objects of a dead member, and their reclaim.
//!
//! A *recovery* makes everything available that live processes wait for. **Any number of processes recover
//! the same dead member at once**, so that no process waits for a recovering process that is stopped or
//! killed. That works because a recovering process takes nothing for itself, and frees nothing. Each of its
//! changes is a swap of a word that names the dead member, to a value computed from the old one. If a block
//! loses its last holder by such a swap, the block is claimed *in the name of the dead member*. As long as
//! none of the dead member's objects is reused, the values that a recovering process has read from them stay
//! valid, or a swap detects the change. A recovery has two phases:
//!
//! * `DEAD`: the dead member's leases are returned, its seats in messages and tokens are released, and its
//!   queues are notified by a write into the memory of each queue. Its seats in queues are not released yet,
//!   so that the memory of these queues is not reused.
//! * `VACATING`: its seats in queues are released. Nothing is written into a queue. Either live processes
//!   hold the queue, and it belongs only to them from then on; or it is claimed for the dead member, with its
//!   contents, whose attachments are released.
//!
//! The *reclaim* frees the objects of a dead member (envelopes, blocks, the member's slot and lanes). A
//! single process runs it. It begins when the recoveries have left nothing to do and no process is
//! recovering. No process waits for a reclaiming process, which only frees memory. Even the last live holder
//! of a queue never finds the queue claimed by a reclaiming process, since the seats in queues are released
//! before the reclaim begins.
//!
//! | word | states | changed by |
//! |---|---|---|
//! | of the dead member ([`Tenancy`]) | `DEAD(n)` | a recovering process, at its start → `DEAD(n + 1)`; a recovering process that has nothing left to do, if it was the only one → `VACATING(n)` |
//! |  | `VACATING(n)` | a recovering process, at its start → `VACATING(n + 1)`; a recovering process that has nothing left to do, if it was the only one → `RECLAIMING(me)` |
//! |  | `RECLAIMING(s)` | `s` → `FREE`; if `s` is dead, another process → `RECLAIMING(me)` |
//! | of the recovering process ([`RecoveringSlots`]) | 0, or slots | that process, **before** it begins, and after it has ended |
//!
//! **Proof of being the only one.** A recovering process increments the count (`n`), *then* reads the
//! words of all other live members, *then* recovers, then swaps `DEAD(n) → VACATING(n)`, or
//! `VACATING(n) → RECLAIMING(me)`. A process that began earlier had set its word before that, so this
//! read finds its recovery, unless the recovery has ended. A process that begins later makes the swap fail.
//! So no other process recovered between the check and the swap, and the recovery has left nothing to do.
//!
//! A process that has made the first swap continues with the second phase, without counting or checking
//! again. It was the only recovering process at the first swap. A process that begins a recovery after the
//! first swap is counted, and makes the second swap fail. So a process that makes the second swap was the
//! only recovering one since its check.
//!
//! **Late processes.** No process is in the first phase when the state is `VACATING`, so none notifies a
//! queue whose memory may have been reused. A process in the second phase that was stopped, while other
//! processes have continued, can only do the following:
//! - It releases a seat that still names the dead member. No other process ever writes that name.
//! - It claims a block for the dead member, if the block is live and has no seat. The swap of the block's
//!   state ensures that it was the same block throughout.
//! - It reads a queue that is claimed for the dead member. The queue stays claimed: no process reclaims the
//!   member while this process's word shows the recovery.
//!
//! | killed, or stopped for a week | remaining state | other processes |
//! |---|---|---|
//! | anywhere in a recovery | `DEAD` or `VACATING`, the process's word | recover as well; objects that live processes wait for are available at once. The word of a dead process is ignored; while a recovering process is stopped, the members that it recovers are not reclaimed: their memory is held |
//! | between the swap and the end of the reclaim | `RECLAIMING(that process)` | wait for nothing; if that process is dead, another process takes over the reclaim |
//!
//! (A process that is stopped between its check and its swap while other processes begin exactly 2^29
//! recoveries does not notice them.)

use super::DeathOracle;
use crate::mem::{Mem, Steps, Word};
use crate::words::{Member, Presence, RecoveringSlots, Tenancy};

/// Begins the recovery of a tenant of a slot. The caller has written the slot into its own word of
/// [`RecoveringSlots`] before. Ends with the slot's new word, which counts this recovery. Ends with `None` if
/// the slot has no such tenant, or the tenant needs no recovery.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BeginRecovery {
    at: Word,
    epoch: u32,
    found: Option<Tenancy>,
}

impl BeginRecovery {
    /// Creates the steps to begin the recovery of the tenant with this epoch. The slot's word is at `at`.
    pub fn new(at: Word, epoch: u32) -> Self {
        Self { at, epoch, found: None }
    }
}

impl Steps for BeginRecovery {
    type Out = Option<Tenancy>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<Tenancy>> {
        let Some(found) = self.found.take() else {
            let found = Tenancy::unpack(m.load(self.at));
            self.found = Some(found);
            let is_there = (found.epoch == self.epoch) && found.presence.with_recovery().is_some();
            return (!is_there).then_some(None);
        };
        let Some(presence) = found.presence.with_recovery() else { return Some(None) };
        let counted = Tenancy { presence, ..found };
        m.cas(self.at, found.pack(), counted.pack()).is_ok().then_some(Some(counted))
    }
}

/// Checks that no other process recovers the tenant of a slot. The caller has [begun](BeginRecovery) its
/// recovery.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CheckSoleRecovery<D> {
    slot: u32,
    others: Vec<(Word, Member)>,
    dead: D,
    at: usize,
}

impl<D: DeathOracle> CheckSoleRecovery<D> {
    /// Creates the steps for the tenant of `slot`. `others` has all other members that are not known to be
    /// dead, each with the position of its word of [`RecoveringSlots`]. `dead` returns `true` for a dead
    /// member.
    pub fn new(slot: u32, others: Vec<(Word, Member)>, dead: D) -> Self {
        Self { slot, others, dead, at: 0 }
    }
}

impl<D: DeathOracle> Steps for CheckSoleRecovery<D> {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let Some(&(word, member)) = self.others.get(self.at) else { return Some(true) };
        // The death is checked last, since the check takes a system call. A dead member changes nothing.
        if RecoveringSlots::covers(m.load(word), self.slot) && !self.dead.is_dead(member) {
            return Some(false);
        }
        self.at += 1;
        None
    }
}

/// Ends a phase of a recovery after all its work is done: `DEAD → VACATING`, or `VACATING → RECLAIMING(me)`.
/// Returns the slot's new word, or `None` if another process has begun a recovery since then.
///
/// `counted` is the slot's word when the caller began, or an earlier result of this function. After the
/// caller began, [`CheckSoleRecovery`] found no other recovering process.
pub fn end_recovery<M: Mem + ?Sized>(at: Word, counted: Tenancy, me: Member, m: &M) -> Option<Tenancy> {
    let presence = match counted.presence {
        Presence::Dead(n) => Presence::Vacating(n),
        Presence::Vacating(_) => Presence::Reclaiming(me),
        Presence::Free | Presence::Live | Presence::Reclaiming(_) => return None,
    };
    let next = Tenancy { presence, ..counted };
    m.cas(at, counted.pack(), next.pack()).is_ok().then_some(next)
}
