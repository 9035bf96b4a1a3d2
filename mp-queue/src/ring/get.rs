//! Taking a message out of a ring.

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::words::{EnvelopeId, Holder, Member, Owner};

use super::slot::{Lag, Slot, SlotState, Ticket};
use super::{RingAt, Small};

/// How a get ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Got {
    /// The envelope is the caller's now, with this owner word; it was taken under this ticket.
    Envelope(EnvelopeId, Owner, Ticket),
    /// A small message. It was taken under this ticket; unless it is to be leased: then it is still there, for [`Enclose`].
    ///
    /// [`Enclose`]: super::Enclose
    Small(Small, Ticket),
    /// Nothing is queued.
    Empty,
    /// Nothing is queued, and nothing will be.
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Head,
    Look,
    Help,
    Intend,
    Take,
    Lost,
    Advance,
    Claim,
    Clear,
    Rest,
    Again,
    TakeSmall,
    AdvanceSmall,
}

/// Takes the oldest message out of a ring, if there is one; it never waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Get {
    ring: RingAt,
    intent: Word,
    owners: Column,
    to: Holder,
    ticket: Ticket,
    slot: Slot,
    /// The slot's second word.
    rest: u64,
    owner: Owner,
    /// One of a batch: it helps the head no further.
    batched: bool,
    pc: Pc,
}

impl Get {
    /// To take for `me`. `intent` is the intent word of the calling thread's lane.
    pub fn new(ring: RingAt, intent: Word, owners: Column, me: Member) -> Self {
        Self {
            ring,
            intent,
            owners,
            to: Holder::Member(me),
            ticket: Ticket { lap: 0, index: 0 },
            slot: Slot { lap: 0, state: SlotState::Empty },
            rest: 0,
            owner: Owner { holder: Holder::Free, seq: 0 },
            batched: false,
            pc: Pc::Head,
        }
    }

    /// As a lease: if its holder dies, it is delivered again.
    #[must_use]
    pub fn leasing(self) -> Self {
        match self.to {
            Holder::Member(me) => Self { to: Holder::Leased(me), ..self },
            _ => self,
        }
    }

    /// As one of a batch: it begins to look after `last`, the ticket of the message before it, and leaves the head where
    /// it is. The batch ends with [`Advance`](super::Advance).
    #[must_use]
    pub fn batched(self, last: Option<Ticket>) -> Self {
        match last {
            Some(last) => Self { ticket: last.next(self.ring.slots), batched: true, pc: Pc::Look, ..self },
            None => Self { batched: true, ..self },
        }
    }

    #[inline]
    fn envelope(&self) -> EnvelopeId {
        self.slot.envelope().unwrap_or(0)
    }

    /// The small message.
    #[inline]
    fn small(&self) -> Option<Got> {
        Some(Got::Small(Small::in_slot([self.slot.pack(), self.rest])?, self.ticket))
    }
}

impl Steps for Get {
    type Out = Got;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Got> {
        let slot_at = self.ring.slot(self.ticket.index);
        match self.pc {
            Pc::Head => {
                self.ticket = Ticket::unpack(m.load(self.ring.head));
                self.pc = Pc::Look;
            }
            Pc::Look => {
                self.slot = Slot::unpack(m.load(slot_at));
                match (self.ticket.lag(self.slot), self.slot.state) {
                    (Lag::At, SlotState::Full(content) | SlotState::Last(content)) => {
                        let Some(e) = content.envelope() else {
                            self.pc = Pc::Rest;
                            return None;
                        };
                        // Its line comes over while the slot is being taken.
                        m.will_write(self.owners.of(e));
                        self.pc = Pc::Intend;
                    }
                    (Lag::At, SlotState::Closed) => return Some(Got::Closed),
                    // A slot behind the head would mean that the head had passed it: it never does.
                    (Lag::At, SlotState::Empty) | (Lag::Behind, _) => return Some(Got::Empty),
                    (Lag::Ahead, _) => self.pc = Pc::Help,
                }
            }
            Pc::Help => {
                _ = m.cas(self.ring.head, self.ticket.pack(), self.ticket.next(self.ring.slots).pack());
                self.pc = Pc::Head;
            }
            Pc::Intend => {
                m.store(self.intent, self.envelope() as u64 + 1);
                self.pc = Pc::Take;
            }
            Pc::Take => {
                self.pc = match m.cas(slot_at, self.slot.pack(), self.slot.taken().pack()) {
                    Ok(()) if self.batched => Pc::Claim,
                    Ok(()) => Pc::Advance,
                    Err(_) => Pc::Lost,
                };
            }
            Pc::Lost => {
                m.store(self.intent, 0);
                self.pc = Pc::Head;
            }
            Pc::Advance => {
                _ = m.cas(self.ring.head, self.ticket.pack(), self.ticket.next(self.ring.slots).pack());
                self.pc = Pc::Claim;
            }
            // One access that brings the envelope's line over for writing, instead of one for reading and one more. Nobody
            // else changes the word now: that we intend it keeps sweepers away.
            Pc::Claim => {
                let queued = m.add(self.owners.of(self.envelope()), Owner::queued_to(self.to));
                let queued = Owner::unpack(queued);
                debug_assert_eq!(queued.holder, Holder::Queued, "taken from a ring, yet not queued");
                self.owner = queued.then(self.to);
                self.pc = Pc::Clear;
            }
            Pc::Clear => {
                m.store(self.intent, 0);
                return Some(Got::Envelope(self.envelope(), self.owner, self.ticket));
            }
            // If the slot has changed since, this is of another message: then it can't be taken either.
            Pc::Rest => {
                self.rest = m.load(slot_at.plus(1));
                self.pc = match self.to {
                    Holder::Leased(_) => Pc::Again,
                    _ => Pc::TakeSmall,
                };
            }
            // It is copied before it is taken: what is copied must be one message.
            Pc::Again => {
                if m.load(slot_at) == self.slot.pack() {
                    return self.small();
                }
                self.pc = Pc::Head;
            }
            Pc::TakeSmall => {
                let after = [self.slot.taken().pack(), 0];
                self.pc = match m.cas_pair(slot_at, [self.slot.pack(), self.rest], after) {
                    true if self.batched => return self.small(),
                    true => Pc::AdvanceSmall,
                    false => Pc::Head,
                };
            }
            Pc::AdvanceSmall => {
                _ = m.cas(self.ring.head, self.ticket.pack(), self.ticket.next(self.ring.slots).pack());
                return self.small();
            }
        }
        None
    }
}
