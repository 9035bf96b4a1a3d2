//! Searches of readers in a ring with retained messages, for the newest message or for the message at a
//! reader's position. The states of slots are listed in the module `pins`.

use mp_core::mem::{Mem, Steps};

use super::RingAt;
use super::pins::distance;
use super::retained::RetainedAt;
use super::slot::{Lag, Position, Slot, SlotState, SmallMessage, Turns};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum NewestPc {
    Tail,
    Forward,
    Back,
    /// Checks that no message was published at `unpublished` during the search. Contains the slot of the
    /// message that was found. The check is not needed if this message is at the position just before
    /// `unpublished`.
    Check(Slot),
}

/// Finds the newest message of a ring. Ends with `None` if the ring has no message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FindNewest {
    ring: RingAt,
    position: Position,
    /// First position at which the forward search has found no message.
    unpublished: Position,
    turns: Turns,
    pc: NewestPc,
    /// Number of positions that the backward search has passed.
    back: u32,
}

impl FindNewest {
    /// Creates the steps for `ring`.
    pub fn new(ring: RingAt) -> Self {
        let (position, turns) = (Position::NONE, Turns::default());
        Self { ring, position, unpublished: position, turns, pc: NewestPc::Tail, back: 0 }
    }
}

impl Steps for FindNewest {
    type Out = Option<(Slot, Position)>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Self::Out> {
        match self.pc {
            NewestPc::Tail => {
                self.position = Position::unpack(m.load(self.ring.tail));
                self.back = 0;
                self.pc = NewestPc::Forward;
            }
            // The tail is a hint that may lag.
            NewestPc::Forward => {
                let slot = Slot::unpack(m.load(self.ring.slot(self.position.index)));
                if !self.turns.one_more() {
                    return Some(None);
                }
                match (self.position.lag(slot), slot.state) {
                    (Lag::Equal, SlotState::Full(_) | SlotState::Last(_)) | (Lag::Ahead, _) => {
                        self.position = self.position.skip_used(slot, self.ring.slots);
                    }
                    _ => {
                        self.unpublished = self.position;
                        self.position = self.position.previous(self.ring.slots);
                        self.pc = NewestPc::Back;
                    }
                }
            }
            // Skipped positions have no message, and are complete when their slot is collected.
            NewestPc::Back => {
                let slot = Slot::unpack(m.load(self.ring.slot(self.position.index)));
                match (self.position.lag(slot), slot.state) {
                    (Lag::Equal, SlotState::Full(_)) if self.back == 0 => {
                        return Some(Some((slot, self.position)));
                    }
                    (Lag::Equal, SlotState::Full(_)) => self.pc = NewestPc::Check(slot),
                    // Before the very first position, which is in lap 1.
                    (Lag::Ahead, _) if self.position.lap == 0 && slot.lap == 1 && self.back == 0 => {
                        return Some(None);
                    }
                    (Lag::Equal, SlotState::Last(_)) | (Lag::Ahead, _) if self.back < self.ring.slots => {
                        self.back += 1;
                        self.position = self.position.previous(self.ring.slots);
                    }
                    // A newer message was published.
                    (Lag::Equal, SlotState::Last(_)) | (Lag::Ahead, _) if self.turns.one_more() => {
                        self.pc = NewestPc::Tail;
                    }
                    _ => return Some(None),
                }
            }
            // The search may have passed a newer message that was retired in the meantime. A small message
            // before it is not retired, and would be mistaken for the newest.
            NewestPc::Check(found) => {
                let slot = Slot::unpack(m.load(self.ring.slot(self.unpublished.index)));
                let (lag, state) = (self.unpublished.lag(slot), slot.state);
                if !matches!(
                    (lag, state),
                    (Lag::Equal, SlotState::Full(_) | SlotState::Last(_)) | (Lag::Ahead, _)
                ) {
                    return Some(Some((found, self.position)));
                }
                if !self.turns.one_more() {
                    return Some(None);
                }
                self.pc = NewestPc::Tail;
            }
        }
        None
    }
}

