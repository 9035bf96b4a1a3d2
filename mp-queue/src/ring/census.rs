//! Count of the unfinished messages of a queue.
//!
//! A scan that reads all envelopes one after the other is not a snapshot. A worker may put a subtask into an
//! envelope that was already scanned, and then finish its own task in an envelope that is not scanned yet. So
//! a scan without unfinished messages is valid only if no message was published during the scan. To detect
//! this, the scan compares the position of the next message before and after. That position is the first
//! unused slot after the tail, since the tail itself is a hint and may lag. Messages are published in the
//! order of segment, lap and slot, so the position changes with each message.
//!
//! A count writes nothing. So a killed process leaves nothing, and a stopped process blocks no other process.

use mp_core::mem::{Mem, Steps};
use mp_core::steps::EnvelopesAt;
use mp_core::words::{EnvelopeId, GroupState, Holder, Owner, RingPlace};

use super::slot::{Position, Slot, Turns};
use super::{ChainAt, Link};

/// Numbers of unfinished and of lost messages of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MessageCounts {
    /// Number of messages that are in the queue, leased or returned. 0 means that no message was unfinished
    /// at the end of the count.
    pub unfinished: usize,
    /// Number of messages that have reached the limit on deliveries and are no longer delivered. Exact if
    /// `unfinished` is 0.
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

/// Counts unfinished messages, see the module. If a scan finds no unfinished messages but a message was
/// published meanwhile, scans again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Census {
    chain: ChainAt,
    envelopes: EnvelopesAt,
    segment: u32,
    position: Position,
    /// Position of the next message before the scan.
    before: Option<(u32, Position)>,
    count: u64,
    envelope: EnvelopeId,
    holder: Holder,
    found: MessageCounts,
    turns: Turns,
    pc: Pc,
}

impl Census {
    /// Creates the steps for the queue `chain`.
    pub fn new(chain: ChainAt, envelopes: EnvelopesAt) -> Self {
        let (position, holder) = (Position::NONE, Holder::Free);
        let (segment, before, count, envelope, found) = (0, None, 0, 0, MessageCounts::default());
        let (turns, pc) = (Turns::default(), Pc::Link);
        Self { chain, envelopes, segment, position, before, count, envelope, holder, found, turns, pc }
    }

    /// Compares the position of the next message with the position before the scan. If they are equal, ends
    /// the count. Otherwise starts another scan.
    fn published(&mut self) -> Option<MessageCounts> {
        let now = Some((self.segment, self.position));
        if self.before == now {
            return Some(self.found);
        }
        self.before = now;
        self.found = MessageCounts::default();
        self.pc = Pc::Count;
        None
    }

    /// Advances the scan by this many envelopes. After the last envelope, ends the count if unfinished
    /// messages were found.
    fn skip(&mut self, envelopes: u32) -> Option<MessageCounts> {
        self.envelope += envelopes;
        self.pc = if self.envelope.is_multiple_of(GroupState::ENVELOPES) { Pc::Group } else { Pc::Owner };
        if u64::from(self.envelope) < self.count {
            return None;
        }
        self.pc = Pc::Link;
        (self.found.unfinished > 0).then_some(self.found)
    }
}

impl Steps for Census {
    type Out = MessageCounts;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<MessageCounts> {
        let ring = self.chain.segment(self.segment);
        match self.pc {
            Pc::Link => match self.chain.link(self.segment).map(|at| Link::unpack(m.load(at))) {
                Some(Link::Open) => self.segment += 1,
                Some(_) | None => self.pc = Pc::Tail,
            },
            Pc::Tail => {
                self.position = Position::unpack(m.load(ring.tail));
                self.pc = Pc::Slot;
            }
            Pc::Slot => {
                let slot = Slot::unpack(m.load(ring.slot(self.position.index)));
                match self.position.check_end(slot) {
                    Some(_) => return self.published(),
                    None if !self.turns.one_more() => return self.published(),
                    None => self.position = self.position.skip_used(slot, ring.slots),
                }
            }
            Pc::Count => {
                self.count = m.load(self.envelopes.count).min(ring.envelopes.into());
                self.envelope = 0;
                self.pc = if self.count == 0 { Pc::Link } else { Pc::Group };
            }
            // An absent group has no messages, and its memory must not be touched.
            Pc::Group => match GroupState::unpack(m.load(self.envelopes.group_of(self.envelope))) {
                group if group.is_scanned() => self.pc = Pc::Owner,
                _ => return self.skip(GroupState::ENVELOPES),
            },
            Pc::Owner => {
                self.holder = Owner::unpack(m.load(self.envelopes.owners.of(self.envelope))).holder;
                match self.holder {
                    Holder::Free | Holder::Member(_) => return self.skip(1),
                    Holder::Queued | Holder::Leased(_) | Holder::Returned | Holder::Undeliverable => {
                        self.pc = Pc::Place;
                    }
                }
            }
            // Read after the owner: the place belongs to this envelope's message, or to a message published
            // since.
            Pc::Place => {
                let place = RingPlace::unpack(m.load(self.envelopes.places.of(self.envelope)));
                let lost = self.holder == Holder::Undeliverable;
                self.found.lost += usize::from(place.ring == self.chain.block() && lost);
                self.found.unfinished += usize::from(place.ring == self.chain.block() && !lost);
                return self.skip(1);
            }
        }
        None
    }
}
