//! Reads of a queue's messages in their order, which take no message and write nothing.

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

/// Message that was read from a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotMessage {
    Small(SmallMessage),
    Envelope(EnvelopeId),
}

/// State of a position in the order of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeekedSlot {
    Message(SlotMessage),
    /// The message of this position was taken.
    Taken,
    /// No message was published at this position or at a later one.
    End,
    /// The next message is in the next segment.
    NextSegment,
}

/// Envelope that a consumer has leased or given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeldEnvelope {
    pub(crate) envelope: EnvelopeId,
    /// Owner word of the envelope, which changes when the message gets another holder.
    pub(crate) owner: u64,
}

impl RingMemory {
    /// Returns the position of the oldest message in a slot. If there is none, returns the position of the
    /// next message to be published.
    pub(crate) fn first_position(&self) -> QueuePosition {
        let mut at = self.first_in(0);
        while self.peek_slot(at) == PeekedSlot::NextSegment && at.segment + 1 < self.chain.segments {
            at = self.first_in(at.segment + 1);
        }
        at
    }

    /// Returns the position of the oldest message of a segment. If there is none, returns the position of the
    /// next message to be published in the segment.
    fn first_in(&self, segment: u32) -> QueuePosition {
        let ring = self.chain.segment(segment);
        let untaken =
            |position: Position, slot| (position.state_in(slot) != PositionState::Taken).then_some(position);
        let head = Position::unpack(Self::words(self.arena).load(ring.head));
        let position = self.find_from(ring, ring.head, untaken).unwrap_or(head);
        QueuePosition { segment, position }
    }

    /// Returns the position after `at` in the same segment.
    pub(crate) fn after(&self, at: QueuePosition) -> QueuePosition {
        QueuePosition { position: at.position.next(self.chain.segment(at.segment).slots), ..at }
    }

    /// Returns the position of the oldest message of the segment after the segment of `at`.
    pub(crate) fn next_segment(&self, at: QueuePosition) -> QueuePosition {
        self.first_in((at.segment + 1).min(self.chain.segments - 1))
    }

    /// Returns the state of a position, with its message.
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

    /// Returns `true` if the message at a position was taken. Messages are taken in the order of their
    /// positions.
    pub(crate) fn is_taken(&self, at: QueuePosition) -> bool {
        let slot = self.chain.segment(at.segment).slot(at.position.index);
        let slot = Slot::unpack(Self::words(self.arena).load(slot));
        at.position.state_in(slot) == PositionState::Taken
    }

    /// Returns `true` if a consumer has ever tried to lease a message of this queue, so that there may be
    /// leased or returned messages.
    pub(crate) fn has_held_messages(&self) -> bool {
        self.redelivers()
    }

    /// Returns all messages that are leased or were given back. Returns `None` if a message has left its slot
    /// and has no new holder yet.
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

    /// Returns `true` if the envelope still has the owner word in `held`.
    pub(crate) fn is_held(&self, held: HeldEnvelope) -> bool {
        let at = Envelopes(self.arena).owner_words().of(held.envelope);
        Self::words(self.arena).load(at) == held.owner
    }
}
