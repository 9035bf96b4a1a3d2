//! Recovery of everything that processes wait for from dead members, in any number of processes at once.
//!
//! [`BeginRecovery`] describes the interplay of recovery and reclaim, and the state after a death or a stop.
//! A recovery makes these steps in order:
//!
//! 1. The intents of the dead member's threads: each names the one envelope whose owner may be in doubt. The
//!    ring layer decides, and gives the envelope to the dead member or to others. (If it can't yet, because a
//!    living thread is handling that envelope, all other steps are done, and another recovery follows.)
//! 2. The envelopes: those that the member had leased return to their queues. The attachments of those that
//!    it owned are released. The handle of a queue is given to the dead member instead, so that step 3
//!    notifies that queue, whether this process holds it or not.
//! 3. The blocks: the member's seats are released, except in queues. The queues are notified of the death,
//!    and of returned messages. (The notification is written into the queue's memory, which is not reused as
//!    long as that seat is there.)
//! 4. Messages that no process will ever get, because they are in a queue held only by dead members: their
//!    attachments are released as in step 2.
//!
//! Once the only recovering process has completed these steps, recoveries make this step:
//!
//! 5. The blocks: the member's seats in queues are released. A queue without any holder then belongs to the
//!    dead member, and the attachments of its messages are released. This process takes the handle of a queue
//!    in such a message itself, notifies that queue, and drops the handle.
//!
//! In steps 2 and 4 the seat of a message becomes the dead member's by one swap. So the queue exists until
//! all recovering processes have notified it, and no process waits for a stopped one. After step 4 no
//! recovering process writes into a queue in which the dead member has a seat. So a handle found in step 5
//! becomes an ordinary handle of this process. A model covers both cases:
//! `tools/models/tests/models/lost_handles.rs`.
//!
//! Step 4 exists although step 5 does the same, since step 4 need not wait until all recoveries have ended.
//! In step 5 a process may leave a queue at any time. If it finds the dead member's seat released, it is the
//! last holder, and owns the queue. If the seat is not released yet, the recovering process that releases it
//! claims the queue for the dead member. Then every recovering process releases the attachments of its
//! messages.
//!
//! A block that loses its last holder in a recovery is claimed for the dead member (`BUSY(dead)`), and left
//! to the reclaim.
//!
//! An envelope of the dead member may be promised to a child, which takes it by a swap of exactly the owner
//! word that it received. So the word's sequence is incremented first. After that no living process can take
//! the envelope, and its list of attachments stays.

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::layout::SLAB_BLOCKS;
use crate::layout::size_class::blocks_of;
use crate::mem::{Mem, Word, run};
use crate::members::Members;
use crate::parking::detach_notice::DetachedProcess;
use crate::parking::notices::Notices;
use crate::recovery::Recovery;
use crate::recovery::reclaim::Dead;
use crate::ring_layer::{InDoubt, RINGS};
use crate::steps::{BeginRecovery, CheckSoleRecovery, EndRecovery, FreeCheck, ReleaseOutcome, ReleaseSeat};
use crate::words::{
    Attachment, BlockId, BlockKind, BlockLife, BlockState, EnvelopeId, Holder, Member, Owner, Presence,
    RecoveringSlots, Seat, Tenancy,
};

/// A queue that no living process holds, and a dead member that holds it.
type DesertedQueue = (BlockId, Member);

