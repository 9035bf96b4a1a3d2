//! # Safety
//! Where this crate touches the words of the arena. Unsafe, because the words could be anybody's; sound, because a
//! [`RingMemory`] is made only of a block that is held (or being swept) and has a ring's header, the steps of
//! [`ring`](crate::ring) change nothing but that ring's words and the envelopes that they own, and envelopes
//! are made once of each successful get.
#![allow(unsafe_code)]

use mp_core::mem::{Mem, Word, run};
use mp_core::words::{BlockId, EnvelopeId, Holder, Member, Owner, Place};
use mp_core::{Arena, Envelope, Hold, Leased, Parking, RingLayer};

use crate::header::{Header, Made};
use crate::ring::{
    Advance, ChainAt, CloseChain, Extend, Get, Got, Link, Put, PutEnd, Reclaim, Return, ReturnsAt, RingAt,
    Settle, Settled, Slot, Standing, Surroundings, Ticket,
};

/// A queue's words, and the arena they are in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMemory {
    arena: Arena,
    header: Header,
    chain: ChainAt,
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
    pub(crate) fn words(arena: Arena) -> &'static impl Mem {
        // SAFETY: used for the words of rings and of envelopes by the steps of `ring`, and for ring headers, see above.
        unsafe { arena.words() }
    }

    /// Makes a queue in shared memory.
    pub(crate) fn create(arena: Arena, made: Made<'_>) -> mp_core::Result<(Hold, Self)> {
        let plan = Header::at(Word::at(0)).chain(0, made.size);
        let bytes = Header::bytes(&plan);
        let hold = if plan.segments > 1 { arena.alloc_growing(bytes)? } else { arena.alloc(bytes)? };
        let header = Header::at(arena.block_words(&hold).0);
        let chain = header.chain(hold.block(), made.size);
        header.write(Self::words(arena), &chain, made);
        // SAFETY: the block was just allocated, nobody else has it, and the header is written.
        unsafe { arena.become_ring(&hold) };
        Ok((hold, Self { arena, header, chain }))
    }

    /// The queue in a block that is held, or swept, by the caller; `None` if there is none in it.
    pub(crate) fn open(arena: Arena, block: BlockId) -> Option<Self> {
        let (base, len) = arena.ring_memory(block)?;
        Self::at(arena, block, base, len)
    }

    /// The queue at `base`.
    pub(crate) fn at(arena: Arena, block: BlockId, base: Word, len: u64) -> Option<Self> {
        let header = Header::at(base);
        let chain = header.read(Self::words(arena), block, len)?;
        Some(Self { arena, header, chain })
    }

    /// How many messages fit.
    pub(crate) fn capacity(&self) -> u32 {
        self.chain.most
    }
    /// How many segments there can be.
    pub(crate) fn segments(&self) -> u32 {
        self.chain.segments
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

    /// How many messages are in it; a moment's picture.
    pub(crate) fn len(&self) -> usize {
        let mut all = 0;
        for i in 0..self.chain.segments {
            all += self.len_of(self.chain.segment(i));
            if self.link(i) != Link::Open {
                break;
            }
        }
        all
    }

    fn len_of(&self, ring: RingAt) -> usize {
        let m = Self::words(self.arena);
        let head = Ticket::unpack(m.load(ring.head));
        let tail = Ticket::unpack(m.load(ring.tail));
        let ahead = tail.since(head, ring.slots);
        // Either hint may lag a little.
        if ahead <= 2 * u64::from(ring.slots) { ahead.min(u64::from(ring.slots)) as usize } else { 0 }
    }

    /// What follows segment `i`.
    pub(crate) fn link(&self, i: u32) -> Link {
        match self.chain.link(i) {
            Some(link) => Link::unpack(Self::words(self.arena).load(link)),
            None => Link::End,
        }
    }

    /// Closes segment `i`, which is full or closed, and opens the next one; what follows it now.
    pub(crate) fn extend(&self, hold: &Hold, i: u32) -> mp_core::Result<Link> {
        let Some(link) = self.chain.link(i) else { return Ok(Link::End) };
        match self.link(i) {
            Link::None => {
                let (from, len) = Header::segment_bytes(&self.chain, i + 1);
                self.arena.grow(hold, from, len)?;
                Ok(run(Extend::new(self.chain.segment(i), link), Self::words(self.arena)))
            }
            found => Ok(found),
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

    /// Where one waits for something to be finished.
    pub(crate) fn finished(&self) -> Parking {
        // SAFETY: as for `not_empty`.
        unsafe { Parking::new(self.arena, self.header.finished()) }
    }

    /// Puts an envelope into segment `i`, once. It stays the caller's unless it is done.
    #[inline]
    pub(crate) fn put(&self, i: u32, envelope: &mut Envelope) -> mp_core::Result<Given> {
        let arena = self.arena;
        let (id, owner) = (envelope.id(), envelope.owner());
        let words = (id, arena.owner_words().of(id), arena.place_words().of(id));
        let end = arena.with_intent(|me, intent| {
            run(Put::new(self.chain.segment(i), intent, words, me, owner), Self::words(arena))
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

    /// Takes an envelope out of segment `i`, once; into `into`, if there is one.
    #[inline]
    pub(crate) fn get(&self, i: u32, into: &mut Option<Envelope>) -> mp_core::Result<Taken> {
        let arena = self.arena;
        let got = arena.with_intent(|me, intent| {
            run(Get::new(self.chain.segment(i), intent, arena.owner_words(), me), Self::words(arena))
        })?;
        Ok(match got {
            Got::Envelope(id, owner, _) => {
                // SAFETY: `Get` has just made this process its owner, and ends once.
                *into = Some(unsafe { arena.envelope_from_raw(id, owner) });
                Taken::Message
            }
            Got::Empty => Taken::Empty,
            Got::Closed => Taken::Closed,
        })
    }

    /// As [`put`](Self::put), after the ticket of the last message of a batch; its own if it is done.
    pub(crate) fn put_next(
        &self,
        i: u32,
        envelope: &mut Envelope,
        last: Option<Ticket>,
    ) -> mp_core::Result<Option<Ticket>> {
        let arena = self.arena;
        let (id, owner) = (envelope.id(), envelope.owner());
        let words = (id, arena.owner_words().of(id), arena.place_words().of(id));
        let end = arena.with_intent(|me, intent| {
            let put = Put::new(self.chain.segment(i), intent, words, me, owner).batched(last);
            run(put, Self::words(arena))
        })?;
        let (done, owner) = match end {
            PutEnd::Done(ticket) => (Some(ticket), owner.then(Holder::Queued)),
            PutEnd::Full(owner) | PutEnd::Closed(owner) => (None, owner),
        };
        // SAFETY: as in `put`.
        unsafe { envelope.set_owner(owner) };
        Ok(done)
    }

    /// As [`get`](Self::get), after the ticket of the last message of a batch.
    pub(crate) fn get_next(
        &self,
        i: u32,
        last: Option<Ticket>,
    ) -> mp_core::Result<Option<(Envelope, Ticket)>> {
        let arena = self.arena;
        let got = arena.with_intent(|me, intent| {
            let get = Get::new(self.chain.segment(i), intent, arena.owner_words(), me).batched(last);
            run(get, Self::words(arena))
        })?;
        Ok(match got {
            Got::Envelope(id, owner, ticket) => {
                // SAFETY: as in `get`.
                Some((unsafe { arena.envelope_from_raw(id, owner) }, ticket))
            }
            Got::Empty | Got::Closed => None,
        })
    }

    /// Says that what a dead consumer had is to be delivered again. Before the first lease.
    pub(crate) fn redeliver(&self) {
        let m = Self::words(self.arena);
        if m.load_relaxed(self.header.redelivers()) == 0 {
            m.store(self.header.redelivers(), 1);
        }
    }

    /// Whether there may be messages that came back.
    #[inline]
    pub(crate) fn any_returned(&self) -> bool {
        Self::words(self.arena).load_relaxed(self.header.returned()) != 0
    }

    /// The mark of the token of one side of a channel; 0 if it is none.
    pub(crate) fn token(&self, receivers: bool) -> u64 {
        Self::words(self.arena).load(self.header.token(receivers))
    }

    /// Makes it a channel; before anybody else has it.
    pub(crate) fn set_token(&self, receivers: bool, mark: u64) {
        Self::words(self.arena).store(self.header.token(receivers), mark);
    }

    /// Whether a get would not wait: there is a message, or the end.
    pub(crate) fn is_ready(&self) -> bool {
        let m = Self::words(self.arena);
        if self.any_returned() {
            return true;
        }
        for i in 0..self.chain.segments {
            let ring = self.chain.segment(i);
            let mut ticket = Ticket::unpack(m.load(ring.head));
            // The head is a hint that may lag.
            for _ in 0..=ring.slots {
                match ticket.stands(Slot::unpack(m.load(ring.slot(ticket.index)))) {
                    Standing::Taken => ticket = ticket.next(ring.slots),
                    Standing::Message => return true,
                    Standing::Nothing => return false,
                    Standing::Closed => break,
                }
            }
            match self.link(i) {
                Link::Open => {}
                Link::None => return false,
                Link::End => return true,
            }
        }
        false
    }

    /// Whether segment `i` is closed.
    pub(crate) fn is_closed(&self, i: u32) -> bool {
        let (m, ring) = (Self::words(self.arena), self.chain.segment(i));
        let mut ticket = Ticket::unpack(m.load(ring.tail));
        // The tail is a hint that may lag.
        for _ in 0..=ring.slots {
            match ticket.finds_end(Slot::unpack(m.load(ring.slot(ticket.index)))) {
                Some(end) => return end,
                None => ticket = ticket.next(ring.slots),
            }
        }
        false
    }

    /// How often a message is delivered at most; 0 is for ever.
    pub(crate) fn deliveries(&self) -> u32 {
        self.header.deliveries(Self::words(self.arena))
    }

    fn returns(&self) -> ReturnsAt {
        ReturnsAt {
            returned: self.header.returned(),
            undeliverable: self.header.undeliverable(),
            limit: self.deliveries(),
        }
    }

    fn reclaim(&self, wanted: Holder, to: Holder) -> Option<(EnvelopeId, Owner)> {
        let arena = self.arena;
        let columns = (arena.owner_words(), arena.place_words());
        let reclaim =
            Reclaim::new(self.returns(), self.chain.block(), arena.envelope_count(), columns, (wanted, to));
        run(reclaim, Self::words(arena))
    }

    /// Takes a message that came back, or one that came back too often, for good.
    pub(crate) fn take_returned(&self, undeliverable: bool) -> mp_core::Result<Option<Envelope>> {
        let wanted = if undeliverable { Holder::Undeliverable } else { Holder::Returned };
        let taken = self.reclaim(wanted, Holder::Member(self.arena.me()?));
        // SAFETY: `Reclaim` has just made this process its owner, and ends once.
        Ok(taken.map(|(id, owner)| unsafe { self.arena.envelope_from_raw(id, owner) }))
    }

    /// Leases a message that came back.
    pub(crate) fn lease_returned(&self) -> mp_core::Result<Option<Leased>> {
        let taken = self.reclaim(Holder::Returned, Holder::Leased(self.arena.me()?));
        // SAFETY: `Reclaim` has just made this process its leaseholder, and ends once.
        Ok(taken.map(|(id, owner)| unsafe { self.arena.lease_from_raw(id, owner) }))
    }

    /// Leases a message of segment `i`, as [`get`](Self::get).
    pub(crate) fn lease(&self, i: u32, into: &mut Option<Leased>) -> mp_core::Result<Taken> {
        let arena = self.arena;
        let got = arena.with_intent(|me, intent| {
            let get = Get::new(self.chain.segment(i), intent, arena.owner_words(), me).leasing();
            run(get, Self::words(arena))
        })?;
        Ok(match got {
            Got::Envelope(id, owner, _) => {
                // SAFETY: `Get` has just made this process its leaseholder, and ends once.
                *into = Some(unsafe { arena.lease_from_raw(id, owner) });
                Taken::Message
            }
            Got::Empty => Taken::Empty,
            Got::Closed => Taken::Closed,
        })
    }

    /// Returns a lease to the queue; whether it will be delivered again.
    pub(crate) fn give_back(&self, lease: &Leased) -> bool {
        self.return_envelope(lease.id(), lease.owner())
    }

    fn return_envelope(&self, id: EnvelopeId, owner: Owner) -> bool {
        let arena = self.arena;
        let words = (arena.owner_words().of(id), arena.meta_words().of(id));
        let end = run(Return::new(self.returns(), words.0, words.1, owner), Self::words(arena));
        if end.is_some() {
            self.not_empty().wake_some(u32::from(end == Some(Holder::Returned)));
            self.finished().wake_some(u32::MAX >> 1);
        }
        end == Some(Holder::Returned)
    }

    /// The message of a lease is done: it is this process's to empty.
    pub(crate) fn finish(&self, lease: &Leased) -> mp_core::Result<Envelope> {
        let owner = lease.owner().then(Holder::Member(self.arena.me()?));
        Self::words(self.arena).store(self.arena.owner_words().of(lease.id()), owner.pack());
        // SAFETY: it was this process's lease, of which nobody makes an envelope but this, once: the owner word says
        // now that it is no lease any more.
        Ok(unsafe { self.arena.envelope_from_raw(lease.id(), owner) })
    }

    /// Counts what belongs to this queue and is in this state.
    pub(crate) fn count(&self, is: impl Fn(Holder) -> bool) -> usize {
        let (m, arena) = (Self::words(self.arena), self.arena);
        let mine = |e| Place::unpack(m.load(arena.place_words().of(e))).ring == self.chain.block();
        let state = |e| Owner::unpack(m.load(arena.owner_words().of(e))).holder;
        (0..m.load(arena.envelope_count()) as u32).filter(|&e| is(state(e)) && mine(e)).count()
    }

    /// Helps the tail over a batch that was put.
    pub(crate) fn advance_tail(&self, i: u32, first: Ticket, last: Ticket) {
        run(Advance::tail(self.chain.segment(i), first, last), Self::words(self.arena));
    }

    /// Helps the head over a batch that was taken.
    pub(crate) fn advance_head(&self, i: u32, first: Ticket, last: Ticket) {
        run(Advance::head(self.chain.segment(i), first, last), Self::words(self.arena));
    }

    /// Closes the queue; whether it was open.
    pub(crate) fn close(&self) -> bool {
        run(CloseChain::new(self.chain), Self::words(self.arena))
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
        RingMemory::open(self.arena, ring)?.chain.slot(slot)
    }

    fn redelivers(&self, ring: BlockId) -> bool {
        let memory = RingMemory::open(self.arena, ring);
        memory.is_some_and(|r| RingMemory::words(self.arena).load(r.header.redelivers()) != 0)
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
            Settled::Leased(e, owner) => take_back(arena, e, owner),
            Settled::Later => done = false,
        }
    }
    Ok(done)
}

/// Returns a lease of a dead member to its queue.
fn take_back(arena: Arena, e: EnvelopeId, owner: Owner) {
    let m = RingMemory::words(arena);
    // Of another owner meanwhile: then it is not returned.
    let place = Place::unpack(m.load(arena.place_words().of(e)));
    if let Some(ring) = RingMemory::open(arena, place.ring) {
        ring.return_envelope(e, owner);
    }
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

    fn take_back(&self, arena: Arena, envelope: EnvelopeId, owner: Owner) {
        take_back(arena, envelope, owner);
    }

    fn drain(&self, arena: Arena, (base, len): (Word, u64), block: BlockId) {
        let Some(ring) = RingMemory::at(arena, block, base, len) else { return };
        for undeliverable in [false, true] {
            while let Ok(Some(_)) = ring.take_returned(undeliverable) {}
        }
        for i in 0..ring.segments() {
            let mut envelope = None;
            while let Ok(Taken::Message) = ring.get(i, &mut envelope) {
                // Dropping an envelope releases what is attached to it.
                envelope = None;
            }
            if ring.link(i) != Link::Open {
                return;
            }
        }
    }

    fn holder_gone(&self, arena: Arena, (base, len): (Word, u64), block: BlockId, dead: Member, pid: u32) {
        let Some(ring) = RingMemory::at(arena, block, base, len) else { return };
        ring.note_gone(dead, pid);
        ring.not_empty().wake_all();
        ring.not_full().wake_all();
        ring.finished().wake_all();
    }
}
