//! Which processes recover what a dead member has left, and which one may use its things again.
//!
//! A *visit* gives live processes what they wait for. **Any number of processes visit the same dead member at
//! once**, so that none of them is waited for, whether it is stopped or killed there. That works because a
//! visitor makes nothing its own, and frees nothing: each of its changes is a swap of a word that names the
//! dead member, to what follows from it, and what has no holder any more after that is claimed *in the name
//! of the dead member*. So all that a visitor has read of the dead member's things stays true or is noticed
//! by a swap, as long as none of them is used again. There are two kinds of visits, one after the other:
//!
//! * `DEAD`: what the dead member had leased is returned, its seats in messages and tokens are given up, its
//!   queues are notified, in their own memory. Its seats in queues stay, so that no visitor writes into
//!   memory of other processes.
//! * `VACATING`: its seats in queues are given up. Nothing is written into a queue any more. Either live
//!   processes hold the queue, and it is theirs alone from then on; or it is claimed for the dead member,
//!   with what is in it, and the attachments of that are given up.
//!
//! Using things of a dead member again (envelopes, blocks, the member's slot and lanes) is the *sweep*. It
//! has one sweeper, and begins when the visits have left nothing to do and no process is visiting. No process
//! waits for a sweeper: it frees memory. Even a process that leaves a queue at the last moment finds no
//! sweeper in it, since the seats in queues are gone before there is one.
//!
//! | word | states | changed by |
//! |---|---|---|
//! | of the dead member ([`Tenancy`]) | `DEAD(n)` | a visitor, to begin with → `DEAD(n + 1)`; a visitor whose visit has left nothing to do, if it was alone → `VACATING(n)` |
//! |  | `VACATING(n)` | a visitor, to begin with → `VACATING(n + 1)`; a visitor whose visit has left nothing to do, if it was alone → `SWEEPING(me)` |
//! |  | `SWEEPING(s)` | `s` → `FREE`; if `s` is dead, another one → `SWEEPING(it)` |
//! | of the visitor ([`Visiting`]) | 0, or slots | the visitor, **before** it begins, and after it has ended |
//!
//! **Being alone.** A visitor counts its visit (`n`), *then* looks at the words of all other live members,
//! *then* visits, then swaps `DEAD(n) → VACATING(n)`, or `VACATING(n) → SWEEPING(me)`. A visitor that began
//! before it had said so before, and is seen in its word or is at its end. A visitor that begins after it
//! makes the swap fail. So between the look and the swap no other process visited, and what the visit has
//! left is what there is: nothing.
//!
//! A visitor that has made the first swap continues with the second kind of visit, without counting or
//! looking again. It was alone at the swap; a visitor that begins after it counts, and makes the next swap
//! fail. So a visitor that makes the next swap was alone from its look on.
//!
//! **Late visitors.** No process is in a visit of the first kind when the state is `VACATING`: so none
//! notifies a queue whose memory may be another's. What a visitor of the second kind still does after it was
//! stopped, while other processes have continued: it gives up a seat, if that still names the dead member,
//! which no other process ever writes; it claims a block for the dead member, if that is live and has no
//! seat, and the swap of the block's state makes sure that it was the same block throughout; it reads a queue
//! that is claimed for the dead member, and which stays so, as there is no sweeper as long as this visitor
//! says that it visits.
//!
//! | killed, or stopped for a week | left | other processes |
//! |---|---|---|
//! | anywhere in a visit | `DEAD` or `VACATING`, a word that says that it visits | visit as well; what live processes wait for is theirs at once. The word of a dead visitor counts no more; as long as one is stopped, what it visits is not swept: its memory is held |
//! | between the swap and the end of the sweep | `SWEEPING(it)` | nothing is waited for; if it is dead, another sweeps on |
//!
//! (A visitor that is stopped between its look and its swap while other processes make exactly 2^29 visits
//! takes them for none.)

use super::Oracle;
use crate::mem::{Mem, Steps, Word};
use crate::words::{Member, Presence, Tenancy, Visiting};

/// Begins a visit to the tenant `epoch` of a slot. The caller has written into its own word that it visits that slot. Ends
/// with what the slot's word says now, this visit counted; `None` if there is none to visit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Visit {
    at: Word,
    epoch: u32,
    found: Option<Tenancy>,
}

impl Visit {
    /// To visit the tenant whose word is `at`.
    pub fn new(at: Word, epoch: u32) -> Self {
        Self { at, epoch, found: None }
    }
}

impl Steps for Visit {
    type Out = Option<Tenancy>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<Tenancy>> {
        let Some(found) = self.found.take() else {
            let found = Tenancy::unpack(m.load(self.at));
            self.found = Some(found);
            let is_there = (found.epoch == self.epoch) && found.presence.visited().is_some();
            return (!is_there).then_some(None);
        };
        let Some(presence) = found.presence.visited() else { return Some(None) };
        let counted = Tenancy { presence, ..found };
        m.cas(self.at, found.pack(), counted.pack()).is_ok().then_some(Some(counted))
    }
}

/// Whether no other process visits the tenant of a slot. The caller has [begun](Visit) a visit to it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Alone<D> {
    slot: u32,
    others: Vec<(Word, Member)>,
    dead: D,
    at: usize,
}

impl<D: Oracle> Alone<D> {
    /// `others` are all members that are not known to be dead, without the caller, and where they say which
    /// members they visit. `dead` says whether one of them is dead.
    pub fn new(slot: u32, others: Vec<(Word, Member)>, dead: D) -> Self {
        Self { slot, others, dead, at: 0 }
    }
}

impl<D: Oracle> Steps for Alone<D> {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let Some(&(word, member)) = self.others.get(self.at) else { return Some(true) };
        let is_dead = self.dead.is_dead(member);
        if Visiting::covers(m.load(word), self.slot) && !is_dead {
            return Some(false);
        }
        self.at += 1;
        None
    }
}

/// Ends a visit that has left nothing to do: `DEAD → VACATING`, or `VACATING → SWEEPING(me)`. Ends with what the slot's word says
/// now, or `None` if another process has begun to visit meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EndVisit {
    at: Word,
    counted: Tenancy,
    me: Member,
}

impl EndVisit {
    /// `counted` is what the word said when the caller's visit began; it has found itself [alone](Alone) after that. Or it is
    /// what an `EndVisit` of the caller ended with.
    pub fn new(at: Word, counted: Tenancy, me: Member) -> Self {
        Self { at, counted, me }
    }
}

impl Steps for EndVisit {
    type Out = Option<Tenancy>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<Tenancy>> {
        let presence = match self.counted.presence {
            Presence::Dead(n) => Presence::Vacating(n),
            Presence::Vacating(_) => Presence::Sweeping(self.me),
            Presence::Free | Presence::Live | Presence::Sweeping(_) => return Some(None),
        };
        let next = Tenancy { presence, ..self.counted };
        Some(m.cas(self.at, self.counted.pack(), next.pack()).is_ok().then_some(next))
    }
}
