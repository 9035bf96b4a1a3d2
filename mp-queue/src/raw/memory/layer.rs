//! # Safety
//! What the arena's sweep needs of rings, and a function that registers it before `main`. Unsafe, because the sweep relies on the
//! answers, and the C library calls that function; sound, because an envelope is given to a dead member only by [`Settle`], and
//! named as a ring's only if its own words say so, and the function takes nothing, unwinds nowhere and stays where it is.
#![allow(unsafe_code)]

use mp_core::giving_up::Gone;
use mp_core::mem::{Mem, Word, run};
use mp_core::words::{BlockId, EnvelopeId, Holder, Member, Owner, Place};
use mp_core::{Arena, InDoubt, RingLayer};

use super::RingMemory;
use crate::ring::{GetEnd, Link, Settle, Settled, Surroundings};

/// The arena around an intent.
struct RingsOfIntent<'a> {
    arena: Arena,
    others: &'a dyn Fn() -> Vec<Word>,
    dead: Member,
}

impl Surroundings for RingsOfIntent<'_> {
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
        self.arena.ring_is_held_by(ring, self.dead)
    }

    fn redelivers(&self, ring: BlockId) -> bool {
        RingMemory::open(self.arena, ring).is_some_and(|r| r.redelivers())
    }

    fn dead(&self) -> Member {
        self.dead
    }
}

/// Settles the intents of a dead member, see [`Settle`]; what is left in doubt.
fn settle(arena: Arena, (dead, intents): (Member, &[Word]), others: &dyn Fn() -> Vec<Word>) -> InDoubt {
    let columns = (arena.owner_words(), arena.place_words());
    let mut left = InDoubt::Nothing;
    // All of them, also if one has to wait.
    for &intent in intents {
        let around = RingsOfIntent { arena, others, dead };
        if let Settled::Later(ring) = run(Settle::new(intent, columns, around), RingMemory::words(arena)) {
            left = match left {
                InDoubt::Nothing => InDoubt::Ring(ring),
                InDoubt::Ring(before) if before == ring => left,
                InDoubt::Ring(_) | InDoubt::Rings => InDoubt::Rings,
            };
        }
    }
    left
}

/// Returns a lease of a dead member to its queue, which that member holds as long as this process visits it.
fn take_back(arena: Arena, e: EnvelopeId, owner: Owner) {
    let m = RingMemory::words(arena);
    // If another owner has it meanwhile, it is not returned.
    let place = Place::unpack(m.load(arena.place_words().of(e)));
    if let Some(ring) = RingMemory::open(arena, place.ring) {
        ring.return_for_dead_holder(e, owner);
    }
}

/// This crate, to the arena.
#[derive(Debug)]
struct Rings;

/// What is registered.
// fork: it never changes.
pub(crate) static LAYER: &dyn RingLayer = &Rings;

/// Registers the layer before `main`, and so before this process joins an arena: it may be the only one that is left to release what
/// others had in their queues, and use none itself. No function of this crate need be called for that.
#[cfg(not(any(mp_loom, miri)))]
mod at_load {
    #[used]
    // SAFETY: a C library calls what is in this section, with arguments that a C function may leave aside or with none; the static
    // has the size and the alignment of an entry.
    #[unsafe(link_section = ".init_array")]
    // fork: code, which never changes.
    static ENTRY: extern "C" fn() = register;

    /// Sets a pointer: it allocates nothing, makes no system call and can't panic.
    extern "C" fn register() {
        mp_core::Arena::register_ring_layer(&super::LAYER);
    }
}

// SAFETY: `Settle` gives away what is `QUEUED`, in no slot, and intended by no live thread; draining and
// noting a death change only the words of the ring that is passed; `contents` asks each envelope where it is.
unsafe impl RingLayer for Rings {
    fn settle(&self, arena: Arena, dead: (Member, &[Word]), others: &dyn Fn() -> Vec<Word>) -> InDoubt {
        settle(arena, dead, others)
    }

    fn take_back(&self, arena: Arena, envelope: EnvelopeId, owner: Owner) {
        take_back(arena, envelope, owner);
    }

    fn drain(&self, arena: Arena, (base, len): (Word, u64), block: BlockId) {
        let Some(ring) = RingMemory::at(arena, block, base, len) else { return };
        if let Some(kept) = ring.kept() {
            return kept.drain();
        }
        // Queues that are attached to a message have a holder less when it is dropped, and their waiters
        // learn of that. All envelopes are looked at: not for a queue where nothing can have come back.
        for sort in [Holder::Returned, Holder::Undeliverable].into_iter().filter(|_| ring.redelivers()) {
            while let Ok(Some(_lost)) = ring.drain_returned(sort) {}
        }
        for i in 0..ring.segments() {
            let mut message = None;
            loop {
                match ring.get(i, &mut message) {
                    Ok(GetEnd::Done(())) => message = None,
                    // The slot is taken.
                    Err(mp_core::Error::Malformed(_)) => {}
                    Ok(GetEnd::Empty | GetEnd::Closed) | Err(_) => break,
                }
            }
            if ring.link(i) != Link::Open {
                return;
            }
        }
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

    fn holder_gone(&self, arena: Arena, (base, len): (Word, u64), block: BlockId, gone: Gone, pid: u32) {
        let Some(ring) = RingMemory::at(arena, block, base, len) else { return };
        // What came back is noted first, before waiters get an error because no other holder is left.
        let member = gone.member();
        if arena.me().is_ok_and(|me| member.is_some_and(|member| member != me)) {
            ring.note_returned();
        }
        // Before it is noted: a sender that sees the note collects what was pinned.
        if let (Some(kept), Some(dead)) = (ring.kept(), member) {
            kept.unpin_dead(dead);
        }
        ring.note_gone(gone, pid);
        ring.wake_all();
    }

    fn wake(&self, arena: Arena, (base, len): (Word, u64), block: BlockId) {
        if let Some(ring) = RingMemory::at(arena, block, base, len) {
            ring.wake_all();
        }
    }
}
