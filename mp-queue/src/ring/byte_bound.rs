//! Puts of envelopes into a ring that also has a bound of bytes.
//!
//! The bytes in the ring are counted without a counter, which a killed process could leave wrong. Each
//! envelope has two words: the offsets at which its bytes *begin* and *end* if the bytes of all messages are
//! laid out in the order of positions. A producer that is about to publish position `t` reads the message of
//! `t - 1`. If that message is still in the ring, the new bytes begin at its end. Otherwise all earlier
//! messages are taken, and the new bytes begin at 0. The bytes in the ring extend from the beginning of the
//! oldest message to the end of the newest one.
//!
//! | word | written by | when |
//! |---|---|---|
//! | begin, end | owner of the envelope | before the envelope is published. Both are unchanged while it is in a slot. In a queue without a bound of bytes, these words store bytes of the message |
//!
//! The words that a producer reads may already belong to the envelope's next message. The producer reads the
//! slot first and the words afterwards. Both words are stored with release and loaded with acquire. So a
//! producer that reads a word of the next message then also reads that the earlier message was taken, which
//! happened before. Therefore one second read of the oldest message's slot, after all words were read, is
//! enough. If the oldest message is still in the slot, no later message was taken. So the end that was read
//! belongs to the message of `t - 1`, and each message was laid out after its predecessor. If the oldest
//! message was taken, the producer searches for the new oldest one. If no message is left, `t` may begin
//! anywhere. (A second read of the slot of `t - 1` would detect nothing more.)
//!
//! If another producer publishes `t` first, the calculation is void and starts again. The oldest message may
//! then be at `t` or a later position, and may have been laid out after other bytes than the bytes of
//! `t - 1`. So a producer that has found no room finally checks that `t` is still free. A producer that has
//! found room publishes at `t` or not at all. Messages that are taken meanwhile only reduce the number of
//! bytes. Thus the bound is never exceeded, however many producers put at once, and a message that fits at
//! all times is never refused.
//!
//! | killed | left | |
//! |---|---|---|
//! | while it reads | nothing | |
//! | before it has published | as in [`Put`] | an unpublished message does not count |
//! | with a message that it has taken | | a taken message does not count |

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::words::{EnvelopeId, Member, Owner};

use super::slot::{Lag, Position, PositionState, Slot, SlotState, Turns};
use super::{Put, PutOutcome, RingAt};

/// Bound of bytes of a ring, and size of one message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Weight {
    /// Words of each envelope: begin, followed by end.
    pub ends: Column,
    /// Number of bytes of the message, at most `limit`.
    pub bytes: u64,
    /// Number of bytes that the ring may contain.
    pub limit: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Tail,
    Load,
    Help,
    Before,
    BeforeEnd,
    Head,
    Oldest,
    Beyond,
    Full,
    OldestBegin,
    OldestAgain,
    Begin,
    End,
    Put(Put),
}

/// Like [`Put`], into a ring with a bound of bytes. Ends with [`PutOutcome::Full`] also if the bound would be
/// exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PutByteBounded {
    ring: RingAt,
    intent: Word,
    words: (EnvelopeId, Word, Word),
    me: Member,
    owner: Owner,
    weight: Weight,
    position: Position,
    /// Position whose slot is checked, the slot's contents, and a word of its envelope.
    at: Position,
    seen: Slot,
    found: u64,
    /// Offset at which the bytes of the message begin.
    begin: u64,
    turns: Turns,
    pc: Pc,
}

impl PutByteBounded {
    /// Creates the steps like [`Put::new`], for a message with this weight.
    pub fn new(
        ring: RingAt,
        intent: Word,
        words: (EnvelopeId, Word, Word),
        me: Member,
        owner: Owner,
        weight: Weight,
    ) -> Self {
        Self {
            ring,
            intent,
            words,
            me,
            owner,
            weight,
            position: Position::NONE,
            at: Position::NONE,
            seen: Slot::NONE,
            found: 0,
            begin: 0,
            turns: Turns::default(),
            pc: Pc::Tail,
        }
    }

    /// Returns the envelope in the slot that was read. A queue with a bound of bytes has no small messages.
    fn envelope(&self) -> Option<EnvelopeId> {
        self.seen.envelope().filter(|&e| e < self.ring.envelopes)
    }

    fn ends_of(&self, e: EnvelopeId) -> Word {
        self.weight.ends.of(e)
    }

    /// Returns `true` if there is room in addition to `used` bytes.
    fn fits(&self, used: u64) -> bool {
        used <= self.weight.limit - self.weight.bytes.min(self.weight.limit)
    }

    /// Sets the next step after `used` bytes were found in the ring: the put if the message fits, and
    /// otherwise a last check of the position before [`PutOutcome::Full`].
    fn decide(&mut self, used: u64) -> Option<PutOutcome> {
        self.pc = if self.fits(used) { Pc::Begin } else { Pc::Full };
        None
    }
}

/// Checks whether a put of this weight would end at once, with its message put or refused by a closed ring.
/// Reads the same words and puts nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CheckRoom(PutByteBounded);

