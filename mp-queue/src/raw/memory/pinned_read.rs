//! # Safety
//! Rings with retained messages. The code is unsafe because it could create an envelope for a message with
//! another owner, or read a message while it is emptied. It is sound because one envelope is created for each
//! message that [`Collect`] has just taken out. A message is read only while its slot is pinned, which keeps
//! it unchanged (table: [`Pins`]).
#![allow(unsafe_code)]

use mp_core::mem::{Mem, Word, run};
use mp_core::message::Incoming;
use mp_core::words::{Member, Owner};
use mp_core::{Arena, Blocks, Envelope, Envelopes, Error, Leased, Members};

use super::RingMemory;
use crate::raw::payload::Payload;
use crate::ring::{
    AssignNumber, Collect, CollectOutcome, FindNewest, FindNext, FindPublishSlot, NextMessage, Pin,
    PinOutcome, Pins, Position, PublishSlot, Put, PutOutcome, ReadNumber, Retire, RingAt, SkipPosition, Slot,
    Unpin,
};

/// Number of threads that can read one ring at once, including stopped ones. Further reads fail.
const PINS: u32 = 256;
/// Bytes between a ring's slots and its pins, and before the first pin.
const LINE: u64 = 64;

/// Number of retries of a publisher that finds inconsistent words.
const TURNS: u32 = 1 << 16;

/// Position of a reader in the order of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPosition {
    /// Position of the next message to read.
    pub(crate) position: Position,
    /// Number of the next message, or 0 if unknown.
    pub(crate) number: u64,
}

impl ReadPosition {
    /// Returns the number of unread messages before the message with this number.
    pub(crate) fn missed(self, number: u64) -> u64 {
        if self.number == 0 { 0 } else { number.saturating_sub(self.number) }
    }
}

/// A ring with retained messages, in the memory of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetainedRing {
    memory: RingMemory,
    ring: RingAt,
    pins: Pins,
    limit: u32,
}

/// Returns the number of slots for a ring that keeps this many messages. At least one slot always has neither
/// a retained nor a pinned message.
pub(crate) const fn slots_for(limit: u32) -> u32 {
    limit.saturating_add(PINS + 8)
}

/// Number of bytes for the pins, which follow the slots.
pub(crate) const fn pin_bytes() -> u64 {
    2 * LINE + 8 * PINS as u64
}

fn pins(ring: RingAt) -> Pins {
    let first = ring.first.offset() + RingAt::SLOT * u64::from(ring.slots);
    let used = Word::at(first.next_multiple_of(LINE));
    Pins { used, first: used.plus(LINE / 8), count: PINS }
}

impl RingMemory {
    /// Returns this ring as a ring with retained messages, or `None` if its messages are taken.
    pub(crate) fn retained(&self) -> Option<RetainedRing> {
        let limit = self.retained_limit();
        let ring = self.chain.segment(0);
        let possible = limit > 0 && slots_for(limit) == ring.slots && self.chain.segments == 1;
        let (base, len) = Blocks(self.arena).ring_memory(self.chain.block()).filter(|_| possible)?;
        let pins = pins(ring);
        (pins.pin(PINS).offset() <= base.offset() + len).then_some(RetainedRing {
            memory: *self,
            ring,
            pins,
            limit,
        })
    }

    /// Clears the pins of a new ring. Called before another process has it.
    pub(super) fn clear_pins(&self) {
        let m = Self::words(self.arena);
        let pins = pins(self.chain.segment(0));
        m.store_relaxed(pins.used, 0);
        (0..PINS).for_each(|i| m.store_relaxed(pins.pin(i), 0));
    }
}

impl RetainedRing {
    /// Returns the number of messages that the ring keeps.
    pub(crate) fn capacity(&self) -> u32 {
        self.limit
    }

    fn arena(&self) -> Arena {
        self.memory.arena
    }

