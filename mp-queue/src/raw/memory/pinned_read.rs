//! # Safety
//! Rings with retained messages. The code is unsafe because it could create an `Envelope` for a message with
//! another owner, or read a message while another process empties it. It is sound because one `Envelope` is
//! created for each message that [`Collect`] has just taken out of its slot. A message is read only while its
//! slot is pinned, which keeps it unchanged (table: module `ring::pins`).
#![allow(unsafe_code)]

use mp_core::mem::{Mem, Word, run};
use mp_core::message::Incoming;
use mp_core::words::{Member, Owner};
use mp_core::{Arena, Blocks, Envelope, Envelopes, Error, Leased, Members};

use super::RingMemory;
use crate::raw::payload::Payload;
use crate::ring::{
    AssignSkips, Collect, CollectOutcome, DiscardSmall, FindNewest, FindNext, FindPublishSlot, NextMessage,
    Pin, PinOutcome, Pins, Position, PublishSlot, PublishSmall, Put, PutOutcome, ReadSkips, RetainedAt,
    Retire, RingAt, SkipPosition, Slot, SlotState, SmallMessage, Unpin,
};

/// Largest number of threads that read one ring at the same time, including stopped threads. Further reads
/// fail.
const PINS: u32 = 256;
/// Number of bytes of a cache line. The count of used pins is at the beginning of a line, and the pins begin
/// at the next line.
const LINE: u64 = 64;

/// Largest number of attempts of a publisher or reader that finds inconsistent words.
pub(crate) const TURNS: u32 = 1 << 16;

/// Position of a reader in the order of messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPosition {
    /// Position of the next message to read.
    pub(crate) position: Position,
    /// Number of positions before `position` that were skipped, or [`UNKNOWN`](Self::UNKNOWN).
    pub(crate) skips: u64,
}

impl ReadPosition {
    pub(crate) const UNKNOWN: u64 = u64::MAX;
}

/// A ring with retained messages, in the memory of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetainedRing {
    memory: RingMemory,
    at: RetainedAt,
}

/// Returns the number of slots for a ring that keeps `limit` messages. The number is chosen so that at least
/// one slot has neither a retained nor a pinned message.
pub(crate) const fn slots_for(limit: u32) -> u32 {
    limit.saturating_add(PINS + 8)
}

/// Returns the number of bytes after `slots` slots: the pins, and for each slot a count of skipped positions.
pub(crate) const fn bytes_after(slots: u32) -> u64 {
    2 * LINE + 8 * (PINS as u64 + slots as u64)
}

fn retained_at(ring: RingAt, keep: u32) -> RetainedAt {
    let first = ring.first.offset() + RingAt::SLOT * u64::from(ring.slots);
    let used = Word::at(first.next_multiple_of(LINE));
    let pins = Pins { used, first: used.plus(LINE / 8), count: PINS };
    RetainedAt { ring, pins, skips: pins.pin(PINS), keep }
}

impl RingMemory {
    /// Returns this queue as a ring with retained messages. Returns `None` for a queue whose messages are
    /// taken.
    pub(crate) fn retained(&self) -> Option<RetainedRing> {
        let limit = self.retained_limit();
        let ring = self.chain.segment(0);
        let possible = limit > 0 && slots_for(limit) == ring.slots && self.chain.segments == 1;
        let (base, len) = Blocks(self.arena).ring_memory(self.chain.block()).filter(|_| possible)?;
        let at = retained_at(ring, limit);
        let end = at.skips.plus(u64::from(ring.slots));
        (end.offset() <= base.offset() + len).then_some(RetainedRing { memory: *self, at })
    }

    /// Clears the pins and the counts of skipped positions of a new ring. Called before another process has
    /// the ring.
    pub(super) fn clear_pins(&self) {
        let m = Self::words(self.arena);
        let at = retained_at(self.chain.segment(0), self.retained_limit());
        m.store_relaxed(at.pins.used, 0);
        (0..PINS).for_each(|i| m.store_relaxed(at.pins.pin(i), 0));
        (0..at.ring.slots).for_each(|i| m.store_relaxed(at.skips(i), 0));
    }
}

impl RetainedRing {
    /// Returns the number of messages that the ring keeps.
    pub(crate) fn capacity(&self) -> u32 {
        self.at.keep
    }

    fn arena(&self) -> Arena {
        self.memory.arena
    }

