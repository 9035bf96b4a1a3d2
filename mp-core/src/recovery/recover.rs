//! Recovery of everything that processes wait for from dead members, in any number of processes at once.
//!
//! [`BeginRecovery`] describes the interplay of recovery and reclaim, and the state after a death or a stop.
//! A recovery makes these steps in order:
//!
//! 1. **Intents.** Each intent of the dead member's threads names one envelope whose owner may be in doubt.
//!    The ring layer decides who owns it. (If a living thread is handling the envelope, the ring layer can't
//!    decide yet. Then all other steps are done, and another recovery follows.)
//! 2. **Envelopes.** Envelopes that the member had leased return to their queues. For envelopes that it
//!    owned, the attachments are released. An attached handle of a queue is given to the dead member instead,
//!    so that step 3 notifies that queue, even if this process does not hold the queue.
//! 3. **Blocks.** The member's seats are released, except seats of queues. The queues are notified of the
//!    death, and of returned messages. (The notification is written into the queue's memory, which is not
//!    reused as long as the dead member has a seat of the queue.)
//! 4. **Deserted queues.** Messages in a queue that only dead members hold will never be received. Their
//!    attachments are released as in step 2.
//!
//! Once a process has completed these steps while no other process was recovering, recoveries make this step:
//!
//! 5. **Seats of queues.** The member's seats of queues are released. A queue without any holder then belongs
//!    to the dead member, and the attachments of its messages are released. If such a message contains the
//!    handle of another queue, this process takes the handle itself, notifies that queue, and drops the
//!    handle.
//!
//! In steps 2 and 4, one swap changes the seat of a message into a seat of the dead member. So the queue
//! exists until all recovering processes have notified it, and no process waits for a stopped one. After step
//! 4, no recovering process writes into a queue in which the dead member has a seat. So in step 5 the process
//! may take handles of queues as ordinary handles of its own. A model covers both cases:
//! `tools/models/tests/models/lost_handles.rs`.
//!
//! Step 4 is necessary although step 5 does the same, since step 4 need not wait until all recoveries have
//! ended. In step 5, other processes may release their seats of a queue at any time. If such a process finds
//! the dead member's seat already released, it is the last holder, and owns the queue. If the seat is not
//! released yet, the recovering process that releases it claims the queue for the dead member. Then every
//! recovering process releases the attachments of the queue's messages.
//!
//! A block that loses its last holder in a recovery is claimed for the dead member (`BUSY(dead)`), and left
//! to the reclaim.
//!
//! An envelope of the dead member may be promised to a child. The child takes it by a swap that expects
//! exactly the owner word that the child has received. So a recovery first increments the sequence in the
//! owner word. After that, no living process can take the envelope, and its list of attachments stays
//! unchanged.

use crate::alloc::Allocator;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::layout::SLAB_BLOCKS;
use crate::layout::size_class::blocks_of;
use crate::mem::{Mem, Word, run};
use crate::members::Members;
use crate::parking::Notices;
use crate::parking::detach_notice::DetachedProcess;
use crate::recovery::Recovery;
use crate::recovery::reclaim::Dead;
use crate::ring_layer::{InDoubt, RINGS};
use crate::steps::{BeginRecovery, CheckSoleRecovery, FreeCheck, ReleaseOutcome, end_recovery};
use crate::words::{
    Attachment, BlockId, BlockKind, BlockLife, BlockState, EnvelopeId, Holder, Member, Owner, Presence,
    RecoveringSlots, Seat, Tenancy,
};

/// A dead member that this process recovers.
struct DeadInRecovery {
    dead: Dead,
    counted: Tenancy,
    /// `true` if no other process was recovering this member.
    alone: bool,
}

/// Treatment of dead members' seats in queues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queues {
    /// The seats stay, and the queues are notified.
    Tell,
    /// The seats are released, and the queues are not touched.
    Vacate,
}

/// Pass over everything that dead members hold.
struct Pass<'a> {
    arena: Arena,
    dead: &'a [Dead],
    queues: Queues,
    /// Queues that no living process holds, each with a dead member that holds it.
    deserted: Vec<(BlockId, Member)>,
    /// Queues that were notified, in which dead members have seats.
    to_wake: Vec<BlockId>,
}

fn members(in_recovery: &[DeadInRecovery]) -> Vec<Dead> {
    in_recovery.iter().map(|v| v.dead).collect()
}

