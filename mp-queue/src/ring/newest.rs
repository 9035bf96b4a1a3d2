//! Searches of readers in a ring with retained messages: for the newest message, or for the message at a
//! reader's position. Table: [`Pin`](super::Pin).

use mp_core::mem::{Mem, Steps, Word};

use super::RingAt;
use super::pins::distance;
use super::slot::{Lag, Position, Slot, SlotState, Turns};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum NewestPc {
    Tail,
    Forward,
    Back,
}

/// Finds the newest message. Ends with `None` if there is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FindNewest {
    ring: RingAt,
    position: Position,
    turns: Turns,
    pc: NewestPc,
    /// Number of positions that the search has gone back.
    back: u32,
}

impl FindNewest {
    /// Creates the steps for `ring`.
    pub fn new(ring: RingAt) -> Self {
        Self { ring, position: Position::NONE, turns: Turns::default(), pc: NewestPc::Tail, back: 0 }
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
                        self.position = self.position.previous(self.ring.slots);
                        self.pc = NewestPc::Back;
                    }
                }
            }
            // Skipped positions have no message, and are complete when their slot is collected. Messages are
            // retired in order, so only such positions follow a message that is not retired.
            NewestPc::Back => {
                let slot = Slot::unpack(m.load(self.ring.slot(self.position.index)));
                match (self.position.lag(slot), slot.state) {
                    (Lag::Equal, SlotState::Full(_)) => return Some(Some((slot, self.position))),
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
        }
        None
    }
}

/// State at a reader's position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NextMessage {
    /// A message, in this slot.
    Message(Slot),
    /// No message yet.
    Nothing,
    /// The reader continues at this position, and has missed at most this number of positions: 0 if the
    /// position was skipped. Messages are counted by their numbers ([`ReadNumber`]).
    Missed(Position, u64),
}

/// Finds the state at a reader's position.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FindNext {
    ring: RingAt,
    position: Position,
    /// The slot, if the position's message is not in it.
    gone: Option<Slot>,
}

impl FindNext {
    /// Creates the steps for `position` of `ring`.
    pub fn new(ring: RingAt, position: Position) -> Self {
        Self { ring, position, gone: None }
    }
}

impl Steps for FindNext {
    type Out = NextMessage;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<NextMessage> {
        let Some(gone) = self.gone else {
            let slot = Slot::unpack(m.load(self.ring.slot(self.position.index)));
            match (self.position.lag(slot), slot.state) {
                (Lag::Equal, SlotState::Full(_)) => return Some(NextMessage::Message(slot)),
                (Lag::Equal, SlotState::Last(_)) | (Lag::Ahead, _) => self.gone = Some(slot),
                _ => return Some(NextMessage::Nothing),
            }
            return None;
        };
        let head = Position::unpack(m.load(self.ring.head));
        let next = self.position.next(self.ring.slots);
        Some(match distance(head, self.position, self.ring.slots) {
            // The head lags: the process that retires the next message advances it.
            Some(0) => NextMessage::Missed(next, 1),
            Some(n) => NextMessage::Missed(head, n),
            None if self.position.lag(gone) == Lag::Ahead => NextMessage::Missed(next, 1),
            None => NextMessage::Missed(next, 0),
        })
    }
}

/// Reads the number of the message in a slot, which is the slot's second word. Ends with `None` if the slot
/// has changed.
///
/// | number | changed by | after a kill |
/// |---|---|---|
/// | of the message that was in the slot before | a sender, by one swap, while the slot is empty, to one more than the number of the newest message | the next sender at that position finds or writes the same number |
///
/// Until a position is published, the newest message before it stays the newest. So all senders that try the
/// position write the same number. A sender that was stopped meanwhile finds another number in the word and
/// changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReadNumber {
    slot: Word,
    seen: u64,
    number: Option<u64>,
}

impl ReadNumber {
    /// Creates the steps for the message in slot `index` of `ring`, which contained `seen`.
    pub fn new(ring: RingAt, index: u32, seen: Slot) -> Self {
        Self { slot: ring.slot(index), seen: seen.pack(), number: None }
    }
}

impl Steps for ReadNumber {
    type Out = Option<u64>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<u64>> {
        let Some(number) = self.number else {
            self.number = Some(m.load(self.slot.plus(1)));
            return None;
        };
        Some((m.load(self.slot) == self.seen).then_some(number))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum NumberPc {
    Read,
    Load(u64),
    Swap(u64),
}

/// Writes the number of the message that is about to be published at a position. Ends with `false` if the
/// position is complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct SetNumber {
    slot: Word,
    empty: u64,
    number: u64,
    pc: NumberPc,
}

impl SetNumber {
    /// Creates the steps for `position` of `ring`, which [`FindPublishSlot`](super::FindPublishSlot) has
    /// found.
    fn new(ring: RingAt, position: Position, number: u64) -> Self {
        let (slot, empty) = (ring.slot(position.index), position.empty_slot().pack());
        Self { slot, empty, number, pc: NumberPc::Read }
    }
}

impl Steps for SetNumber {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        match self.pc {
            NumberPc::Read => self.pc = NumberPc::Load(m.load(self.slot.plus(1))),
            // After the word was read: if it changes from now on, the swap fails.
            NumberPc::Load(_) if m.load(self.slot) != self.empty => return Some(false),
            NumberPc::Load(found) if found == self.number => return Some(true),
            NumberPc::Load(found) => self.pc = NumberPc::Swap(found),
            NumberPc::Swap(found) => {
                // Fails if another sender has written it, who may also have published.
                _ = m.cas(self.slot.plus(1), found, self.number);
                return Some(true);
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum AssignNumberPc {
    FindNewest(FindNewest),
    Number(ReadNumber),
    Set(SetNumber),
}

/// Numbers the message that is about to be published at a position: 1 for the first message, otherwise the
/// newest message's number plus one. Ends with `false` if the position is complete, or the newest message was
/// replaced meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AssignNumber {
    ring: RingAt,
    position: Position,
    pc: AssignNumberPc,
}

impl AssignNumber {
    /// Creates the steps for `position` of `ring`, which [`FindPublishSlot`](super::FindPublishSlot) has
    /// found.
    pub fn new(ring: RingAt, position: Position) -> Self {
        Self { ring, position, pc: AssignNumberPc::FindNewest(FindNewest::new(ring)) }
    }

    fn set(&self, number: u64) -> AssignNumberPc {
        AssignNumberPc::Set(SetNumber::new(self.ring, self.position, number))
    }
}

impl Steps for AssignNumber {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        self.pc = match &mut self.pc {
            AssignNumberPc::FindNewest(newest) => match newest.step(m)? {
                Some((slot, position)) => {
                    AssignNumberPc::Number(ReadNumber::new(self.ring, position.index, slot))
                }
                // No position was skipped before the first message.
                None if self.position.previous(self.ring.slots).lap == 0 => self.set(1),
                None => return Some(false),
            },
            AssignNumberPc::Number(number) => match number.step(m)? {
                Some(before) => self.set(before.wrapping_add(1)),
                None => return Some(false),
            },
            AssignNumberPc::Set(set) => return set.step(m),
        };
        None
    }
}
