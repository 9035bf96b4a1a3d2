//! # Safety
//! Access of this crate to the words of the arena. The code is unsafe because the words could belong to any
//! block. It is sound for these reasons: A [`RingMemory`] is created only for a block that is held (or being
//! recovered or reclaimed) and has a ring's header. The steps of [`ring`](crate::ring) change only that
//! ring's words and the envelopes that they own. An `Envelope` is created once for each successful get.
#![allow(unsafe_code)]

use std::time::Instant;

use mp_core::Allocator;
use mp_core::Blocks;
use mp_core::Envelopes;
use mp_core::Members;
use mp_core::mem::{Mem, Word, run, run_straight};
use mp_core::words::{BlockId, EnvelopeId, Holder, Member, Owner};
use mp_core::{Arena, Envelope, Hold, Parking, RingState, WaitTimes};

use crate::raw::header::{CreateParams, PIPE, QueueHeader, SMALL_SLOTS, consumers};
use crate::raw::payload::Payload;
use crate::ring::{
    Advance, ChainAt, CheckRoom, CloseChain, Extend, FindOldest, Get, GetOutcome, Link, OldestMessage,
    Position, PositionState, Put, PutByteBounded, PutOutcome, PutSmall, RingAt, Slot, SmallMessage,
    TakenMessage, Weight,
};

#[cfg(test)]
mod hostile_words_tests;
mod leases;
pub(crate) mod peek;
pub(crate) mod pinned_read;
mod reclaim_hooks;
mod words;

pub(crate) use reclaim_hooks::LAYER;

/// Locations of a queue's words, and the arena that contains them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingMemory {
    arena: Arena,
    header: QueueHeader,
    chain: ChainAt,
    /// Bound of bytes. 0 means no bound.
    bytes: u64,
    /// `true` if small messages may be stored in slots.
    small_slots: bool,
}