    fn words(&self) -> &'static (impl Mem + Copy + use<>) {
        RingMemory::words(self.arena())
    }

    /// Publishes a message and retires older ones beyond the limit. With `after`, only if the newest message
    /// has this position, and otherwise returns [`PutOutcome::Closed`]. Unless it returns `Done`, the caller
    /// still owns the message.
    pub(crate) fn publish(
        &self,
        payload: &mut Payload,
        after: Option<Position>,
    ) -> mp_core::Result<PutOutcome<()>> {
        let Payload::Envelope(envelope) = payload else { return Ok(PutOutcome::Full(())) };
        let (arena, m) = (self.arena(), self.words());
        arena.me()?;
        for _ in 0..TURNS {
            match run(FindPublishSlot::new(self.ring), m) {
                PublishSlot::Free(position) => {
                    // All earlier positions are complete: their newest message stays the newest until this
                    // one is published.
                    if after.is_some_and(|after| self.newest().is_none_or(|(_, newest)| newest != after)) {
                        return Ok(PutOutcome::Closed(()));
                    }
                    if !run(AssignNumber::new(self.ring, position), m) {
                        continue;
                    }
                    let end = self.memory.put_envelope(envelope, |me, intent, words, owner| {
                        run(Put::new(self.ring, intent, words, me, owner).at(position), m)
                    })?;
                    if let PutOutcome::Done(position) = end {
                        self.retire(position)?;
                        return Ok(end);
                    }
                }
                PublishSlot::Retired(position, slot) => {
                    if !self.collect(position.index)? {
                        run(SkipPosition::new(self.ring, position, slot), m);
                    }
                }
                PublishSlot::Current(position) => self.retire(position)?,
                PublishSlot::Inconsistent => break,
            }
        }
        Ok(PutOutcome::Full(()))
    }

    /// Retires and collects messages beyond the limit, after `newest` was published.
    fn retire(&self, newest: Position) -> mp_core::Result<()> {
        while let Some(index) = run(Retire::new(self.ring, self.limit, newest), self.words()) {
            self.collect(index)?;
        }
        Ok(())
    }

    /// Collects the retired message in slot `index`, unless a living process has pinned it. Returns `true` if
    /// no retired message is left in the slot.
    fn collect(&self, index: u32) -> mp_core::Result<bool> {
        let arena = self.arena();
        for _ in 0..=PINS {
            match self.run_collect(index, |collect| collect)? {
                CollectOutcome::Taken(..) | CollectOutcome::Nothing => return Ok(true),
                CollectOutcome::Pinned(pin, member) if Members(arena).is_dead(member) => {
                    _ = self.unpin(member, pin, index)
                }
                CollectOutcome::Pinned(..) => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Takes the message in slot `index` out, and drops it.
    fn run_collect(
        &self,
        index: u32,
        how: impl FnOnce(Collect) -> Collect,
    ) -> mp_core::Result<CollectOutcome> {
        let (arena, ring, pins) = (self.arena(), self.ring, self.pins);
        let found = Members(arena).with_intent(|me, intent| {
            let collect = Collect::new(ring, pins, intent, Envelopes(arena).owner_words(), me, index)
                .touching(Members(arena).touched_groups(me));
            run(how(collect), self.words())
        })?;
        if let CollectOutcome::Taken(id, owner) = found {
            // SAFETY: `Collect` has just made this process its owner, and ends once.
            drop(unsafe { Envelope::from_raw(arena, id, owner) });
        }
        Ok(found)
    }

    /// Clears a pin. Returns `true` if its slot was retired in the meantime.
    fn unpin(&self, who: Member, pin: u32, index: u32) -> bool {
        run(Unpin::new(self.ring, self.pins, who, pin, index), self.words())
    }

    /// Collects the messages that dead readers had pinned.
    pub(crate) fn collect_all(&self) -> mp_core::Result<()> {
        (0..self.ring.slots).try_for_each(|index| self.collect(index).map(drop))
    }

    /// Clears the pins of a dead member. Any number of processes may do this at once.
    pub(super) fn unpin_dead(&self, dead: Member) {
        let m = self.words();
        let used = m.load(self.pins.used).min(u64::from(PINS)) as u32;
        for pin in 0..used {
            match Pins::unpack(m.load(self.pins.pin(pin))) {
                Some((member, index)) if member == dead => _ = self.unpin(dead, pin, index),
                _ => {}
            }
        }
    }

    /// Takes all messages out, also pinned ones. Called when no process has the ring.
    pub(super) fn drain(&self) {
        (0..self.ring.slots).for_each(|index| _ = self.run_collect(index, Collect::unconditional));
    }

    /// Returns the slot and the position of the newest message.
    pub(crate) fn newest(&self) -> Option<(Slot, Position)> {
        run(FindNewest::new(self.ring), self.words())
    }

    /// Returns the number of the message of a position that was found in this slot. The first message has
    /// number 1. Returns `None` if the message was replaced.
    pub(crate) fn number(&self, slot: Slot, position: Position) -> Option<u64> {
        run(ReadNumber::new(self.ring, position.index, slot), self.words())
    }

    /// Returns the position of a reader that reads messages published from now on.
    pub(crate) fn end(&self) -> ReadPosition {
        for _ in 0..TURNS {
            match self.newest() {
                Some((slot, newest)) => {
                    if let Some(number) = self.number(slot, newest) {
                        return self.after(ReadPosition { position: newest, number });
                    }
                }
                None => {
                    let position = Position::unpack(self.words().load(self.ring.tail));
                    // Otherwise a message was published in the meantime, and the next turn finds it.
                    if position.previous(self.ring.slots).lap == 0 {
                        return ReadPosition { position, number: 1 };
                    }
                }
            }
        }
        ReadPosition { position: Position::unpack(self.words().load(self.ring.tail)), number: 0 }
    }

    /// Returns the position after this one.
    pub(crate) fn after(&self, at: ReadPosition) -> ReadPosition {
        ReadPosition { position: at.position.next(self.ring.slots), number: at.number.wrapping_add(1) }
    }

    /// Returns the state at a reader's position.
    pub(crate) fn next(&self, position: Position) -> NextMessage {
        run(FindNext::new(self.ring, position), self.words())
    }

    /// Reads the message of a position that was found in this slot into `inc`, which must be empty. Returns
    /// `false` if the message was replaced.
    ///
    /// # Errors
    /// Returns an error if there are too many concurrent readers, most of which must be stopped.
    pub(crate) fn read(
        &self,
        (slot, position): (Slot, Position),
        inc: &mut Incoming,
    ) -> mp_core::Result<bool> {
        let (arena, index) = (self.arena(), position.index);
        let me = arena.me()?;
        let Some(e) = slot.envelope().filter(|&e| e < self.ring.envelopes) else {
            return Err(self.memory.stray_error(slot.envelope().unwrap_or(0)));
        };
        let read = match run(Pin::new(self.ring, self.pins, me, index, slot), self.words()) {
            PinOutcome::Exhausted => return Err(busy_error()),
            PinOutcome::Changed(pin) => (pin, Ok(false)),
            PinOutcome::Pinned(pin) => {
                let owner = Owner::unpack(self.words().load(Envelopes(arena).owner_words().of(e)));
                // SAFETY: the slot is pinned until the read has ended, so the message stays unchanged.
                let message = unsafe { Leased::from_raw(arena, e, owner) };
                (pin, message.read(inc).map(|()| true))
            }
        };
        let (pin, read) = read;
        if self.unpin(me, pin, index) {
            self.collect(index)?;
        }
        read
    }
}

/// Returns the error for too many concurrent readers.
#[cold]
fn busy_error() -> Error {
    Error::LimitExceeded(format!(
        "more than {PINS} threads read one value at the same time; are they stopped?"
    ))
}
