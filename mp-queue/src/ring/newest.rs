//! Searches of readers in a ring whose messages are kept: for the newest message, or for the one at a
//! reader's ticket. Table: [`Pin`](super::Pin).

use mp_core::mem::{Mem, Steps, Word};

use super::RingAt;
use super::kept::ahead;
use super::slot::{Lag, Slot, SlotState, Ticket, Turns};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum NewestPc {
    Tail,
    Forward,
    Back,
}

/// Finds the newest message. Ends with `None` if there is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Newest {
    ring: RingAt,
    ticket: Ticket,
    turns: Turns,
    pc: NewestPc,
    /// Number of tickets that the search has gone back.
    back: u32,
}

impl Newest {
    /// Creates the steps for `ring`.
    pub fn new(ring: RingAt) -> Self {
        let ticket = Ticket { lap: 0, index: 0 };
        Self { ring, ticket, turns: Turns::default(), pc: NewestPc::Tail, back: 0 }
    }
}

impl Steps for Newest {
    type Out = Option<(Slot, Ticket)>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Self::Out> {
        match self.pc {
            NewestPc::Tail => {
                self.ticket = Ticket::unpack(m.load(self.ring.tail));
                self.back = 0;
                self.pc = NewestPc::Forward;
            }
            // The tail is a hint that may lag.
            NewestPc::Forward => {
                let slot = Slot::unpack(m.load(self.ring.slot(self.ticket.index)));
                if !self.turns.one_more() {
                    return Some(None);
                }
                match (self.ticket.lag(slot), slot.state) {
                    (Lag::At, SlotState::Full(_) | SlotState::Last(_)) | (Lag::Ahead, _) => {
                        self.ticket = self.ticket.over(slot, self.ring.slots);
                    }
                    _ => {
                        self.ticket = self.ticket.before(self.ring.slots);
                        self.pc = NewestPc::Back;
                    }
                }
            }
            // Tickets that were passed over have no message, and are complete when their slot is collected.
            // Messages are retired in order, so only such tickets follow a message that is not retired.
            NewestPc::Back => {
                let slot = Slot::unpack(m.load(self.ring.slot(self.ticket.index)));
                match (self.ticket.lag(slot), slot.state) {
                    (Lag::At, SlotState::Full(_)) => return Some(Some((slot, self.ticket))),
                    // Before the very first ticket, which is in lap 1.
                    (Lag::Ahead, _) if self.ticket.lap == 0 && slot.lap == 1 && self.back == 0 => {
                        return Some(None);
                    }
                    (Lag::At, SlotState::Last(_)) | (Lag::Ahead, _) if self.back < self.ring.slots => {
                        self.back += 1;
                        self.ticket = self.ticket.before(self.ring.slots);
                    }
                    // A newer message was published.
                    (Lag::At, SlotState::Last(_)) | (Lag::Ahead, _) if self.turns.one_more() => {
                        self.pc = NewestPc::Tail;
                    }
                    _ => return Some(None),
                }
            }
        }
        None
    }
}

/// State at a reader's ticket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Next {
    /// A message, in this slot.
    Message(Slot),
    /// No message yet.
    Nothing,
    /// The reader continues at this ticket, and has missed at most this number of tickets: 0 if the ticket
    /// was passed over. Messages are counted by their numbers ([`NumberOf`]).
    Missed(Ticket, u64),
}

/// Finds the state at a reader's ticket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FindNext {
    ring: RingAt,
    ticket: Ticket,
    /// The slot, if the ticket's message is not in it any more.
    gone: Option<Slot>,
}

impl FindNext {
    /// Creates the steps for `ticket` of `ring`.
    pub fn new(ring: RingAt, ticket: Ticket) -> Self {
        Self { ring, ticket, gone: None }
    }
}

