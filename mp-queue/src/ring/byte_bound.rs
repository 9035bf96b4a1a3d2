//! Puts of envelopes into a ring with a bound of bytes.
//!
//! The bytes in the ring are counted without a counter, because a killed process could leave a counter wrong.
//! Instead, each message has two offsets, *begin* and *end*, as if the bytes of all messages were laid out in
//! the order of their positions. A producer that is about to publish position `t` reads the message at
//! position `t-1`. If that message is still in the ring, the new message begins at its end. Otherwise all
//! earlier messages were taken, and the new message begins at 0. The number of bytes in the ring is the
//! difference between the end of the newest message and the begin of the oldest message.
//!
//! | words | written by | when |
//! |---|---|---|
//! | begin and end, in the envelope | owner of the envelope | before the envelope is published. Both words are unchanged while the envelope is in a slot. In a queue without a bound of bytes, these words store bytes of the message |
//!
//! **A reused envelope.** After a producer has read a slot, the envelope in the slot may be reused for
//! another message. The words that the producer reads may then belong to that later message. Both words are
//! stored with release and loaded with acquire. So a producer that reads a word of the later message also
//! reads, in any later access, that the earlier message was taken. Therefore the producer reads the slot of
//! the oldest message a second time, after all words. If the oldest message is still in its slot, no later
//! message was taken either. So the end belongs to the message at `t-1`, and each message was laid out
//! after its predecessor. If the oldest message was taken, the producer searches for the new oldest message.
//! If no message is left, the new message may begin at any offset. A second read of the slot of `t-1` would
//! detect nothing more.
//!
//! **Concurrent producers.** If another producer publishes `t` first, the calculation is void and starts
//! again. In this case, the oldest message that was found may be at `t` or a later position, and may be laid
//! out after other bytes than those of `t-1`. So a producer that has found no room checks again that `t` is
//! unused before it returns `Full`. A producer that has found room publishes at `t` or starts again. Messages
//! that are taken meanwhile only reduce the number of bytes. Thus the bound is never exceeded, however many
//! producers put concurrently, and a message for which there is always room is never refused.
//!
//! | killed | left | |
//! |---|---|---|
//! | while it reads | nothing | |
//! | before it has published | the same as for [`Put`] | an unpublished message does not count |
//! | after it has taken a message | the same as for [`Get`](super::Get) | a taken message does not count |

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::words::{EnvelopeId, Member, Owner};

use super::slot::{Lag, Position, PositionState, Slot, SlotState, Turns};
use super::{Put, PutOutcome, RingAt};

/// Bound of bytes of a ring, and number of bytes of the message to put.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Weight {
    /// Location of the two words of each envelope: begin, followed by end.
    pub ends: Column,
    /// Number of bytes of the message, at most `limit`.
    pub bytes: u64,
    /// Largest number of bytes in the ring.
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

/// Tries once to put an envelope into a ring with a bound of bytes, like [`Put`]. Ends with
/// [`PutOutcome::Full`] also if the message would exceed the bound.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PutByteBounded {
    ring: RingAt,
    intent: Word,
    words: (EnvelopeId, Word, Word),
    me: Member,
    owner: Owner,
    weight: Weight,
    position: Position,
    /// Position that is examined. `seen` is the content of its slot, and `found` is a word of the slot's
    /// envelope.
    at: Position,
    seen: Slot,
    found: u64,
    /// Offset at which the bytes of the message begin.
    begin: u64,
    turns: Turns,
    pc: Pc,
}

impl PutByteBounded {
    /// Creates the steps to put a message with this weight. The other arguments are those of [`Put::new`].
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

    /// Returns the envelope in `seen`. A ring with a bound of bytes has no small messages.
    fn envelope(&self) -> Option<EnvelopeId> {
        self.seen.envelope().filter(|&e| e < self.ring.envelopes)
    }

    fn ends_of(&self, e: EnvelopeId) -> Word {
        self.weight.ends.of(e)
    }

    /// Returns `true` if the ring has room for the message when it contains `used` bytes.
    fn fits(&self, used: u64) -> bool {
        used <= self.weight.limit - self.weight.bytes.min(self.weight.limit)
    }

    /// Sets the next step when the ring contains `used` bytes. If the message fits, the next step is the put.
    /// Otherwise the position is checked again before the steps end with [`PutOutcome::Full`].
    fn decide(&mut self, used: u64) -> Option<PutOutcome> {
        self.pc = if self.fits(used) { Pc::Begin } else { Pc::Full };
        None
    }
}

/// Checks whether a put of a message with this weight would end at once, because there is room or the ring is
/// closed. Changes no message.
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