/// State at a reader's position: a message, no message yet, or a missed message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NextMessage {
    /// Slot with a message in an envelope.
    Envelope(Slot),
    /// Small message, copied out of its slot.
    Small(SmallMessage),
    /// No message was published at this position yet.
    Nothing,
    /// The message was replaced, or the position was skipped. Contains the position at which the reader
    /// continues.
    Missed(Position),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum NextPc {
    Load,
    /// Checks whether the reader's message was replaced, by reading the slot of this later position.
    Replacement(Position),
    Rest,
    Again(u64),
    Missed(FindNewest),
}

/// Finds the state at a reader's position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FindNext {
    at: RetainedAt,
    position: Position,
    word: u64,
    turns: Turns,
    pc: NextPc,
}

impl FindNext {
    /// Creates the steps for a reader at `position` of the ring at `at`.
    pub fn new(at: RetainedAt, position: Position) -> Self {
        Self { at, position, word: 0, turns: Turns::default(), pc: NextPc::Load }
    }

    fn missed(&self) -> NextPc {
        NextPc::Missed(FindNewest::new(self.at.ring))
    }

    /// Returns the position at which the reader continues if its message is missed: the oldest retained
    /// message, or the next position if that is later.
    fn next_after(&self, (_, newest): (Slot, Position)) -> Position {
        let slots = self.at.ring.slots;
        let next = self.position.next(slots);
        let oldest = newest.next(slots).minus(self.at.keep, slots);
        if distance(oldest, next, slots).is_some() { oldest } else { next }
    }
}

