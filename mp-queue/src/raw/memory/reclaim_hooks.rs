//! # Safety
//! Ring operations for the arena's recovery and reclaim, and a function that registers them before `main`.
//! The code is unsafe because the arena relies on the results of these operations, and because the C library
//! calls the function. It is sound because only [`Settle`] gives an envelope to a dead member, and an
//! envelope is reported as a ring's only if the envelope's own words name that ring. The function takes no
//! arguments, never unwinds and has a fixed address.
#![allow(unsafe_code)]

use mp_core::Blocks;
use mp_core::Envelopes;
use mp_core::detach_notice::DetachedProcess;
use mp_core::mem::{Mem, Word, run};
use mp_core::words::{BlockId, EnvelopeId, Holder, Member, Owner, RingPlace};
use mp_core::{Arena, InDoubt, RingLayer, RingState};

use super::RingMemory;
use crate::ring::{IntentContext, Link, Position, Settle, SettleOutcome, Slot};

/// Context for settling an intent of the member `dead`. `others` returns the intent words of living threads.
struct RingContext<'a> {
    arena: Arena,
    others: &'a dyn Fn() -> Vec<Word>,
    dead: Member,
}

impl IntentContext for RingContext<'_> {
    fn intents(&self) -> Vec<Word> {
        (self.others)()
    }

    fn slot(&self, ring: BlockId, slot: u32) -> Option<Word> {
        RingMemory::open(self.arena, ring)?.chain.slot(slot)
    }

    fn exists(&self, envelope: EnvelopeId) -> bool {
        envelope < self.arena.most_messages()
    }

    fn holds(&self, ring: BlockId) -> bool {
        Blocks(self.arena).ring_is_held_by(ring, self.dead)
    }

    fn redelivers(&self, ring: BlockId) -> bool {
        RingMemory::open(self.arena, ring).is_some_and(|r| r.redelivers())
    }

    fn dead(&self) -> Member {
        self.dead
    }
}

/// Number of messages that are drained before the head hint is advanced. If the draining process dies, the
/// next process skips at most this many empty slots.
const BATCH: u32 = 64;
/// Distance in slots between the message that is drained and the message whose owner word is prefetched.
const AHEAD: u32 = 8;

impl RingMemory {
    /// Takes and drops up to [`BATCH`] messages of segment `i`. `last` is the position of the last dropped
    /// message. Returns `false` if the segment has no more messages.
    fn drain_batch(&self, i: u32, last: &mut Option<Position>) -> bool {
        let (m, ring) = (Self::words(self.arena), self.chain.segment(i));
        let (mut first, mut more) = (None, true);
        for _ in 0..BATCH {
            match self.get_next(i, *last) {
                Ok(Some((message, position))) => {
                    let ahead = position.index + AHEAD;
                    let next = (ahead < ring.slots).then(|| Slot::unpack(m.load_relaxed(ring.slot(ahead))));
                    if let Some(e) = next.and_then(Slot::envelope).filter(|&e| e < ring.envelopes) {
                        m.will_write(Envelopes(self.arena).owner_words().of(e));
                    }
                    drop(message);
                    first = first.or(Some(position));
                    *last = Some(position);
                }
                // The slot named a message of another queue, and was emptied. Its position is unknown, so the
                // next batch begins at the head.
                Err(mp_core::Error::Malformed(_)) => {
                    *last = None;
                    return true;
                }
                Ok(None) | Err(_) => {
                    more = false;
                    break;
                }
            }
        }
        if let (Some(first), Some(last)) = (first, *last) {
            self.advance_head(i, first, last);
        }
        more
    }
}

/// Implementation of the arena's [`RingLayer`].
#[derive(Debug)]
struct Rings;

/// Ring layer that is registered with the arena.
// fork: never changes.
pub(crate) static LAYER: &dyn RingLayer = &Rings;

/// Registration of the ring layer before `main`, so before this process joins an arena. Every process needs
/// the layer, even a process that uses no queue: it may be the last process that can release the messages in
/// queues of other processes.
#[cfg(not(any(mp_loom, miri)))]
mod at_load {
    #[used]
    // SAFETY: the C library calls the entries of this section, with arguments that a C function may ignore or
    // with none. The static has the size and the alignment of an entry.
    #[unsafe(link_section = ".init_array")]
    // fork: code, which never changes.
    static ENTRY: extern "C" fn() = register;