impl Recovery {
    /// Recovers these dead members. Returns the members that this process must reclaim now, and `true` if
    /// another process was recovering, so that some members are left.
    pub(crate) fn recover(self, dead: &[Dead], me: Member) -> (Vec<Dead>, bool) {
        let slots = || dead.iter().map(|d| d.member.slot());
        let (Some(first), Some(last)) = (slots().min(), slots().max()) else { return (Vec::new(), false) };
        let mine = Members(self.0).recovering_word(me.slot());
        self.map().store(mine, RecoveringSlots { first, last }.pack());
        let begun = |&dead: &Dead| {
            let word = Members(self.0).tenancy_word(dead.member.slot());
            let counted = run(BeginRecovery::new(word, dead.epoch), self.map())?;
            Some(DeadInRecovery { dead, counted, alone: self.recovers_alone(dead.member.slot(), me) })
        };
        let in_recovery = dead.iter().filter_map(begun);
        let (to_tell, late): (Vec<_>, Vec<_>) =
            in_recovery.partition(|v| matches!(v.counted.presence, Presence::Dead(_)));
        let mut disturbed = false;
        let mut end = |v: DeadInRecovery| {
            let word = Members(self.0).tenancy_word(v.dead.member.slot());
            let next = if v.alone { end_recovery(word, v.counted, me, self.map()) } else { None };
            disturbed |= next.is_none();
            next.map(|counted| DeadInRecovery { counted, ..v })
        };
        let mut to_vacate = Vec::new();
        let mut to_wake = Vec::new();
        if !to_tell.is_empty() {
            let (settled, queues) = self.recover_for(&members(&to_tell));
            to_wake = queues;
            let mut done = Vec::new();
            for (v, left) in to_tell.into_iter().zip(settled) {
                let (slot, epoch) = (v.dead.member.slot(), v.dead.epoch);
                match left {
                    InDoubt::Nothing => {
                        Members(self.0).note_recovered(slot, epoch, None);
                        done.push(v);
                    }
                    InDoubt::Ring(ring) => Members(self.0).note_recovered(slot, epoch, Some(ring)),
                    InDoubt::Rings => {}
                }
            }
            // At the notification, the recovery was not recorded yet, and tokens of channels were held:
            // waiters that checked went back to sleep.
            to_wake.iter().for_each(|&ring| Blocks(self.0).wake_ring(ring));
            to_vacate.extend(done.into_iter().filter_map(&mut end));
        }
        if !to_vacate.is_empty() {
            // This process was alone when it read all queues of these members: they have no seats in other
            // queues.
            let members = members(&to_vacate);
            let mut pass = Pass::new(self.0, &members, Queues::Vacate);
            to_wake.into_iter().for_each(|block| pass.recover_block(block));
            pass.recover_deserted();
        }
        if !late.is_empty() {
            Pass::new(self.0, &members(&late), Queues::Vacate).recover_touched_blocks();
        }
        let to_reclaim = to_vacate.into_iter().chain(late).filter_map(&mut end).map(|v| v.dead).collect();
        self.map().store(mine, 0);
        (to_reclaim, disturbed)
    }

    fn recovers_alone(self, slot: u32, me: Member) -> bool {
        let others = Members(self.0).live_members().filter(|m| m.slot() != me.slot());
        let others = others.map(|m| (Members(self.0).recovering_word(m.slot()), m)).collect();
        run(CheckSoleRecovery::new(slot, others, |m| Members(self.0).is_dead(m)), self.map())
    }

    /// Recovers everything that others wait for. Returns the location of unsettled messages for each member,
    /// and the queues in which dead members have seats.
    fn recover_for(self, dead: &[Dead]) -> (Vec<InDoubt>, Vec<BlockId>) {
        let settled = dead.iter().map(|d| self.settle_intents(d.member)).collect();
        let mut pass = Pass::new(self.0, dead, Queues::Tell);
        pass.recover_envelopes();
        pass.recover_touched_blocks();
        (settled, pass.to_wake)
    }

    /// Settles the intents of a dead member. Returns the location of messages that could not be settled,
    /// because a living thread is handling them.
    fn settle_intents(self, dead: Member) -> InDoubt {
        let Some(rings) = RINGS.get() else { return InDoubt::Nothing };
        let intents: Vec<_> = Members(self.0).intents(dead).filter(|&w| self.map().load(w) != 0).collect();
        if intents.is_empty() {
            return InDoubt::Nothing;
        }
        let others = || Members(self.0).live_members().flat_map(|m| Members(self.0).intents(m)).collect();
        rings.settle(self.0, (dead, &intents), &others)
    }
}