impl Steps for FindNext {
    type Out = Next;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Next> {
        let Some(gone) = self.gone else {
            let slot = Slot::unpack(m.load(self.ring.slot(self.ticket.index)));
            match (self.ticket.lag(slot), slot.state) {
                (Lag::At, SlotState::Full(_)) => return Some(Next::Message(slot)),
                (Lag::At, SlotState::Last(_)) | (Lag::Ahead, _) => self.gone = Some(slot),
                _ => return Some(Next::Nothing),
            }
            return None;
        };
        let head = Ticket::unpack(m.load(self.ring.head));
        let next = self.ticket.next(self.ring.slots);
        Some(match ahead(head, self.ticket, self.ring.slots) {
            // The head lags: the process that retires the next message advances it.
            Some(0) => Next::Missed(next, 1),
            Some(n) => Next::Missed(head, n),
            None if self.ticket.lag(gone) == Lag::Ahead => Next::Missed(next, 1),
            None => Next::Missed(next, 0),
        })
    }
}

/// Reads the number of the message in a slot, which is the slot's second word. Ends with `None` if the slot
/// has changed.
///
/// | number | changed by | after a kill |
/// |---|---|---|
/// | of the message that was in the slot before | a sender, by one swap, while the slot is empty, to one more than the number of the newest message | the next sender under that ticket finds or writes the same number |
///
/// Until a ticket is published, the newest message before it stays the newest. So all senders that try the
/// ticket write the same number. A sender that was stopped meanwhile finds another number in the word and
/// changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NumberOf {
    slot: Word,
    seen: u64,
    number: Option<u64>,
}

impl NumberOf {
    /// Creates the steps for the message in slot `index` of `ring`, which contained `seen`.
    pub fn new(ring: RingAt, index: u32, seen: Slot) -> Self {
        Self { slot: ring.slot(index), seen: seen.pack(), number: None }
    }
}

impl Steps for NumberOf {
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
    Look(u64),
    Swap(u64),
}

/// Writes the number of the message that is about to be published under a ticket. Ends with `false` if the
/// ticket is complete.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct SetNumber {
    slot: Word,
    empty: u64,
    number: u64,
    pc: NumberPc,
}

impl SetNumber {
    /// Creates the steps for `ticket` of `ring`, which [`FindRoom`](super::FindRoom) has found.
    fn new(ring: RingAt, ticket: Ticket, number: u64) -> Self {
        let empty = Slot { lap: ticket.lap, state: SlotState::Empty };
        Self { slot: ring.slot(ticket.index), empty: empty.pack(), number, pc: NumberPc::Read }
    }
}

impl Steps for SetNumber {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        match self.pc {
            NumberPc::Read => self.pc = NumberPc::Look(m.load(self.slot.plus(1))),
            // After the word was read: if it changes from now on, the swap fails.
            NumberPc::Look(_) if m.load(self.slot) != self.empty => return Some(false),
            NumberPc::Look(found) if found == self.number => return Some(true),
            NumberPc::Look(found) => self.pc = NumberPc::Swap(found),
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
enum NumberNextPc {
    Newest(Newest),
    Number(NumberOf),
    Set(SetNumber),
}

/// Numbers the message that is about to be published under a ticket: 1 for the first message, otherwise the
/// newest message's number plus one. Ends with `false` if the ticket is complete, or the newest message was
/// replaced meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NumberNext {
    ring: RingAt,
    ticket: Ticket,
    pc: NumberNextPc,
}

impl NumberNext {
    /// Creates the steps for `ticket` of `ring`, which [`FindRoom`](super::FindRoom) has found.
    pub fn new(ring: RingAt, ticket: Ticket) -> Self {
        Self { ring, ticket, pc: NumberNextPc::Newest(Newest::new(ring)) }
    }

    fn set(&self, number: u64) -> NumberNextPc {
        NumberNextPc::Set(SetNumber::new(self.ring, self.ticket, number))
    }
}

impl Steps for NumberNext {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        self.pc = match &mut self.pc {
            NumberNextPc::Newest(newest) => match newest.step(m)? {
                Some((slot, ticket)) => NumberNextPc::Number(NumberOf::new(self.ring, ticket.index, slot)),
                // No ticket was passed over before the first message.
                None if self.ticket.before(self.ring.slots).lap == 0 => self.set(1),
                None => return Some(false),
            },
            NumberNextPc::Number(number) => match number.step(m)? {
                Some(before) => self.set(before.wrapping_add(1)),
                None => return Some(false),
            },
            NumberNextPc::Set(set) => return set.step(m),
        };
        None
    }
}