    fn words(&self) -> &'static (impl Mem + Copy + use<>) {
        RingMemory::words(self.arena())
    }

    /// Publishes a message and retires older messages beyond the limit. With `after`, publishes only if the
    /// newest message has that position, and otherwise returns [`PutOutcome::Closed`]. The caller still owns
    /// the message unless the result is `Done`.
    pub(crate) fn publish(
        &self,
        payload: &mut Payload,
        after: Option<Position>,
    ) -> mp_core::Result<PutOutcome<()>> {
        let (at, m) = (self.at, *self.words());
        self.arena().me()?;
        for _ in 0..TURNS {
            match run(FindPublishSlot::new(at), &m) {
                PublishSlot::Free(position, slot) => {
                    // All earlier positions are complete: their newest message stays the newest until this
                    // message is published.
                    if after.is_some_and(|after| self.newest().is_none_or(|(_, newest)| newest != after)) {
                        return Ok(PutOutcome::Closed(()));
                    }
                    if !run(AssignSkips::new(at, (position, slot)), &m) {
                        continue;
                    }
                    let retire = match payload {
                        Payload::Small(small) => run(PublishSmall::new(at, (position, slot), *small), &m),
                        Payload::Envelope(envelope) => self.publish_envelope(envelope, (position, slot))?,
                    };
                    match retire {
                        Some(true) => self.retire(position)?,
                        Some(false) => {}
                        None => continue,
                    }
                    return Ok(PutOutcome::Done(position));
                }
                PublishSlot::Retired(position, slot) => {
                    if !self.collect(position.index)? {
                        run(SkipPosition::new(at.ring, position, slot), &m);
                    }
                }
                PublishSlot::Current(position) => self.retire(position)?,
                PublishSlot::Inconsistent => break,
            }
        }
        Ok(PutOutcome::Full(()))
    }

    /// Marks the next position as skipped, with an empty slot.
    #[cfg(test)]
    pub(crate) fn skip_next(&self) {
        if let PublishSlot::Free(position, slot) = run(FindPublishSlot::new(self.at), self.words()) {
            let skipped = Slot { lap: position.lap + 1, ..slot };
            self.words().store(self.at.ring.slot(position.index), skipped.pack());
        }
    }

    /// Publishes an envelope at `position`, whose slot is empty or has a replaced small message. Returns
    /// `Some(true)` if the envelope was published, so that the caller must retire older messages. Returns
    /// `None` if the slot has changed.
    fn publish_envelope(
        &self,
        envelope: &mut Envelope,
        (position, slot): (Position, Slot),
    ) -> mp_core::Result<Option<bool>> {
        let m = self.words();
        if slot.state != SlotState::Empty {
            run(DiscardSmall::new(self.at, (position, slot)), m);
        }
        let end = self.memory.put_envelope(envelope, |me, intent, words, owner| {
            run(Put::new(self.at.ring, intent, words, me, owner).at(position), m)
        })?;
        Ok(matches!(end, PutOutcome::Done(_)).then_some(true))
    }

    /// Retires and collects the envelopes beyond the limit, after a message was published at `newest`.
    #[inline(never)]
    fn retire(&self, newest: Position) -> mp_core::Result<()> {
        while let Some(index) = run(Retire::new(self.at, newest), self.words()) {
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

    /// Takes the message in slot `index` out of the slot and drops it, if `how` allows that. Returns the
    /// outcome.
    fn run_collect(
        &self,
        index: u32,
        how: impl FnOnce(Collect) -> Collect,
    ) -> mp_core::Result<CollectOutcome> {
        let (arena, ring, pins) = (self.arena(), self.at.ring, self.at.pins);
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

    /// Clears a pin of `who` on slot `index`. Returns `true` if the message in the slot was retired after it
    /// was pinned.
    fn unpin(&self, who: Member, pin: u32, index: u32) -> bool {
        run(Unpin::new(self.at.ring, self.at.pins, who, pin, index), self.words())
    }

    /// Collects the messages that dead readers had pinned.
    pub(crate) fn collect_all(&self) -> mp_core::Result<()> {
        (0..self.at.ring.slots).try_for_each(|index| self.collect(index).map(drop))
    }

    /// Clears the pins of a dead member. Any number of processes may do this at once.
    pub(super) fn unpin_dead(&self, dead: Member) {
        let m = self.words();
        let pins = self.at.pins;
        let used = m.load(pins.used).min(u64::from(PINS)) as u32;
        for pin in 0..used {
            match Pins::unpack(m.load(pins.pin(pin))) {
                Some((member, index)) if member == dead => _ = self.unpin(dead, pin, index),
                _ => {}
            }
        }
    }

    /// Takes all messages out and drops them, even if they are pinned. Called when no process has the ring.
    pub(super) fn drain(&self) {
        (0..self.at.ring.slots).for_each(|index| _ = self.run_collect(index, Collect::unconditional));
    }

    /// Returns the slot and the position of the newest message, or `None` if there is no message.
    pub(crate) fn newest(&self) -> Option<(Slot, Position)> {
        run(FindNewest::new(self.at.ring), self.words())
    }

    /// Advances a reader from position `from` to the message found at `to`. Returns the reader's new
    /// position, and the number of messages that the reader has missed. Returns `None` if the message at `to`
    /// was replaced.
    pub(crate) fn advance(&self, from: ReadPosition, to: Position) -> Option<(ReadPosition, u64)> {
        if from.position == to && from.skips != ReadPosition::UNKNOWN {
            return Some((from, 0));
        }
        let skips = run(ReadSkips::new(self.at, to), self.words())?;
        let missed = match from.skips {
            ReadPosition::UNKNOWN => 0,
            before => {
                let positions = to.distance_from(from.position, self.at.ring.slots);
                positions.saturating_sub(skips.wrapping_sub(before))
            }
        };
        Some((ReadPosition { position: to, skips }, missed))
    }

    /// Returns `true` if a reader that continues at `position` would find a message.
    pub(crate) fn has_message(&self, mut position: Position) -> bool {
        for _ in 0..TURNS {
            match self.next(position) {
                NextMessage::Small(_) | NextMessage::Envelope(_) => return true,
                NextMessage::Missed(on) => position = on,
                NextMessage::Nothing => break,
            }
        }
        false
    }

    /// Returns the small message at a position, or `None` if the message was replaced.
    pub(crate) fn small(&self, position: Position) -> Option<SmallMessage> {
        match self.next(position) {
            NextMessage::Small(small) => Some(small),
            _ => None,
        }
    }

    /// Returns the position of a new reader, which reads only messages that are published after this call.
    pub(crate) fn end(&self) -> ReadPosition {
        for _ in 0..TURNS {
            match self.newest() {
                Some((_, newest)) => {
                    if let Some(skips) = run(ReadSkips::new(self.at, newest), self.words()) {
                        return self.after(ReadPosition { position: newest, skips });
                    }
                }
                None => {
                    let position = self.tail();
                    // Otherwise a message was published in the meantime, and the next turn finds it.
                    if position.previous(self.at.ring.slots).lap == 0 {
                        return ReadPosition { position, skips: 0 };
                    }
                }
            }
        }
        ReadPosition { position: self.tail(), skips: ReadPosition::UNKNOWN }
    }

    fn tail(&self) -> Position {
        Position::unpack(self.words().load(self.at.ring.tail))
    }

    /// Returns the position after `at`.
    pub(crate) fn after(&self, at: ReadPosition) -> ReadPosition {
        ReadPosition { position: at.position.next(self.at.ring.slots), ..at }
    }

    /// Returns the message at a reader's position, or the position at which the reader must continue.
    pub(crate) fn next(&self, position: Position) -> NextMessage {
        run(FindNext::new(self.at, position), self.words())
    }

    /// Reads the envelope that was found in `slot` at `position` into `inc`, which must be empty. Returns
    /// `false` if the message was replaced.
    ///
    /// # Errors
    /// Returns an error if all pins are in use by other readers, most of which must be stopped.
    pub(crate) fn read(
        &self,
        (slot, position): (Slot, Position),
        inc: &mut Incoming,
    ) -> mp_core::Result<bool> {
        let (arena, index) = (self.arena(), position.index);
        let me = arena.me()?;
        let Some(e) = slot.envelope().filter(|&e| e < self.at.ring.envelopes) else {
            return Err(self.memory.stray_error(slot.envelope().unwrap_or(0)));
        };
        let pin = Pin::new(self.at.ring, self.at.pins, me, index, slot);
        let read = match run(pin, self.words()) {
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