impl Steps for FindNext {
    type Out = NextMessage;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<NextMessage> {
        let ring = &self.at.ring;
        match self.pc {
            NextPc::Load => {
                self.word = m.load(ring.slot(self.position.index));
                let slot = Slot::unpack(self.word);
                self.pc = match (self.position.lag(slot), slot.state) {
                    (Lag::Equal, SlotState::Full(_)) => {
                        NextPc::Replacement(self.at.replacement(self.position))
                    }
                    (Lag::Equal, SlotState::Last(_)) | (Lag::Ahead, _) => self.missed(),
                    _ => return Some(NextMessage::Nothing),
                };
            }
            NextPc::Replacement(position) => {
                let slot = Slot::unpack(m.load(ring.slot(position.index)));
                let found = Slot::unpack(self.word);
                self.pc = match position.has_replaced(slot) {
                    None if self.turns.one_more() => NextPc::Replacement(position.next(ring.slots)),
                    Some(false) if found.envelope().is_some() => {
                        return Some(NextMessage::Envelope(found));
                    }
                    Some(false) => NextPc::Rest,
                    Some(true) | None => self.missed(),
                };
            }
            NextPc::Rest => self.pc = NextPc::Again(m.load(ring.slot(self.position.index).plus(1))),
            NextPc::Again(rest) => {
                if m.load(ring.slot(self.position.index)) == self.word
                    && let Some(message) = SmallMessage::in_slot([self.word, rest])
                {
                    return Some(NextMessage::Small(message));
                }
                // The slot has a later message.
                self.pc = self.missed();
            }
            NextPc::Missed(ref mut newest) => {
                // If there is no newest message, all positions up to here were skipped.
                return Some(match newest.step(m)? {
                    Some(newest) => NextMessage::Missed(self.next_after(newest)),
                    None => NextMessage::Nothing,
                });
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReadSkipsPc {
    Load,
    Slot(u64),
    Replacement(u64, Position),
}

/// Reads the number of skipped positions before a message that a reader has found. Ends with `None` if the
/// message was replaced.
///
/// The count belongs to the slot. The next sender that uses the slot writes its own count before it
/// overwrites the message, but only after the message was replaced. Therefore the last step checks that the
/// message was not replaced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadSkips {
    at: RetainedAt,
    position: Position,
    turns: Turns,
    pc: ReadSkipsPc,
}

impl ReadSkips {
    /// Creates the steps for the message at `position` of the ring at `at`.
    pub fn new(at: RetainedAt, position: Position) -> Self {
        Self { at, position, turns: Turns::default(), pc: ReadSkipsPc::Load }
    }
}

impl Steps for ReadSkips {
    type Out = Option<u64>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<u64>> {
        match self.pc {
            ReadSkipsPc::Load => {
                self.pc = ReadSkipsPc::Slot(m.load(self.at.skips(self.position.index)));
            }
            ReadSkipsPc::Slot(skips) => {
                let slot = Slot::unpack(m.load(self.at.ring.slot(self.position.index)));
                match (self.position.lag(slot), slot.state) {
                    (Lag::Equal, SlotState::Full(_)) => {}
                    _ => return Some(None),
                }
                self.pc = ReadSkipsPc::Replacement(skips, self.at.replacement(self.position));
            }
            ReadSkipsPc::Replacement(skips, position) => {
                let slot = Slot::unpack(m.load(self.at.ring.slot(position.index)));
                match position.has_replaced(slot) {
                    Some(false) => return Some(Some(skips)),
                    None if self.turns.one_more() => {
                        let next = position.next(self.at.ring.slots);
                        self.pc = ReadSkipsPc::Replacement(skips, next);
                    }
                    Some(true) | None => return Some(None),
                }
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum AssignPc {
    Previous,
    FindNewest(FindNewest),
    /// Reads the count of the newest message, which is at this position.
    Count(Position),
    Read(u64),
    Check(u64, u64),
    Swap(u64, u64),
}

/// Writes the count of skipped positions for a message that is about to be published at a position. The count
/// is that of the newest message, plus the number of positions between the newest message and this position.
/// Ends with `false` if a message was already published at the position, or the slot has changed.
///
/// | word | changed by | after a kill |
/// |---|---|---|
/// | count of a slot | a sender, by one swap, before it publishes in the slot: count of the slot's previous message → count of the new message | the next sender at that position finds or writes the same count |
///
/// Until a position is published, the newest message before it stays the newest. So all senders that try the
/// position write the same count. Counts of a slot never decrease. So a sender that was stopped before its
/// swap, while another sender published at the position, finds a larger count and changes nothing. If no
/// position was skipped, no count changes. From counts and positions, a reader computes the number of
/// messages that it has missed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AssignSkips {
    at: RetainedAt,
    position: Position,
    seen: Slot,
    pc: AssignPc,
}

impl AssignSkips {
    /// Creates the steps for a position and its slot, as found by
    /// [`FindPublishSlot`](super::FindPublishSlot).
    pub fn new(at: RetainedAt, (position, seen): (Position, Slot)) -> Self {
        Self { at, position, seen, pc: AssignPc::Previous }
    }
}

impl Steps for AssignSkips {
    type Out = bool;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let (ring, count_at) = (&self.at.ring, self.at.skips(self.position.index));
        self.pc = match &mut self.pc {
            // The newest message is usually at the previous position, and no search from the tail is needed.
            AssignPc::Previous => {
                let previous = self.position.previous(ring.slots);
                let slot = Slot::unpack(m.load(ring.slot(previous.index)));
                match (previous.lag(slot), slot.state) {
                    (Lag::Equal, SlotState::Full(_)) => AssignPc::Count(previous),
                    _ => AssignPc::FindNewest(FindNewest::new(*ring)),
                }
            }
            AssignPc::FindNewest(newest) => match newest.step(m)? {
                Some((_, newest)) => AssignPc::Count(newest),
                // No position was skipped before the first message.
                None if self.position.previous(ring.slots).lap == 0 => AssignPc::Read(0),
                None => return Some(false),
            },
            AssignPc::Count(newest) => {
                let before = m.load(self.at.skips(newest.index));
                match distance(self.position, newest.next(ring.slots), ring.slots) {
                    Some(between) => AssignPc::Read(before.wrapping_add(between)),
                    None => return Some(false),
                }
            }
            AssignPc::Read(count) => match m.load(count_at) {
                found if found == *count => return Some(true),
                found => AssignPc::Check(*count, found),
            },
            // Read after the count: if the slot is unchanged and the position is published later, its
            // publisher has changed the count before, and the swap fails.
            AssignPc::Check(count, found) => {
                if m.load(ring.slot(self.position.index)) != self.seen.pack() {
                    return Some(false);
                }
                AssignPc::Swap(*count, *found)
            }
            AssignPc::Swap(count, found) => {
                // Fails if another sender has written the count. That sender may also have published.
                _ = m.cas(count_at, *found, *count);
                return Some(true);
            }
        };
        None
    }
}
