//! # Safety
//! Where this crate touches the words of the arena. Unsafe, because the words could be anybody's; sound, because a
//! [`RingMemory`] is made only of a block that is held (or being swept) and has a ring's header, the steps of
//! [`ring`](crate::ring) change nothing but that ring's words and the envelopes that they own, and envelopes
//! are made once of each successful get.
#![allow(unsafe_code)]

use mp_core::mem::{Mem, Word, run};
use mp_core::words::{BlockId, EnvelopeId, Holder, Member};
use mp_core::{Arena, Envelope, Hold, Parking, RingLayer};

use crate::header::Header;
use crate::ring::{Close, Get, Got, Put, PutEnd, RingAt, Settle, Settled, Surroundings, Ticket};

/// A ring's words, and the arena they are in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMemory {
    arena: Arena,
    header: Header,
    ring: RingAt,
}

/// What a get found.
#[derive(Debug)]
pub(crate) enum Taken {
    Message,
    Empty,
    Closed,
}

/// What became of a put.
#[derive(Debug)]
pub(crate) enum Given {
    Done,
    Full,
    Closed,
}

impl RingMemory {
    fn words(arena: Arena) -> &'static impl Mem {
        // SAFETY: used for the words of rings and of envelopes by the steps of `ring`, and for ring headers, see above.
        unsafe { arena.words() }
    }

    /// Makes a ring in fresh memory, and a ring of the block.
    pub(crate) fn create(hold: &Hold, slots: u32, fingerprint: u64, type_name: &str) -> Self {
        let arena = hold.arena();
        let header = Header::at(arena.block_words(hold).0);
        header.write(Self::words(arena), hold.block(), slots, fingerprint, type_name);
        // SAFETY: the block was just allocated, nobody else has it, and the header is written.
        unsafe { arena.become_ring(hold) };
        Self { arena, header, ring: header.ring(hold.block(), slots) }
    }

    /// The ring in a block that is held, or swept, by the caller; `None` if there is none in it.
    pub(crate) fn open(arena: Arena, block: BlockId) -> Option<Self> {
        let (base, len) = arena.ring_memory(block)?;
        Self::at(arena, block, base, len)
    }

    /// The ring at `base`.
    pub(crate) fn at(arena: Arena, block: BlockId, base: Word, len: u64) -> Option<Self> {
        let header = Header::at(base);
        let ring = header.read(Self::words(arena), block, len)?;
        Some(Self { arena, header, ring })
    }

    pub(crate) fn slots(&self) -> u32 {
        self.ring.slots
    }
    pub(crate) fn fingerprint(&self) -> u64 {
        self.header.fingerprint(Self::words(self.arena))
    }
    pub(crate) fn type_name(&self) -> String {
        self.header.type_name(Self::words(self.arena))
    }
    pub(crate) fn note_gone(&self, dead: Member, pid: u32) {
        self.header.note_gone(Self::words(self.arena), dead, pid);
    }
    pub(crate) fn last_gone(&self) -> Option<(Member, u32)> {
        self.header.last_gone(Self::words(self.arena))
    }

    /// How many messages are between head and tail; a moment's picture.
    pub(crate) fn len(&self) -> usize {
        let m = Self::words(self.arena);
        let head = Ticket::unpack(m.load(self.ring.head));
        let tail = Ticket::unpack(m.load(self.ring.tail));
        let ahead = tail.since(head, self.ring.slots);
        // Either hint may lag a little.
        if ahead <= 2 * u64::from(self.ring.slots) {
            ahead.min(u64::from(self.ring.slots)) as usize
        } else {
            0
        }
    }

    pub(crate) fn not_empty(&self) -> Parking {
        // SAFETY: a parking word of this ring's header, used for nothing else; the ring is held.
        unsafe { Parking::new(self.arena, self.header.not_empty()) }
    }
    pub(crate) fn not_full(&self) -> Parking {
        // SAFETY: as for `not_empty`.
        unsafe { Parking::new(self.arena, self.header.not_full()) }
    }

    /// Puts an envelope, once. It stays the caller's unless it is done.
    #[inline]
    pub(crate) fn put(&self, envelope: &mut Envelope) -> mp_core::Result<Given> {
        let arena = self.arena;
        let (id, owner) = (envelope.id(), envelope.owner());
        let words = (id, arena.owner_words().of(id), arena.place_words().of(id));
        let end = arena.with_intent(|me, intent| {
            run(Put::new(self.ring, intent, words, me, owner), Self::words(arena))
        })?;
        let (given, owner) = match end {
            PutEnd::Done(_) => (Given::Done, owner.then(Holder::Queued)),
            PutEnd::Full(owner) => (Given::Full, owner),
            PutEnd::Closed(owner) => (Given::Closed, owner),
        };
        // SAFETY: published, it is the ring's; neither published nor freed, it is still this process's, with the owner
        // word given back.
        unsafe { envelope.set_owner(owner) };
        Ok(given)
    }

    /// Takes an envelope, once; into `into`, if there is one.
    #[inline]
    pub(crate) fn get(&self, into: &mut Option<Envelope>) -> mp_core::Result<Taken> {
        let arena = self.arena;
        let got = arena.with_intent(|me, intent| {
            run(Get::new(self.ring, intent, arena.owner_words(), me), Self::words(arena))
        })?;
        Ok(match got {
            Got::Envelope(id, owner) => {
                // SAFETY: `Get` has just made this process its owner, and ends once.
                *into = Some(unsafe { arena.envelope_from_raw(id, owner) });
                Taken::Message
            }
            Got::Empty => Taken::Empty,
            Got::Closed => Taken::Closed,
        })
    }

    /// Closes the ring; whether it was open.
    pub(crate) fn close(&self) -> bool {
        run(Close::new(self.ring), Self::words(self.arena))
    }
}

