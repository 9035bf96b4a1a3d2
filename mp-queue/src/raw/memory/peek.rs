//! Reads of a queue's messages, in order and without taking them. Nothing is written.

use mp_core::Envelopes;
use mp_core::mem::Mem;
use mp_core::words::{EnvelopeId, Holder, Owner, RingPlace};

use super::RingMemory;
use crate::ring::{Link, Position, PositionState, Slot, SmallMessage};

/// Position of a message in the order of all messages of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueuePosition {
    segment: u32,
    position: Position,
}

/// Message in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotMessage {
    Small(SmallMessage),
    Envelope(EnvelopeId),
}

/// Contents of a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeekedSlot {
    Message(SlotMessage),
    /// The message was taken.
    Taken,
    /// No message was published at this position or a later one.
    End,
    /// The next message is in the next segment.
    NextSegment,
}

/// Message that a consumer works on, or that was given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeldEnvelope {
    pub(crate) envelope: EnvelopeId,
    /// Owner word, which changes when the message gets another holder.
    pub(crate) owner: u64,
}

impl RingMemory {
    /// Returns the position of the oldest message in a slot, or of the next message if there is none.
    pub(crate) fn first_position(&self) -> QueuePosition {
        let mut at = self.first_in(0);
        while self.peek_slot(at) == PeekedSlot::NextSegment && at.segment + 1 < self.chain.segments {
            at = self.first_in(at.segment + 1);
        }
        at
    }

    /// Returns the position of the oldest message of a segment, or of the next message if there is none.
    fn first_in(&self, segment: u32) -> QueuePosition {
        let ring = self.chain.segment(segment);
        let untaken =
            |position: Position, slot| (position.state_in(slot) != PositionState::Taken).then_some(position);
        let head = Position::unpack(Self::words(self.arena).load(ring.head));
        let position = self.find_from(ring, ring.head, untaken).unwrap_or(head);
        QueuePosition { segment, position }
    }

    /// Returns the position after `at`, which has a message.
    pub(crate) fn after(&self, at: QueuePosition) -> QueuePosition {
        QueuePosition { position: at.position.next(self.chain.segment(at.segment).slots), ..at }
    }

    /// Returns the position of the oldest message of the next segment.
    pub(crate) fn next_segment(&self, at: QueuePosition) -> QueuePosition {
        self.first_in((at.segment + 1).min(self.chain.segments - 1))
    }

    /// Returns the contents of a position.
    pub(crate) fn peek_slot(&self, at: QueuePosition) -> PeekedSlot {
        let m = Self::words(self.arena);
        let first = self.chain.segment(at.segment).slot(at.position.index);
        loop {
            // The link is read before the slot, since a segment is closed before the next one is opened.
            let is_followed = self.link(at.segment) == Link::Open;
            let word = m.load(first);
            let slot = Slot::unpack(word);
            return match at.position.state_in(slot) {
                PositionState::Taken => PeekedSlot::Taken,
                PositionState::Empty | PositionState::Closed if is_followed => PeekedSlot::NextSegment,
                PositionState::Empty | PositionState::Closed => PeekedSlot::End,
                PositionState::Message => match slot.content().map(|content| content.envelope()) {
                    Some(Some(e)) => PeekedSlot::Message(SlotMessage::Envelope(e)),
                    // Both words must belong to one message.
                    Some(None) => {
                        let rest = m.load(first.plus(1));
                        match SmallMessage::in_slot([word, rest]) {
                            Some(small) if m.load(first) == word => {
                                PeekedSlot::Message(SlotMessage::Small(small))
                            }
                            _ => continue,
                        }
                    }
                    // Garbage, which names no envelope.
                    None => PeekedSlot::Message(SlotMessage::Envelope(EnvelopeId::MAX)),
                },
            };
        }
    }

    /// Returns `true` if the message of a position was taken. Messages are taken in the order of their
    /// positions.
    pub(crate) fn is_taken(&self, at: QueuePosition) -> bool {
        let slot = self.chain.segment(at.segment).slot(at.position.index);
        let slot = Slot::unpack(Self::words(self.arena).load(slot));
        at.position.state_in(slot) == PositionState::Taken
    }

    /// Returns `true` if consumers have leased messages of this queue, or may do so at any time.
    pub(crate) fn has_held_messages(&self) -> bool {
        self.redelivers()
    }

    /// Returns all messages that consumers work on, or that were given back. Returns `None` while a message
    /// is between its slot and its holder.
    pub(crate) fn held_messages(&self) -> Option<Vec<HeldEnvelope>> {
        let m = Self::words(self.arena);
        let mut held = Vec::new();
        for envelope in Envelopes(self.arena).envelopes_in_use(0) {
            let owner_at = Envelopes(self.arena).owner_words().of(envelope);
            loop {
                let owner = m.load(owner_at);
                let holder = Owner::unpack(owner).holder;
                if matches!(holder, Holder::Free | Holder::Member(_)) {
                    break;
                }
                let word = m.load(Envelopes(self.arena).place_words().of(envelope));
                let place = RingPlace::unpack(word);
                let content = self.chain.slot(place.slot).and_then(|at| Slot::unpack(m.load(at)).content());
                let in_slot = content.is_some_and(|content| content.envelope() == Some(envelope));
                // The place belongs to this owner word only if the word has not changed.
                if m.load(owner_at) != owner {
                    continue;
                }
                match holder {
                    _ if place.ring != self.chain.block() => {}
                    Holder::Queued if in_slot => {}
                    Holder::Queued => return None,
                    // The leaseholder may lose the message to another consumer.
                    Holder::Leased(_) if word & RingPlace::ENCLOSING != 0 => return None,
                    _ => held.push(HeldEnvelope { envelope, owner }),
                }
                break;
            }
        }
        Some(held)
    }

    /// Returns `true` if a held message still has this owner word.
    pub(crate) fn is_held(&self, held: HeldEnvelope) -> bool {
        let at = Envelopes(self.arena).owner_words().of(held.envelope);
        Self::words(self.arena).load(at) == held.owner
    }
}