impl RingMemory {
    #[inline]
    pub(crate) fn words(arena: Arena) -> &'static (impl Mem + Copy) {
        // SAFETY: used only for the words of rings and envelopes by the steps of `ring`, and for ring
        // headers, see above.
        unsafe { arena.words() }
    }

    /// Creates a queue in shared memory.
    pub(crate) fn create(arena: Arena, params: CreateParams<'_>) -> mp_core::Result<(Hold, Self)> {
        let plan = QueueHeader::at(Word::at(0)).chain(0, params.size);
        let more = if params.retain > 0 { pinned_read::bytes_after(plan.first.slots) } else { 0 };
        let bytes = QueueHeader::bytes(&plan) + more;
        let hold = if plan.segments > 1 {
            Allocator(arena).alloc_growing(bytes)?
        } else {
            Allocator(arena).alloc(bytes)?
        };
        let header = QueueHeader::at(hold.words().0);
        let chain = header.chain(hold.block(), params.size).of(arena.most_messages());
        header.write(Self::words(arena), &chain, params);
        let memory = Self::with_chain(arena, header, chain);
        if params.retain > 0 {
            memory.clear_pins();
        }
        // SAFETY: the block was just allocated, no other process has it, and the header is written.
        unsafe { hold.become_ring() };
        Ok((hold, memory))
    }

    /// Opens the queue in a block that the caller holds, recovers or reclaims. Returns `None` if the block
    /// contains no queue.
    pub(crate) fn open(arena: Arena, block: BlockId) -> Option<Self> {
        let (base, len) = Blocks(arena).ring_memory(block)?;
        Self::at(arena, block, base, len)
    }

    /// Opens the queue in the block at word `base`. Returns `None` if the block contains no queue.
    pub(crate) fn at(arena: Arena, block: BlockId, base: Word, len: u64) -> Option<Self> {
        let header = QueueHeader::at(base);
        let chain = header.read(Self::words(arena), block, len)?.of(arena.most_messages());
        Some(Self::with_chain(arena, header, chain))
    }

    fn with_chain(arena: Arena, header: QueueHeader, chain: ChainAt) -> Self {
        let bytes = Self::words(arena).load_relaxed(header.byte_bound());
        let flags = Self::words(arena).load_relaxed(header.flags());
        let small_slots = bytes == 0 && flags & SMALL_SLOTS != 0;
        Self { arena, header, chain, bytes, small_slots }
    }

    /// Returns the number of messages that the queue can contain.
    pub(crate) fn capacity(&self) -> u32 {
        self.chain.most
    }
    /// Returns the largest possible number of segments.
    pub(crate) fn segments(&self) -> u32 {
        self.chain.segments
    }

    /// Returns the number of messages that were put and not taken: a snapshot.
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

    /// Returns the number of messages in the queue, including returned messages: a snapshot.
    pub(crate) fn len_with_returned(&self) -> usize {
        let is_returned = |holder| holder == Holder::Returned;
        self.len() + if self.any_returned() { self.count(is_returned) } else { 0 }
    }

    /// Returns a snapshot of the queue's state, for tools.
    pub(crate) fn describe(&self) -> RingState {
        let type_name = self.type_name();
        let is_retained = self.retained_limit() > 0;
        let kind = match () {
            () if is_retained => "cell",
            () if type_name == PIPE => "pipe",
            () if self.token(true) != 0 => "channel",
            () => "queue",
        };
        let mut state = RingState::new(kind, type_name);
        state.len = if is_retained { 0 } else { self.len_with_returned() as u64 };
        state.capacity = (!self.is_unbounded()).then_some(u64::from(self.capacity()));
        state.closed = self.is_put_closed();
        let m = Self::words(self.arena);
        state.get_waits = WaitTimes::read(m, self.header.get_waits());
        state.put_waits = WaitTimes::read(m, self.header.put_waits());
        for i in 0..self.chain.segments {
            let ring = self.chain.segment(i);
            // Later segments are zero at first.
            let first = Position { lap: u64::from(i == 0), index: 0 };
            let passed = |hint| Position::unpack(m.load(hint)).distance_from(first, ring.slots);
            state.puts = state.puts.wrapping_add(passed(ring.tail));
            state.gets = state.gets.wrapping_add(passed(ring.head));
            if self.link(i) != Link::Open {
                break;
            }
        }
        state
    }

    fn len_of(&self, ring: RingAt) -> usize {
        let m = Self::words(self.arena);
        let head = Position::unpack(m.load(ring.head));
        let tail = Position::unpack(m.load(ring.tail));
        let ahead = tail.distance_from(head, ring.slots);
        // Either hint may lag a little.
        if ahead <= 2 * u64::from(ring.slots) { ahead.min(u64::from(ring.slots)) as usize } else { 0 }
    }

    /// Returns the link of segment `i`.
    pub(crate) fn link(&self, i: u32) -> Link {
        match self.chain.link(i) {
            Some(link) => Link::unpack(Self::words(self.arena).load(link)),
            None => Link::End,
        }
    }

    /// Closes segment `i`, in which a put has found no free slot, and opens the next segment. Returns the
    /// resulting link of segment `i`.
    pub(crate) fn extend(&self, hold: &Hold, i: u32) -> mp_core::Result<Link> {
        let Some(link) = self.chain.link(i) else { return Ok(Link::End) };
        match self.link(i) {
            Link::None => {
                let (from, len) = QueueHeader::segment_bytes(&self.chain, i + 1);
                Allocator(self.arena).grow(hold, from, len)?;
                Ok(run(Extend::new(self.chain.segment(i), link), Self::words(self.arena)))
            }
            found => Ok(found),
        }
    }

    pub(crate) fn not_empty(&self) -> Parking {
        // SAFETY: a parking word of this ring's header that has no other use. The ring is held.
        unsafe { Parking::new(self.arena, self.header.not_empty()) }
    }
    pub(crate) fn not_full(&self) -> Parking {
        // SAFETY: as for `not_empty`.
        unsafe { Parking::new(self.arena, self.header.not_full()) }
    }

    /// Wakes all sleepers of the queue.
    pub(crate) fn wake_all(&self) {
        [self.not_empty(), self.not_full(), self.finished()].iter().for_each(Parking::wake_all);
    }

    /// Adds the duration of a wait since `since` to the statistics of waits for room (`for_room`) or for
    /// messages.
    pub(crate) fn record_wait(&self, for_room: bool, since: Instant) {
        let at = if for_room { self.header.put_waits() } else { self.header.get_waits() };
        // A forked copy must not access the words.
        if self.is_accessible() {
            WaitTimes::record(Self::words(self.arena), at, since.elapsed());
        }
    }

    /// Returns the wait point that is woken when a leased message is finished or returned.
    pub(crate) fn finished(&self) -> Parking {
        // SAFETY: as for `not_empty`.
        unsafe { Parking::new(self.arena, self.header.finished()) }
    }

    /// Tries once to put a message into segment `i`. The caller still owns the message unless the result is
    /// `Done`.
    #[inline]
    pub(crate) fn put(&self, i: u32, payload: &mut Payload) -> mp_core::Result<PutOutcome<(), ()>> {
        let envelope = match payload {
            Payload::Envelope(envelope) => envelope,
            Payload::Small(small) => return Ok(self.put_small(i, *small, |put| put)?.without_position()),
        };
        if self.bytes != 0 {
            return self.put_byte_bounded(i, envelope);
        }
        let (ring, m) = (self.chain.segment(i), *Self::words(self.arena));
        let end = self.put_envelope(envelope, |me, intent, words, owner| {
            run_straight(Put::new(ring, intent, words, me, owner), &m)
        })?;
        Ok(end.without_position())
    }

    /// Puts a message of a batch. `last` is the position of the previous message of the batch. Returns `Full`
    /// if the queue has a bound of bytes, since such a queue can't be filled in batches.
    pub(crate) fn put_next(
        &self,
        i: u32,
        payload: &mut Payload,
        last: Option<Position>,
    ) -> mp_core::Result<PutOutcome<()>> {
        if self.bytes != 0 {
            return Ok(PutOutcome::Full(()));
        }
        let envelope = match payload {
            Payload::Envelope(envelope) => envelope,
            Payload::Small(small) => return self.put_small(i, *small, |put| put.batched(last)),
        };
        self.put_envelope(envelope, |me, intent, words, owner| {
            let put = Put::new(self.chain.segment(i), intent, words, me, owner).batched(last);
            run(put, Self::words(self.arena))
        })
    }

    #[inline]
    fn put_small(
        &self,
        i: u32,
        small: SmallMessage,
        how: impl FnOnce(PutSmall) -> PutSmall,
    ) -> mp_core::Result<PutOutcome<()>> {
        // A forked copy must not change the words.
        self.arena.me()?;
        let m = *Self::words(self.arena);
        Ok(run_straight(how(PutSmall::new(self.chain.segment(i), small)), &m))
    }

    /// Tries once to put an envelope into segment `i` of a queue with a bound of bytes.
    #[cold]
    fn put_byte_bounded(&self, i: u32, envelope: &mut Envelope) -> mp_core::Result<PutOutcome<(), ()>> {
        envelope.free_tail()?;
        let weight =
            Weight { ends: Envelopes(self.arena).tail_words(), bytes: envelope.weight(), limit: self.bytes };
        let end = self.put_envelope(envelope, |me, intent, words, owner| {
            let put = PutByteBounded::new(self.chain.segment(i), intent, words, me, owner, weight);
            run(put, Self::words(self.arena))
        })?;
        Ok(end.without_position())
    }

    /// Puts an envelope by running `steps`, and stores the resulting owner word in `envelope`. The arguments
    /// of `steps` are this process, the intent word of this thread, the envelope with the locations of its
    /// owner and place words, and its present owner word.
    #[inline]
    fn put_envelope(
        &self,
        envelope: &mut Envelope,
        steps: impl FnOnce(Member, Word, (EnvelopeId, Word, Word), Owner) -> PutOutcome,
    ) -> mp_core::Result<PutOutcome<()>> {
        let (arena, id, owner) = (self.arena, envelope.id(), envelope.owner());
        let words = (id, Envelopes(arena).owner_words().of(id), Envelopes(arena).place_words().of(id));
        let end = Members(arena).with_intent(|me, intent| steps(me, intent, words, owner))?;
        let (end, owner) = match end {
            PutOutcome::Done(position) => (PutOutcome::Done(position), owner.then(Holder::Queued)),
            PutOutcome::Full(owner) => (PutOutcome::Full(()), owner),
            PutOutcome::Closed(owner) => (PutOutcome::Closed(()), owner),
        };
        // SAFETY: if published, the envelope belongs to the ring. Otherwise it still belongs to this process,
        // with the owner word that the steps returned.
        unsafe { envelope.set_owner(owner) };
        Ok(end)
    }

    /// Returns `true` if a small message can be put into a slot without an envelope: no consumer has leased a
    /// message. The first consumer that leases copies the small messages in slots into envelopes.
    #[inline]
    pub(crate) fn accepts_small(&self) -> bool {
        // A forked copy must not access the words.
        self.small_slots
            && self.arena.me().is_ok()
            && Self::words(self.arena).load_relaxed(self.header.consumers()) & consumers::LEASE == 0
    }

    /// Records that consumers take messages without a lease. Called before the first such get.
    #[inline]
    pub(crate) fn record_get(&self) {
        let m = Self::words(self.arena);
        if m.load_relaxed(self.header.consumers()) & consumers::GET == 0 {
            m.or(self.header.consumers(), consumers::GET);
        }
    }

    /// Returns `true` if this process may access the queue. A forked copy may not.
    pub(crate) fn is_accessible(&self) -> bool {
        self.arena.me().is_ok()
    }

    /// Returns `true` if no more messages can be put.
    pub(crate) fn is_put_closed(&self) -> bool {
        let last = (0..self.chain.segments).find(|&i| self.link(i) != Link::Open).unwrap_or(0);
        self.is_closed(last)
    }

    /// Calls `check` with consecutive positions and their slots, starting at the position in the word `hint`.
    /// Skips positions that are in use already, since the hint may lag. Returns the first result of `check`.
    fn find_from<R>(
        &self,
        ring: RingAt,
        hint: Word,
        check: impl Fn(Position, Slot) -> Option<R>,
    ) -> Option<R> {
        let m = Self::words(self.arena);
        let mut position = Position::unpack(m.load(hint));
        (0..=ring.slots).find_map(|_| {
            let slot = Slot::unpack(m.load(ring.slot(position.index)));
            let found = check(position, slot);
            position = position.skip_used(slot, ring.slots);
            found
        })
    }

    /// Returns the bound of bytes. 0 means no bound.
    pub(crate) fn byte_bound(&self) -> u64 {
        self.bytes
    }

    /// Wakes producers that wait for room, after consumers have taken `messages` messages.
    #[inline]
    pub(crate) fn wake_producers(&self, messages: u32) {
        // Only a producer can check whether its message fits now.
        let all = self.bytes != 0;
        let n = if all { u32::MAX >> 1 } else { messages };
        self.not_full().wake_some(n);
    }

    /// Takes the oldest message of segment `i` into `into`, if there is one.
    #[inline(always)]
    pub(crate) fn get(&self, i: u32, into: &mut Option<Payload>) -> mp_core::Result<GetOutcome<()>> {
        // A forked copy must not access the words.
        self.arena.me()?;
        let m = *Self::words(self.arena);
        match run_straight(FindOldest::new(self.chain.segment(i)), &m) {
            GetOutcome::Done(OldestMessage::Small(small, _)) => {
                *into = Some(Payload::Small(small));
                Ok(GetOutcome::Done(()))
            }
            GetOutcome::Done(OldestMessage::Envelope(word, position)) => {
                self.get_envelope(i, word, position, into)
            }
            GetOutcome::Done(OldestMessage::Stray(e)) => Err(self.stray_error(e)),
            GetOutcome::Empty => Ok(GetOutcome::Empty),
            GetOutcome::Closed => Ok(GetOutcome::Closed),
        }
    }

    /// Takes the envelope that was found at `position`, in a slot with the first word `word`, into `into`.
    fn get_envelope(
        &self,
        i: u32,
        word: u64,
        position: Position,
        into: &mut Option<Payload>,
    ) -> mp_core::Result<GetOutcome<()>> {
        let arena = self.arena;
        let (m, ring) = (*Self::words(arena), self.chain.segment(i));
        let touched = Members(arena).touched_groups(arena.me()?);
        // Prefetches the envelope while the slot is being taken, and the next one while this message is read.
        if let Some(e) = Slot::unpack(word).envelope() {
            Envelopes(arena).fetch_filled(e);
            touched.touch(&m, e);
        }
        let next = ring.slot(position.index + 1);
        // Not in another cache line, which a producer may be writing.
        if position.index + 1 < ring.slots && !next.offset().is_multiple_of(64) {
            let next = Slot::unpack(m.load_relaxed(next)).envelope();
            next.into_iter().for_each(|e| Envelopes(arena).fetch_filled(e));
        }
        let mut stray = None;
        let end = Members(arena).with_intent(|me, intent| {
            let get = Get::new(ring, intent, Envelopes(arena).owner_words(), me).touching(touched);
            match run_straight(get.found(word, position), &m) {
                GetOutcome::Done(TakenMessage::Envelope(id, owner, _)) => {
                    // SAFETY: `Get` has just made this process its owner, and ends once.
                    *into = Some(Payload::Envelope(unsafe { Envelope::from_raw(arena, id, owner) }));
                    GetOutcome::Done(())
                }
                GetOutcome::Done(TakenMessage::Small(small, _)) => {
                    *into = Some(Payload::Small(small));
                    GetOutcome::Done(())
                }
                GetOutcome::Done(TakenMessage::Stray(e)) => {
                    stray = Some(e);
                    GetOutcome::Empty
                }
                GetOutcome::Empty => GetOutcome::Empty,
                GetOutcome::Closed => GetOutcome::Closed,
            }
        })?;
        stray.map_or(Ok(end), |e| Err(self.stray_error(e)))
    }

    /// Returns the error for a slot that names an envelope which is not in this queue, because a process
    /// overwrote the slot.
    #[cold]
    pub(super) fn stray_error(&self, e: EnvelopeId) -> mp_core::Error {
        let block = self.chain.block();
        mp_core::Error::Malformed(format!(
            "a slot of the queue in block {block} names message {e}, which is not in it: a process \
             overwrote memory that is not its own"
        ))
    }

    /// Takes a message of a batch. `last` is the position of the previous message of the batch.
    pub(crate) fn get_next(
        &self,
        i: u32,
        last: Option<Position>,
    ) -> mp_core::Result<Option<(Payload, Position)>> {
        let arena = self.arena;
        let got = Members(arena).with_intent(|me, intent| {
            let get = Get::new(self.chain.segment(i), intent, Envelopes(arena).owner_words(), me)
                .touching(Members(arena).touched_groups(me))
                .batched(last);
            run(get, Self::words(arena))
        })?;
        Ok(match got {
            GetOutcome::Done(TakenMessage::Envelope(id, owner, position)) => {
                // SAFETY: as in `get_envelope`.
                Some((Payload::Envelope(unsafe { Envelope::from_raw(arena, id, owner) }), position))
            }
            GetOutcome::Done(TakenMessage::Small(small, position)) => Some((Payload::Small(small), position)),
            GetOutcome::Done(TakenMessage::Stray(e)) => return Err(self.stray_error(e)),
            GetOutcome::Empty | GetOutcome::Closed => None,
        })
    }

    /// Returns `true` if a get would not wait: there is a message, or the queue is at its end.
    pub(crate) fn is_ready(&self) -> bool {
        self.any_returned() || self.head_state() != PositionState::Empty
    }

    /// Returns `true` if the queue is closed and drained. Leased messages may still be returned.
    pub(crate) fn is_at_end(&self) -> bool {
        self.head_state() == PositionState::Closed
    }

    /// Returns the state that a consumer would find: a message, an empty queue, or the end.
    fn head_state(&self) -> PositionState {
        let untaken = |position: Position, slot| {
            Some(position.state_in(slot)).filter(|state| *state != PositionState::Taken)
        };
        for i in 0..self.chain.segments {
            let ring = self.chain.segment(i);
            match self.find_from(ring, ring.head, untaken) {
                Some(PositionState::Closed) | None => {}
                Some(found) => return found,
            }
            match self.link(i) {
                Link::Open => {}
                Link::None => return PositionState::Empty,
                Link::End => return PositionState::Closed,
            }
        }
        PositionState::Empty
    }

    /// Returns `true` if a put would not wait: there is room or the queue is closed. If the queue has a bound
    /// of bytes, there must be room for `bytes` bytes.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        if self.bytes != 0 {
            let weight = Weight { ends: Envelopes(self.arena).tail_words(), bytes, limit: self.bytes };
            return run(CheckRoom::new(self.chain.segment(0), weight), Self::words(self.arena));
        }
        if self.chain.segments > 1 {
            return self.len() < self.capacity() as usize || self.is_put_closed();
        }
        let ring = self.chain.segment(0);
        self.find_from(ring, ring.tail, Position::check_room).unwrap_or(false)
    }

    /// Returns `true` if segment `i` is closed.
    pub(crate) fn is_closed(&self, i: u32) -> bool {
        let ring = self.chain.segment(i);
        self.find_from(ring, ring.tail, Position::check_end).unwrap_or(false)
    }

    /// Advances the tail hint past a batch of puts, from position `first` to position `last`.
    pub(crate) fn advance_tail(&self, i: u32, first: Position, last: Position) {
        run(Advance::tail(self.chain.segment(i), first, last), Self::words(self.arena));
    }

    /// Advances the head hint past a batch of gets, from position `first` to position `last`.
    pub(crate) fn advance_head(&self, i: u32, first: Position, last: Position) {
        run(Advance::head(self.chain.segment(i), first, last), Self::words(self.arena));
    }

    /// Closes the queue. Returns `true` if it was open.
    pub(crate) fn close(&self) -> bool {
        run(CloseChain::new(self.chain), Self::words(self.arena))
    }
}
