//! Search for the oldest message of a ring. The search takes a small message at once, and leaves an envelope
//! to [`Get`](super::Get).

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::{EnvelopeId, Owner};

use super::RingAt;
use super::slot::{Lag, Position, Slot, SlotState, SmallMessage, Turns};

/// Result of an attempt to get a message, for steps and for the callers in `raw` and `queue`. For steps, `M`
/// is the message. For callers that store the message in a variable, `M` is `()`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GetOutcome<M = TakenMessage> {
    /// A message was found or taken.
    Done(M),
    /// The queue is empty.
    Empty,
    /// The queue is empty and closed.
    Closed,
}

/// Message taken by [`Get`](super::Get).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TakenMessage {
    /// Envelope with its new owner word, which names the caller, and the position at which it was taken.
    Envelope(EnvelopeId, Owner, Position),
    /// Garbage that a process wrote into the slot: the number of an envelope that does not exist or is not
    /// queued. The slot is emptied, and no envelope is taken.
    Stray(EnvelopeId),
    /// Small message and its position. The message was taken, except in a get that leases: then the message
    /// stays in its slot until [`Enclose`] takes it.
    ///
    /// [`Enclose`]: super::Enclose
    Small(SmallMessage, Position),
}

/// Result of [`FindOldest`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OldestMessage {
    /// Envelope that is not taken yet: the first word of its slot, and its position.
    Envelope(u64, Position),
    /// Garbage in the slot: the number of an envelope that does not exist. The slot is emptied.
    Stray(EnvelopeId),
    /// Small message and its position. The message was taken, except in a get that leases: then the message
    /// stays in its slot until [`Enclose`](super::Enclose) takes it.
    Small(SmallMessage, Position),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Head,
    Load,
    Help,
    Drop,
    Rest,
    Again,
    Take,
    Advance,
}

/// Finds the oldest message of a ring, and takes the message if it is small. Never waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FindOldest {
    ring: RingAt,
    position: Position,
    slot: Slot,
    /// First word of the slot that was read.
    word: u64,
    /// Second word of the slot that was read.
    rest: u64,
    leasing: bool,
    /// `true` if the get is part of a batch and does not advance the head past its message.
    batched: bool,
    turns: Turns,
    pc: Pc,
}

impl FindOldest {
    /// Creates the steps to find the oldest message of `ring`.
    #[inline]
    pub fn new(ring: RingAt) -> Self {
        Self {
            ring,
            position: Position::NONE,
            slot: Slot::NONE,
            word: 0,
            rest: 0,
            leasing: false,
            batched: false,
            turns: Turns::default(),
            pc: Pc::Head,
        }
    }

    /// Leaves a small message in its slot, so that the caller can lease it.
    #[must_use]
    pub fn leasing(self) -> Self {
        Self { leasing: true, ..self }
    }

    /// Makes the get part of a batch: see [`Get::batched`](super::Get::batched).
    #[must_use]
    pub(super) fn batched(self, last: Option<Position>) -> Self {
        match last {
            Some(last) => Self { position: last.next(self.ring.slots), batched: true, pc: Pc::Load, ..self },
            None => Self { batched: true, ..self },
        }
    }

    pub(super) fn is_batched(&self) -> bool {
        self.batched
    }

    /// Returns the steps to search again from the head.
    #[inline]
    pub(super) fn restart(self) -> Self {
        Self { leasing: self.leasing, batched: self.batched, ..Self::new(self.ring) }
    }

    #[inline]
    fn small(&self) -> Option<GetOutcome<OldestMessage>> {
        Some(GetOutcome::Done(OldestMessage::Small(
            SmallMessage::in_slot([self.word, self.rest])?,
            self.position,
        )))
    }

    // Each step computes this itself. With common code before the `match`, the compiler would not merge all
    // steps into straight-line code.
    #[inline(always)]
    fn slot_at(&self) -> Word {
        self.ring.slot(self.position.index)
    }
}

impl Steps for FindOldest {
    type Out = GetOutcome<OldestMessage>;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<GetOutcome<OldestMessage>> {
        match self.pc {
            Pc::Head => {
                self.position = Position::unpack(m.load(self.ring.head));
                self.pc = Pc::Load;
            }
            Pc::Load => {
                self.word = m.load(self.slot_at());
                self.slot = Slot::unpack(self.word);
                match (self.position.lag(self.slot), self.slot.state) {
                    (Lag::Equal, SlotState::Full(content) | SlotState::Last(content)) => {
                        match content.envelope() {
                            Some(e) if e < self.ring.envelopes => {
                                return Some(GetOutcome::Done(OldestMessage::Envelope(
                                    self.word,
                                    self.position,
                                )));
                            }
                            Some(_) => self.pc = Pc::Drop,
                            None => self.pc = Pc::Rest,
                        }
                    }
                    (Lag::Equal, SlotState::Stray { .. }) => self.pc = Pc::Drop,
                    (Lag::Equal, SlotState::Closed) => return Some(GetOutcome::Closed),
                    // An earlier lap would mean that the head has passed an unused slot, which never happens.
                    (Lag::Equal, SlotState::Empty) | (Lag::Behind, _) => return Some(GetOutcome::Empty),
                    (Lag::Ahead, _) => self.pc = Pc::Help,
                }
            }
            Pc::Help => {
                if !self.turns.one_more() {
                    return Some(GetOutcome::Empty);
                }
                if !self.ring.help(m, self.ring.head, self.position, self.slot) {
                    m.lost();
                }
                self.pc = Pc::Head;
            }
            Pc::Drop => {
                let e = (self.word & 0xff_ffff) as EnvelopeId;
                let taken = m.cas(self.slot_at(), self.word, self.slot.after_take().pack()).is_ok();
                self.pc = Pc::Head;
                return taken.then_some(GetOutcome::Done(OldestMessage::Stray(e)));
            }
            // If the slot has changed since the first word was read, this word belongs to another message,
            // and the swap below fails.
            Pc::Rest => {
                self.rest = m.load(self.slot_at().plus(1));
                self.pc = if self.leasing { Pc::Again } else { Pc::Take };
            }
            // The message is copied before it is taken, so both words must belong to one message.
            Pc::Again => {
                if m.load(self.slot_at()) == self.word {
                    return self.small();
                }
                self.pc = Pc::Head;
            }
            Pc::Take => {
                let after = [self.slot.after_take().pack(), 0];
                self.pc = match m.cas_pair(self.slot_at(), [self.word, self.rest], after) {
                    true if self.batched => return self.small(),
                    true => Pc::Advance,
                    false => {
                        m.lost();
                        Pc::Head
                    }
                };
            }
            Pc::Advance => {
                self.ring.pass(m, self.ring.head, self.position);
                return self.small();
            }
        }
        None
    }
}
