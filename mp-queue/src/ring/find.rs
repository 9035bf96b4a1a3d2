//! Finding the oldest message of a ring. A small one is in the slot and is taken at once. Where there is an
//! envelope, [`Get`](super::Get) continues.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::EnvelopeId;

use super::slot::{Lag, Slot, SlotState, Ticket, Turns};
use super::{GetEnd, RingAt, Small};

/// What [`Find`] found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Found {
    /// An envelope is in the slot of this word, under this ticket, and not taken yet.
    Envelope(u64, Ticket),
    /// The slot named an envelope that does not exist. The slot is taken.
    Stray(EnvelopeId),
    /// A small message. It was taken under this ticket; unless it is to be leased: then it is still there,
    /// for [`Enclose`](super::Enclose).
    Small(Small, Ticket),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Head,
    Look,
    Help,
    Drop,
    Rest,
    Again,
    Take,
    Advance,
}

/// Finds the oldest message of a ring, and takes it if it is small; it never waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Find {
    ring: RingAt,
    ticket: Ticket,
    slot: Slot,
    /// The slot's first word, as it was found.
    word: u64,
    /// The slot's second word.
    rest: u64,
    leasing: bool,
    /// One of a batch: it helps the head no further.
    batched: bool,
    turns: Turns,
    pc: Pc,
}

impl Find {
    /// To find the next message of `ring`.
    #[inline]
    pub fn new(ring: RingAt) -> Self {
        Self {
            ring,
            ticket: Ticket { lap: 0, index: 0 },
            slot: Slot { lap: 0, state: SlotState::Empty },
            word: 0,
            rest: 0,
            leasing: false,
            batched: false,
            turns: Turns::default(),
            pc: Pc::Head,
        }
    }

    /// To be leased: a small message is left where it is.
    #[must_use]
    pub(super) fn leasing(self) -> Self {
        Self { leasing: true, ..self }
    }

    /// As one of a batch, see [`Get::batched`](super::Get::batched).
    #[must_use]
    pub(super) fn batched(self, last: Option<Ticket>) -> Self {
        match last {
            Some(last) => Self { ticket: last.next(self.ring.slots), batched: true, pc: Pc::Look, ..self },
            None => Self { batched: true, ..self },
        }
    }

    pub(super) fn is_batched(&self) -> bool {
        self.batched
    }

    /// From the head again.
    #[inline]
    pub(super) fn again(self) -> Self {
        Self { leasing: self.leasing, batched: self.batched, ..Self::new(self.ring) }
    }

    #[inline]
    fn small(&self) -> Option<GetEnd<Found>> {
        Some(GetEnd::Done(Found::Small(Small::in_slot([self.word, self.rest])?, self.ticket)))
    }

    // Not at the beginning of each step: with nothing there, the compiler makes one straight piece of code of
    // all steps.
    #[inline(always)]
    fn slot_at(&self) -> Word {
        self.ring.slot(self.ticket.index)
    }
}

impl Steps for Find {
    type Out = GetEnd<Found>;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<GetEnd<Found>> {
        match self.pc {
            Pc::Head => {
                self.ticket = Ticket::unpack(m.load(self.ring.head));
                self.pc = Pc::Look;
            }
            Pc::Look => {
                self.word = m.load(self.slot_at());
                self.slot = Slot::unpack(self.word);
                match (self.ticket.lag(self.slot), self.slot.state) {
                    (Lag::At, SlotState::Full(content) | SlotState::Last(content)) => {
                        match content.envelope() {
                            Some(e) if e < self.ring.envelopes => {
                                return Some(GetEnd::Done(Found::Envelope(self.word, self.ticket)));
                            }
                            Some(_) => self.pc = Pc::Drop,
                            None => self.pc = Pc::Rest,
                        }
                    }
                    (Lag::At, SlotState::Stray { .. }) => self.pc = Pc::Drop,
                    (Lag::At, SlotState::Closed) => return Some(GetEnd::Closed),
                    // A slot behind the head would mean that the head had passed it: it never does.
                    (Lag::At, SlotState::Empty) | (Lag::Behind, _) => return Some(GetEnd::Empty),
                    (Lag::Ahead, _) => self.pc = Pc::Help,
                }
            }
            Pc::Help => {
                if !self.turns.one_more() {
                    return Some(GetEnd::Empty);
                }
                let next = self.ticket.over(self.slot, self.ring.slots);
                if m.cas(self.ring.head, self.ticket.pack(), next.pack()).is_err() {
                    m.lost();
                }
                self.pc = Pc::Head;
            }
            Pc::Drop => {
                let e = (self.word & 0xff_ffff) as EnvelopeId;
                let taken = m.cas(self.slot_at(), self.word, self.slot.taken().pack()).is_ok();
                self.pc = Pc::Head;
                return taken.then_some(GetEnd::Done(Found::Stray(e)));
            }
            // If the slot has changed since, this is another message's: then it can't be taken either.
            Pc::Rest => {
                self.rest = m.load(self.slot_at().plus(1));
                self.pc = if self.leasing { Pc::Again } else { Pc::Take };
            }
            // It is copied before it is taken: what is copied must be one message.
            Pc::Again => {
                if m.load(self.slot_at()) == self.word {
                    return self.small();
                }
                self.pc = Pc::Head;
            }
            Pc::Take => {
                let after = [self.slot.taken().pack(), 0];
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
                _ = m.cas(self.ring.head, self.ticket.pack(), self.ticket.next(self.ring.slots).pack());
                return self.small();
            }
        }
        None
    }
}
