//! Whether all that was put into a queue is finished.
//!
//! One look at all envelopes, one after the other, is no snapshot: a worker may put a subtask into an envelope
//! that was looked at already, and then finish its task, in one that is still to be looked at. So the look counts only if
//! nothing was published meanwhile. How much was ever published is where the next message would go: the first slot after
//! the tail that nothing was put into. (The tail itself is a hint, and may lag.) As messages are published in the order of
//! segment, lap and slot, that place moves with every one.
//!
//! Nothing is written: a kill in it leaves nothing, and a process that is stopped in it blocks no other.

use mp_core::mem::{Mem, Steps};
use mp_core::steps::EnvelopesAt;
use mp_core::words::{EnvelopeId, Group, Holder, Owner, Place};

use super::slot::{Slot, Ticket, Turns};
use super::{ChainAt, Link};

/// How many messages of a queue are not finished.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Counted {
    /// In the queue, leased, or come back. If it is 0, nothing was there at the end of the count.
    pub unfinished: usize,
    /// Came back too often: not delivered any more. Exact if nothing is unfinished.
    pub lost: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Link,
    Tail,
    Slot,
    Count,
    Group,
    Owner,
    Place,
}

/// Counts what is not finished; see the module. It begins again when it finds nothing, but something was published
/// meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Census {
    chain: ChainAt,
    envelopes: EnvelopesAt,
    segment: u32,
    ticket: Ticket,
    /// Where the next message would have gone before the count.
    before: Option<(u32, Ticket)>,
    count: u64,
    envelope: EnvelopeId,
    holder: Holder,
    found: Counted,
    turns: Turns,
    pc: Pc,
}

impl Census {
    /// Of the queue `chain`.
    pub fn new(chain: ChainAt, envelopes: EnvelopesAt) -> Self {
        let (ticket, holder) = (Ticket { lap: 0, index: 0 }, Holder::Free);
        let (segment, before, count, envelope, found) = (0, None, 0, 0, Counted::default());
        let (turns, pc) = (Turns::default(), Pc::Link);
        Self { chain, envelopes, segment, ticket, before, count, envelope, holder, found, turns, pc }
    }

    /// The place of the next message is known: the count ends if it is the same as before.
    fn published(&mut self) -> Option<Counted> {
        let now = Some((self.segment, self.ticket));
        if self.before == now {
            return Some(self.found);
        }
        self.before = now;
        self.found = Counted::default();
        self.pc = Pc::Count;
        None
    }

    fn next(&mut self) -> Option<Counted> {
        self.over(1)
    }

    /// Skips this many envelopes.
    fn over(&mut self, envelopes: u32) -> Option<Counted> {
        self.envelope += envelopes;
        self.pc = if self.envelope.is_multiple_of(Group::ENVELOPES) { Pc::Group } else { Pc::Owner };
        if u64::from(self.envelope) < self.count {
            return None;
        }
        self.pc = Pc::Link;
        (self.found.unfinished > 0).then_some(self.found)
    }
}

impl Steps for Census {
    type Out = Counted;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Counted> {
        let ring = self.chain.segment(self.segment);
        match self.pc {
            Pc::Link => match self.chain.link(self.segment).map(|at| Link::unpack(m.load(at))) {
                Some(Link::Open) => self.segment += 1,
                Some(_) | None => self.pc = Pc::Tail,
            },
            Pc::Tail => {
                self.ticket = Ticket::unpack(m.load(ring.tail));
                self.pc = Pc::Slot;
            }
            Pc::Slot => {
                let slot = Slot::unpack(m.load(ring.slot(self.ticket.index)));
                match self.ticket.finds_end(slot) {
                    Some(_) => return self.published(),
                    None if !self.turns.one_more() => return self.published(),
                    None => self.ticket = self.ticket.over(slot, ring.slots),
                }
            }
            Pc::Count => {
                self.count = m.load(self.envelopes.count).min(ring.envelopes.into());
                self.envelope = 0;
                self.pc = if self.count == 0 { Pc::Link } else { Pc::Group };
            }
            // An absent group has no messages, and is not touched.
            Pc::Group => match Group::unpack(m.load(self.envelopes.group_of(self.envelope))) {
                group if group.is_looked_at() => self.pc = Pc::Owner,
                _ => return self.over(Group::ENVELOPES),
            },
            Pc::Owner => {
                self.holder = Owner::unpack(m.load(self.envelopes.owners.of(self.envelope))).holder;
                match self.holder {
                    Holder::Free | Holder::Member(_) => return self.next(),
                    Holder::Queued | Holder::Leased(_) | Holder::Returned | Holder::Undeliverable => {
                        self.pc = Pc::Place;
                    }
                }
            }
            // Read after the owner: the place was this envelope's before, or is that of a message published
            // since.
            Pc::Place => {
                let place = Place::unpack(m.load(self.envelopes.places.of(self.envelope)));
                let lost = self.holder == Holder::Undeliverable;
                self.found.lost += usize::from(place.ring == self.chain.block() && lost);
                self.found.unfinished += usize::from(place.ring == self.chain.block() && !lost);
                return self.next();
            }
        }
        None
    }
}