/// The arena around an intent.
struct Around<'a> {
    arena: Arena,
    others: &'a dyn Fn() -> Vec<Word>,
}

impl Surroundings for Around<'_> {
    fn intents(&self) -> Vec<Word> {
        (self.others)()
    }

    fn slot(&self, ring: BlockId, slot: u32) -> Option<Word> {
        let memory = RingMemory::open(self.arena, ring)?;
        (slot < memory.ring.slots).then(|| memory.ring.slot(slot))
    }
}

/// Settles the intents of a dead member, see [`Settle`]; `false`: come back later.
pub(crate) fn settle(
    arena: Arena,
    dead: &[Word],
    others: &dyn Fn() -> Vec<Word>,
    taken: &mut dyn FnMut(EnvelopeId),
) -> mp_core::Result<bool> {
    let columns = (arena.owner_words(), arena.place_words());
    let mut done = true;
    for &intent in dead {
        let settled = arena.with_intent(|me, mine| {
            let steps = Settle::new((intent, mine), columns, Around { arena, others }, me);
            run(steps, RingMemory::words(arena))
        })?;
        match settled {
            Settled::Clear => {}
            Settled::TakenOver(e) => taken(e),
            Settled::Later => done = false,
        }
    }
    Ok(done)
}

/// This crate, to the arena.
#[derive(Debug)]
pub(crate) struct Rings;

// SAFETY: what it reports as taken over are envelopes that `Settle` has just made this process the owner of; draining
// and noting a death change only the words of the ring that they are told of.
unsafe impl RingLayer for Rings {
    fn settle(
        &self,
        arena: Arena,
        dead: &[Word],
        others: &dyn Fn() -> Vec<Word>,
        taken: &mut dyn FnMut(EnvelopeId),
    ) -> bool {
        settle(arena, dead, others, taken).unwrap_or(false)
    }

    fn drain(&self, arena: Arena, (base, len): (Word, u64), block: BlockId) {
        let Some(ring) = RingMemory::at(arena, block, base, len) else { return };
        let mut envelope = None;
        while let Ok(Taken::Message) = ring.get(&mut envelope) {
            // Dropping an envelope releases what is attached to it.
            envelope = None;
        }
    }

    fn holder_gone(&self, arena: Arena, (base, len): (Word, u64), block: BlockId, dead: Member, pid: u32) {
        let Some(ring) = RingMemory::at(arena, block, base, len) else { return };
        ring.note_gone(dead, pid);
        ring.not_empty().wake_all();
        ring.not_full().wake_all();
    }
}