    /// Stores the pointer to the ring layer. Allocates nothing, makes no system call and can't panic.
    extern "C" fn register() {
        mp_core::register_ring_layer(&super::LAYER);
    }
}

// SAFETY: `Settle` takes over only messages that are `QUEUED`, in no slot, and intended by no live thread.
// Draining a ring and recording a death change only the words of the ring that is passed. `contents` checks
// the location of each envelope.
unsafe impl RingLayer for Rings {
    fn settle(
        &self,
        arena: Arena,
        (dead, intents): (Member, &[Word]),
        others: &dyn Fn() -> Vec<Word>,
    ) -> InDoubt {
        let columns = (Envelopes(arena).owner_words(), Envelopes(arena).place_words());
        let mut left = InDoubt::Nothing;
        // Settles all intents, even if one is undecided.
        for &intent in intents {
            let settle = Settle::new(intent, columns, RingContext { arena, others, dead });
            if let SettleOutcome::Undecided(ring) = run(settle, RingMemory::words(arena)) {
                left = match left {
                    InDoubt::Nothing => InDoubt::Ring(ring),
                    InDoubt::Ring(before) if before == ring => left,
                    InDoubt::Ring(_) | InDoubt::Rings => InDoubt::Rings,
                };
            }
        }
        left
    }

    fn take_back(&self, arena: Arena, envelope: EnvelopeId, owner: Owner) {
        let place = RingMemory::words(arena).load(Envelopes(arena).place_words().of(envelope));
        // If the message has another owner by now, it is not returned.
        if let Some(ring) = RingMemory::open(arena, RingPlace::unpack(place).ring) {
            ring.return_for_dead_holder(envelope, owner);
        }
    }

    fn drain(&self, arena: Arena, (base, len): (Word, u64), block: BlockId) {
        let Some(ring) = RingMemory::at(arena, block, base, len) else { return };
        if let Some(retained) = ring.retained() {
            return retained.drain();
        }
        // Dropping a message with attached queues releases its hold on them and wakes their waiters. This
        // checks all envelopes, so it is skipped for a queue to which nothing can have been returned.
        for sort in [Holder::Returned, Holder::Undeliverable].into_iter().filter(|_| ring.redelivers()) {
            let mut last = 0;
            while let Ok(Some(lost)) = ring.drain_returned(sort, last) {
                last = lost.id();
            }
        }
        for i in 0..ring.segments() {
            let mut last = None;
            while ring.drain_batch(i, &mut last) {}
            if ring.link(i) != Link::Open {
                return;
            }
        }
    }

    fn describe(&self, arena: Arena, (base, len): (Word, u64), block: BlockId) -> Option<RingState> {
        Some(RingMemory::at(arena, block, base, len)?.describe())
    }

    fn contents(
        &self,
        arena: Arena,
        (base, len): (Word, u64),
        block: BlockId,
        each: &mut dyn FnMut(EnvelopeId),
    ) {
        if let Some(ring) = RingMemory::at(arena, block, base, len) {
            ring.contents(each);
        }
    }

    fn holder_gone(
        &self,
        arena: Arena,
        (base, len): (Word, u64),
        block: BlockId,
        gone: DetachedProcess,
        pid: u32,
    ) {
        let Some(ring) = RingMemory::at(arena, block, base, len) else { return };
        // Returned messages are noted before waiters get an error because no other holder is left.
        let member = gone.member();
        if arena.me().is_ok_and(|me| member.is_some_and(|member| member != me)) {
            ring.note_returned();
        }
        // Pins are cleared before the death is recorded: a sender that reads the record collects the messages
        // that were pinned.
        if let (Some(retained), Some(dead)) = (ring.retained(), member) {
            retained.unpin_dead(dead);
        }
        ring.record_detached(gone, pid);
        ring.wake_all();
    }

    fn wake(&self, arena: Arena, (base, len): (Word, u64), block: BlockId) {
        if let Some(ring) = RingMemory::at(arena, block, base, len) {
            ring.wake_all();
        }
    }
}