/// A dead member that this process recovers.
struct DeadInRecovery {
    dead: Dead,
    counted: Tenancy,
    /// `true` if no other process was recovering it.
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

/// Results of a pass over blocks.
#[derive(Default)]
struct PassResult {
    deserted: Vec<DesertedQueue>,
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
            let next = if v.alone { run(EndRecovery::new(word, v.counted, me), self.map()) } else { None };
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
            self.vacate(&members(&to_vacate), to_wake);
        }
        if !late.is_empty() {
            self.vacate_all(&members(&late));
        }
        let to_reclaim = to_vacate.into_iter().chain(late).filter_map(&mut end).map(|v| v.dead).collect();
        self.map().store(mine, 0);
        (to_reclaim, disturbed)
    }

    fn recovers_alone(self, slot: u32, me: Member) -> bool {
        let live =
            Members(self.0).used_slots().filter(|&(s, t)| t.presence == Presence::Live && s != me.slot());
        let others =
            live.map(|(s, t)| (Members(self.0).recovering_word(s), Member::new(s, t.epoch))).collect();
        run(CheckSoleRecovery::new(slot, others, |m| Members(self.0).is_dead(m)), self.map())
    }

    /// Recovers everything that others wait for. Returns the remaining doubts for each member, and the queues
    /// that the members hold.
    fn recover_for(self, dead: &[Dead]) -> (Vec<InDoubt>, Vec<BlockId>) {
        let settled = dead.iter().map(|d| self.settle_intents(d.member)).collect();
        let mut found = PassResult::default();
        self.recover_envelopes(dead, &mut found);
        self.each_block_touched(dead, |block| self.recover_block(block, dead, Queues::Tell, &mut found));
        self.recover_deserted(Queues::Tell, &mut found);
        (settled, found.to_wake)
    }

    /// Releases the dead members' seats in these queues.
    fn vacate(self, dead: &[Dead], queues: Vec<BlockId>) {
        let mut found = PassResult::default();
        queues.into_iter().for_each(|block| self.recover_block(block, dead, Queues::Vacate, &mut found));
        self.recover_deserted(Queues::Vacate, &mut found);
    }

    /// Same as [`vacate`](Self::vacate), in all queues, even if other recovering processes were killed or
    /// stopped while they did the same.
    fn vacate_all(self, dead: &[Dead]) {
        let mut found = PassResult::default();
        self.each_block_touched(dead, |block| self.recover_block(block, dead, Queues::Vacate, &mut found));
        self.recover_deserted(Queues::Vacate, &mut found);
    }

    fn each_block_touched(self, dead: &[Dead], mut f: impl FnMut(BlockId)) {
        Members(self.0).each_touched_slab(dead.iter().map(|d| d.member.slot()), |slab| {
            if let Some((class, _)) = Blocks(self.0).slab(slab).filter(|_| slab < Blocks(self.0).slab_count())
            {
                (0..blocks_of(class)).for_each(|i| f(slab * SLAB_BLOCKS + i));
            }
        });
    }

    /// Releases the attachments of messages that no process will ever get.
    fn recover_deserted(self, queues: Queues, found: &mut PassResult) {
        while let (Some((ring, had)), Some(rings)) = (found.deserted.pop(), RINGS.get()) {
            let (at, len) = Blocks(self.0).data_of(ring);
            let each = &mut |e| self.give_up_attachments(e, had, queues, found);
            rings.contents(self.0, (Word::at(at), len), ring, each);
        }
    }

    /// Settles the intents of a dead member. Returns those that could not be settled, because a living thread
    /// is handling that envelope.
    fn settle_intents(self, dead: Member) -> InDoubt {
        let Some(rings) = RINGS.get() else { return InDoubt::Nothing };
        let intents: Vec<_> = Members(self.0).intents(dead).filter(|&w| self.map().load(w) != 0).collect();
        if intents.is_empty() {
            return InDoubt::Nothing;
        }
        let others = || {
            let live = Members(self.0).used_slots().filter(|(_, t)| t.presence == Presence::Live);
            live.flat_map(|(slot, t)| Members(self.0).intents(Member::new(slot, t.epoch))).collect()
        };
        rings.settle(self.0, (dead, &intents), &others)
    }

    fn recover_envelopes(self, dead: &[Dead], seen: &mut PassResult) {
        let theirs = |m| dead.iter().any(|d| d.member == m);
        for e in Envelopes(self.0).envelopes_in_use(0) {
            let word = Envelopes(self.0).owner_words().of(e);
            let mut found = self.map().load(word);
            // Again if another process was faster: a recovering process, or the child that the envelope was
            // promised to.
            while let Holder::Member(m) = Owner::unpack(found).holder
                && theirs(m)
            {
                let counted = Owner::unpack(found).then(Holder::Member(m)).pack();
                match self.map().cas(word, found, counted) {
                    Ok(()) => {
                        self.give_up_attachments(e, m, Queues::Tell, seen);
                        break;
                    }
                    Err(other) => found = other,
                }
            }
            let owner = Owner::unpack(found);
            if let (Holder::Leased(m), Some(rings)) = (owner.holder, RINGS.get())
                && theirs(m)
            {
                rings.take_back(self.0, e, owner);
            }
        }
    }

    /// Releases the attachments of an envelope that no living process can get, but not the block with its
    /// bytes. Does not change the envelope.
    fn give_up_attachments(self, e: EnvelopeId, dead: Member, queues: Queues, found: &mut PassResult) {
        for (_, attach) in Allocator(self.0).attachments(e) {
            if Blocks(self.0).block_exists(attach.block)
                && let Some(seat) = Blocks(self.0).seat_word(attach.block, attach.seat)
            {
                match (Blocks(self.0).kind_of(attach.block) == BlockKind::Ring, queues) {
                    (true, Queues::Tell) => self.give_to_dead(dead, attach.block, (seat, e), found),
                    (true, Queues::Vacate) => self.lose_handle(dead, e, attach),
                    (false, _) => {
                        let holder = (seat, Seat::Envelope(e));
                        self.give_up_for(dead, attach.block, holder, &mut found.deserted);
                    }
                }
            }
        }
    }

    /// Gives the handle of a queue, which is in a message of a dead member, to that member, and notifies the
    /// queue.
    fn give_to_dead(
        self,
        dead: Member,
        block: BlockId,
        (seat, e): (Word, EnvelopeId),
        found: &mut PassResult,
    ) {
        // With this, other recovering processes find the seat if this process is killed or stopped after the
        // swap.
        Members(self.0).touch(dead, block / SLAB_BLOCKS);
        // Fails if another process was faster. The list of attachments remains after its seats were released:
        // then the block may be another queue by now.
        if self.map().cas(seat, Seat::Envelope(e).pack(), Seat::Member(dead).pack()).is_ok() {
            Blocks(self.0).ring_holder_gone(
                block,
                DetachedProcess::Member(dead),
                Members(self.0).pid_of(dead),
            );
            self.record_ring_to_wake(block, dead, found);
        }
    }

    /// Takes the handle of a queue out of a message of a dead member, notifies the queue, and drops the
    /// handle.
    fn lose_handle(self, dead: Member, e: EnvelopeId, attach: Attachment) {
        if let Ok(hold) = Allocator(self.0).adopt(e, attach) {
            Blocks(self.0).ring_holder_gone(
                attach.block,
                DetachedProcess::Member(dead),
                Members(self.0).pid_of(dead),
            );
            drop(hold);
            Notices(self.0).tell_of_a_lost_holder();
        }
    }

    /// Releases a seat. If it was the last one, the block then belongs to the dead member.
    fn give_up_for(
        self,
        dead: Member,
        block: BlockId,
        seat: (Word, Seat),
        deserted: &mut Vec<DesertedQueue>,
    ) {
        // So the process that reclaims that member finds it.
        Members(self.0).touch(dead, block / SLAB_BLOCKS);
        let release =
            ReleaseSeat::new(Blocks(self.0).block_at(block), Blocks(self.0).pages(), dead, seat.0, seat.1);
        Self::claimed(block, run(release, self.map()), deserted);
    }

    fn claimed(block: BlockId, end: ReleaseOutcome, deserted: &mut Vec<DesertedQueue>) {
        if let ReleaseOutcome::MustFree(BlockState {
            life: BlockLife::Busy(had),
            kind: BlockKind::Ring,
            ..
        }) = end
        {
            deserted.push((block, had));
        }
    }

    fn recover_block(self, block: BlockId, dead: &[Dead], queues: Queues, found: &mut PassResult) {
        let state = BlockState::unpack(self.map().load(Blocks(self.0).block_at(block).state));
        match (state.life, state.kind) {
            // The member died while it drained the ring, or a recovering process gave up the last other
            // holder's seat.
            (BlockLife::Busy(m), BlockKind::Ring) if dead.iter().any(|d| d.member == m) => {
                found.deserted.push((block, m))
            }
            (BlockLife::Busy(_) | BlockLife::Free, _) => {}
            // A process without a ring layer recovers members that never had queues: the process that gave up
            // this queue's seats handles it.
            (BlockLife::Live, BlockKind::Ring) if RINGS.get().is_none() => {}
            (BlockLife::Live, kind) => self.recover_seats(block, kind, dead, queues, found),
        }
    }

    fn recover_seats(
        self,
        block: BlockId,
        kind: BlockKind,
        dead: &[Dead],
        queues: Queues,
        found: &mut PassResult,
    ) {
        let mut held = false;
        let mut had = None;
        Blocks(self.0).each_seat(block, |seat| {
            let holder = Seat::unpack(self.map().load(seat));
            match (dead.iter().find(|d| holder == Seat::Member(d.member)), kind) {
                (Some(d), BlockKind::Ring) if queues == Queues::Tell => {
                    Blocks(self.0).ring_holder_gone(block, DetachedProcess::Member(d.member), d.pid);
                    had = Some(d.member);
                }
                // A page of seats is treated differently if it is linked to its block, so the reclaim handles
                // it.
                (Some(_), BlockKind::Seats) => held = true,
                (Some(d), _) => self.give_up_for(d.member, block, (seat, holder), &mut found.deserted),
                (None, _) => held |= holder != Seat::Free,
            }
        });
        if let Some(had) = had {
            self.record_ring_to_wake(block, had, found);
        } else if !held
            && let Some(d) = dead.iter().find(|d| Members(self.0).has_touched(d.member, block / SLAB_BLOCKS))
        {
            // The process that gave up the last seat died, or is stopped, before it checked whether it was
            // the last one.
            let check = FreeCheck::new(Blocks(self.0).block_at(block), Blocks(self.0).pages(), d.member);
            Self::claimed(block, run(check, self.map()), &mut found.deserted);
        }
    }

    /// Records that a queue was notified, in which a dead member has a seat.
    fn record_ring_to_wake(self, block: BlockId, had: Member, found: &mut PassResult) {
        found.to_wake.push(block);
        if self.only_dead_hold(block) {
            found.deserted.push((block, had));
        }
    }

    /// Returns `true` if all holders of a live block are dead members. If so, it never gets a living holder
    /// again.
    fn only_dead_hold(self, block: BlockId) -> bool {
        let at = Blocks(self.0).block_at(block).state;
        // A holder that takes one more seat already has a seat, and increments the state before it gives up
        // the first seat.
        let before = self.map().load(at);
        let mut only = BlockState::unpack(before).life == BlockLife::Live;
        Blocks(self.0).each_seat(block, |seat| {
            only &= match Seat::unpack(self.map().load(seat)) {
                Seat::Free => true,
                Seat::Member(m) => Members(self.0).is_known_dead(m),
                Seat::Envelope(_) | Seat::Block(_) => false,
            };
        });
        only && (self.map().load(at) == before)
    }
}