impl<'a> Pass<'a> {
    fn new(arena: Arena, dead: &'a [Dead], queues: Queues) -> Self {
        Self { arena, dead, queues, deserted: Vec::new(), to_wake: Vec::new() }
    }

    fn is_dead(&self, member: Member) -> bool {
        self.dead.iter().any(|d| d.member == member)
    }

    /// Recovers all blocks in slabs that the dead members have touched. Also completes the work of other
    /// recovering processes that were killed or stopped.
    fn recover_touched_blocks(&mut self) {
        let (arena, slots) = (self.arena, self.dead.iter().map(|d| d.member.slot()));
        Members(arena).each_touched_slab(slots, |slab| {
            if let Some((class, _)) = Blocks(arena).slab(slab).filter(|_| slab < Blocks(arena).slab_count()) {
                (0..blocks_of(class)).for_each(|i| self.recover_block(slab * SLAB_BLOCKS + i));
            }
        });
        self.recover_deserted();
    }

    /// Releases the attachments of all messages in deserted queues.
    fn recover_deserted(&mut self) {
        while let (Some((ring, had)), Some(rings)) = (self.deserted.pop(), RINGS.get()) {
            let (arena, memory) = (self.arena, Blocks(self.arena).memory_of(ring));
            rings.contents(arena, memory, ring, &mut |e| self.give_up_attachments(e, had));
        }
    }

    fn recover_envelopes(&mut self) {
        let (envelopes, slots) = (Envelopes(self.arena), self.dead.iter().map(|d| d.member.slot()));
        envelopes.each_touched(slots, |e| self.recover_envelope(e));
    }

    fn recover_envelope(&mut self, e: EnvelopeId) {
        let word = Envelopes(self.arena).owner_words().of(e);
        let mut found = self.arena.map().load(word);
        // Repeated if another process was faster: a recovering process, or the child that the envelope was
        // promised to.
        while let Holder::Member(m) = Owner::unpack(found).holder
            && self.is_dead(m)
        {
            let counted = Owner::unpack(found).then(Holder::Member(m)).pack();
            match self.arena.map().cas(word, found, counted) {
                Ok(()) => {
                    self.give_up_attachments(e, m);
                    break;
                }
                Err(other) => found = other,
            }
        }
        let owner = Owner::unpack(found);
        if let (Holder::Leased(m), Some(rings)) = (owner.holder, RINGS.get())
            && self.is_dead(m)
        {
            rings.take_back(self.arena, e, owner);
        }
    }

    /// Releases the attachments of an envelope that no living process can get, but not the block with its
    /// bytes. Does not change the envelope.
    fn give_up_attachments(&mut self, e: EnvelopeId, dead: Member) {
        for (_, attach) in Allocator(self.arena).attachments(e) {
            if Blocks(self.arena).block_exists(attach.block)
                && let Some(seat) = Blocks(self.arena).seat_word(attach.block, attach.seat)
            {
                match (Blocks(self.arena).kind_of(attach.block) == BlockKind::Ring, self.queues) {
                    (true, Queues::Tell) => self.give_to_dead(dead, attach.block, (seat, e)),
                    (true, Queues::Vacate) => self.lose_handle(dead, e, attach),
                    (false, _) => self.give_up_for(dead, attach.block, (seat, Seat::Envelope(e))),
                }
            }
        }
    }

    /// Moves the handle of a queue out of a message of a dead member to the dead member itself, and notifies
    /// the queue.
    fn give_to_dead(&mut self, dead: Member, block: BlockId, (seat, e): (Word, EnvelopeId)) {
        // With this, other recovering processes find the seat if this process is killed or stopped after the
        // swap.
        Members(self.arena).touch(dead, block / SLAB_BLOCKS);
        // Fails if another process was faster. The list of attachments remains after its seats were released:
        // then the block may be another queue by now.
        if self.arena.map().cas(seat, Seat::Envelope(e).pack(), Seat::Member(dead).pack()).is_ok() {
            self.notify(block, dead);
            self.record_ring_to_wake(block, dead);
        }
    }

    /// Takes the handle of a queue out of a message of a dead member, notifies the queue, and drops the
    /// handle.
    fn lose_handle(&self, dead: Member, e: EnvelopeId, attach: Attachment) {
        if let Ok(hold) = Allocator(self.arena).adopt(e, attach) {
            self.notify(attach.block, dead);
            drop(hold);
            Notices(self.arena).tell_of_a_lost_holder();
        }
    }