impl CheckRoom {
    /// Creates the steps for `ring`.
    pub fn new(ring: RingAt, weight: Weight) -> Self {
        // The envelope and the process don't matter before the put itself.
        let (word, me) = (ring.tail, Member::new(0, 0));
        Self(PutByteBounded::new(ring, word, (0, word, word), me, Owner::unpack(0), weight))
    }
}

impl Steps for CheckRoom {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        if self.0.pc == Pc::Begin {
            return Some(true);
        }
        self.0.step(m).map(|end| matches!(end, PutOutcome::Closed(_)))
    }
}

impl Steps for PutByteBounded {
    type Out = PutOutcome;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<PutOutcome> {
        let slot_at = |position: Position| self.ring.slot(position.index);
        match &mut self.pc {
            Pc::Tail => {
                self.position = Position::unpack(m.load(self.ring.tail));
                self.pc = Pc::Load;
            }
            Pc::Load => {
                let slot = Slot::unpack(m.load(slot_at(self.position)));
                match (self.position.lag(slot), slot.state) {
                    (Lag::Equal, SlotState::Empty) => {
                        self.at = self.position.previous(self.ring.slots);
                        self.pc = Pc::Before;
                    }
                    (Lag::Equal, SlotState::Closed) | (Lag::Behind, SlotState::Last(_)) => {
                        return Some(PutOutcome::Closed(self.owner));
                    }
                    (Lag::Equal | Lag::Ahead, _) => {
                        self.seen = slot;
                        self.pc = Pc::Help;
                    }
                    (Lag::Behind, _) => return Some(PutOutcome::Full(self.owner)),
                }
            }
            Pc::Help if !self.turns.one_more() => return Some(PutOutcome::Full(self.owner)),
            Pc::Help => {
                self.ring.help(m, self.ring.tail, self.position, self.seen);
                self.pc = Pc::Tail;
            }
            Pc::Before => {
                self.seen = Slot::unpack(m.load(slot_at(self.at)));
                match self.at.state_in(self.seen) {
                    PositionState::Message => self.pc = Pc::BeforeEnd,
                    // All earlier messages are taken, too.
                    PositionState::Taken => {
                        self.begin = 0;
                        return self.decide(0);
                    }
                    // Garbage: the position before a free one was always used.
                    PositionState::Empty | PositionState::Closed => return self.decide(0),
                }
            }
            Pc::BeforeEnd => {
                let Some(e) = self.envelope() else { return self.decide(0) };
                self.begin = m.load(self.ends_of(e).plus(1));
                self.pc = Pc::Head;
            }
            Pc::Head => {
                self.at = Position::unpack(m.load(self.ring.head));
                self.pc = Pc::Oldest;
            }
            Pc::Oldest => {
                self.seen = Slot::unpack(m.load(slot_at(self.at)));
                match self.at.state_in(self.seen) {
                    // Another producer may have published this message at the position of this put. The put,
                    // or the check before `Full`, detects that.
                    PositionState::Message => self.pc = Pc::OldestBegin,
                    PositionState::Taken if !self.turns.one_more() => return self.decide(0),
                    PositionState::Taken => self.at = self.at.skip_used(self.seen, self.ring.slots),
                    // All messages are taken by now.
                    PositionState::Empty if self.at == self.position => return self.decide(0),
                    PositionState::Empty | PositionState::Closed => self.pc = Pc::Beyond,
                }
            }
            // The search for the oldest message has passed this put's position: another producer has
            // published there, or the head is garbage.
            Pc::Beyond => {
                let slot = Slot::unpack(m.load(slot_at(self.position)));
                if (self.position.lag(slot), slot.state) == (Lag::Equal, SlotState::Empty) {
                    return self.decide(0);
                }
                self.pc = Pc::Tail;
            }
            // If the position is free, the oldest message precedes it and the measured bytes are valid.
            // Otherwise the oldest message may have been published at this or a later position, after bytes
            // that were not read.
            Pc::Full => {
                let slot = Slot::unpack(m.load(slot_at(self.position)));
                if (self.position.lag(slot), slot.state) == (Lag::Equal, SlotState::Empty) {
                    return Some(PutOutcome::Full(self.owner));
                }
                self.pc = Pc::Tail;
            }
            Pc::OldestBegin => {
                let Some(e) = self.envelope() else { return self.decide(0) };
                self.found = m.load(self.ends_of(e));
                self.pc = Pc::OldestAgain;
            }
            Pc::OldestAgain => {
                if m.load(slot_at(self.at)) == self.seen.pack() {
                    return self.decide(self.begin.wrapping_sub(self.found));
                }
                self.pc = Pc::Oldest;
            }
            Pc::Begin => {
                m.store(self.ends_of(self.words.0), self.begin);
                self.pc = Pc::End;
            }
            Pc::End => {
                let end = self.begin.wrapping_add(self.weight.bytes);
                m.store(self.ends_of(self.words.0).plus(1), end);
                let put = Put::new(self.ring, self.intent, self.words, self.me, self.owner);
                self.pc = Pc::Put(put.at(self.position));
            }
            Pc::Put(put) => match put.step(m)? {
                // Another producer was faster, or there is no room. Only a new check distinguishes these.
                PutOutcome::Full(owner) => {
                    self.owner = owner;
                    self.pc = Pc::Tail;
                }
                end => return Some(end),
            },
        }
        None
    }
}