    /// Releases a seat of a block. If the block then has no holder, it is claimed for the dead member.
    fn give_up_for(&mut self, dead: Member, block: BlockId, seat: (Word, Seat)) {
        // So the process that reclaims that member finds it.
        Members(self.arena).touch(dead, block / SLAB_BLOCKS);
        self.note_claimed(block, run(Blocks(self.arena).release(block, dead, seat), self.arena.map()));
    }

    fn note_claimed(&mut self, block: BlockId, outcome: ReleaseOutcome) {
        if let ReleaseOutcome::MustFree(state) = outcome
            && let (BlockLife::Busy(had), BlockKind::Ring) = (state.life, state.kind)
        {
            self.deserted.push((block, had));
        }
    }

    /// Notifies a queue that a dead member no longer holds it.
    fn notify(&self, block: BlockId, dead: Member) {
        let pid = Members(self.arena).pid_of(dead);
        Blocks(self.arena).ring_holder_gone(block, DetachedProcess::Member(dead), pid);
    }

    fn recover_block(&mut self, block: BlockId) {
        let state = BlockState::unpack(self.arena.map().load(Blocks(self.arena).block_at(block).state));
        match (state.life, state.kind) {
            // The member died while it drained the ring, or a recovering process gave up the last other
            // holder's seat.
            (BlockLife::Busy(m), BlockKind::Ring) if self.is_dead(m) => self.deserted.push((block, m)),
            (BlockLife::Busy(_) | BlockLife::Free, _) => {}
            // A process without a ring layer recovers members that never had queues: the process that gave up
            // this queue's seats handles it.
            (BlockLife::Live, BlockKind::Ring) if RINGS.get().is_none() => {}
            (BlockLife::Live, kind) => self.recover_seats(block, kind),
        }
    }

    fn recover_seats(&mut self, block: BlockId, kind: BlockKind) {
        let (arena, dead) = (self.arena, self.dead);
        let mut held = false;
        let mut had = None;
        Blocks(arena).each_seat(block, |seat| {
            let holder = Seat::unpack(arena.map().load(seat));
            match (dead.iter().find(|d| holder == Seat::Member(d.member)), kind) {
                (Some(d), BlockKind::Ring) if self.queues == Queues::Tell => {
                    Blocks(arena).ring_holder_gone(block, DetachedProcess::Member(d.member), d.pid);
                    had = Some(d.member);
                }
                // A page of seats is treated differently if it is linked to its block, so the reclaim handles
                // it.
                (Some(_), BlockKind::Seats) => held = true,
                (Some(d), _) => self.give_up_for(d.member, block, (seat, holder)),
                (None, _) => held |= holder != Seat::Free,
            }
        });
        if let Some(had) = had {
            self.record_ring_to_wake(block, had);
        } else if !held
            && let Some(d) = dead.iter().find(|d| Members(arena).has_touched(d.member, block / SLAB_BLOCKS))
        {
            // The process that gave up the last seat died, or is stopped, before it checked whether it was
            // the last one.
            let check = FreeCheck::new(Blocks(arena).block_at(block), Blocks(arena).pages(), d.member);
            self.note_claimed(block, run(check, arena.map()));
        }
    }

    /// Records a queue to wake again: it was notified, and a dead member still has a seat in it.
    fn record_ring_to_wake(&mut self, block: BlockId, had: Member) {
        self.to_wake.push(block);
        if self.only_dead_hold(block) {
            self.deserted.push((block, had));
        }
    }

    /// Returns `true` if all holders of a live block are known to be dead. Such a block never gets a living
    /// holder again.
    fn only_dead_hold(&self, block: BlockId) -> bool {
        let at = Blocks(self.arena).block_at(block).state;
        // A holder that takes one more seat already has a seat, and increments the state before it gives up
        // the first seat.
        let before = self.arena.map().load(at);
        let mut only = BlockState::unpack(before).life == BlockLife::Live;
        Blocks(self.arena).each_seat(block, |seat| {
            only &= match Seat::unpack(self.arena.map().load(seat)) {
                Seat::Free => true,
                Seat::Member(m) => Members(self.arena).is_known_dead(m),
                Seat::Envelope(_) | Seat::Block(_) => false,
            };
        });
        only && (self.arena.map().load(at) == before)
    }
}
