//! Putting an envelope into a ring that is bounded by bytes as well.
//!
//! How many bytes are in the ring is counted without a counter, which a killed process would leave wrong. Each envelope
//! carries two words: where its bytes *begin* and where they *end* if those of all messages are laid one behind the other in
//! the order of their tickets. A producer that is about to publish ticket `t` looks at `t - 1`: if that message is still
//! there, its own bytes begin where those end; if not, then all before are taken, and it begins at 0. What is in the ring is
//! from the beginning of the oldest message to the end of the newest one.
//!
//! | word | written by | when |
//! |---|---|---|
//! | begin, end | its owner | before it is published; while it is in a slot they stay. In a queue without such a bound they are bytes of the message |
//!
//! What is read may belong to the envelope's next message already: its slot is looked at, then the words are read, and both
//! words are stored with release and loaded with acquire. So a word of the next message is not seen without what was done
//! before it was written, which is that the earlier message was taken. One second look at the slot of the oldest message,
//! after all words were read, therefore answers both: if that message is still there, none after it was taken, so the end of
//! `t - 1` was that message's, too, and each was laid behind the one before it. If it is not there, it is looked for again;
//! and if none is left, `t` may begin anywhere. (A second look at `t - 1` would find nothing that this one does not.)
//!
//! If another producer publishes `t` first, the whole calculation is void, and begins anew: the oldest
//! message may be `t`, or a later one, which lies behind other bytes than those of `t - 1`. So a producer
//! that has found no room looks at `t` last, and one that has found room publishes under `t` or not at all.
//! If messages are taken meanwhile, there are fewer bytes than was thought. So the bound is never exceeded,
//! however many put at once, and what fits at all times is never refused.
//!
//! | killed | left | |
//! |---|---|---|
//! | while it looks | nothing | |
//! | before it has published | as in [`Put`] | what was not published counts for nothing |
//! | with a message that it has taken | | it does not count any more since it was taken |

use mp_core::mem::{Column, Mem, Steps, Word};
use mp_core::words::{EnvelopeId, Member, Owner};

use super::slot::{Lag, Slot, SlotState, Standing, Ticket, Turns};
use super::{Put, PutEnd, RingAt};

/// A bound by bytes, and one message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Weight {
    /// Where each envelope has its words: begin, and behind it end.
    pub ends: Column,
    /// Bytes of the message, at most `limit`.
    pub bytes: u64,
    /// Bytes that the ring may have in it.
    pub limit: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Tail,
    Look,
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

/// As [`Put`], into a ring with a bound of bytes: [`PutEnd::Full`] also when they would be more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PutWithin {
    ring: RingAt,
    intent: Word,
    words: (EnvelopeId, Word, Word),
    me: Member,
    owner: Owner,
    weight: Weight,
    ticket: Ticket,
    /// The slot that is looked at, what was in it, and the word of its envelope.
    at: Ticket,
    seen: Slot,
    found: u64,
    /// Where the bytes begin.
    begin: u64,
    turns: Turns,
    pc: Pc,
}

impl PutWithin {
    /// As [`Put::new`], of a message with this weight.
    pub fn new(
        ring: RingAt,
        intent: Word,
        words: (EnvelopeId, Word, Word),
        me: Member,
        owner: Owner,
        weight: Weight,
    ) -> Self {
        let (ticket, seen) = (Ticket { lap: 0, index: 0 }, Slot { lap: 0, state: SlotState::Empty });
        Self {
            ring,
            intent,
            words,
            me,
            owner,
            weight,
            ticket,
            at: ticket,
            seen,
            found: 0,
            begin: 0,
            turns: Turns::default(),
            pc: Pc::Tail,
        }
    }

    /// The envelope in the slot that was seen. In such a queue nothing else is a message.
    fn named(&self) -> Option<EnvelopeId> {
        self.seen.envelope().filter(|&e| e < self.ring.envelopes)
    }

    fn ends_of(&self, e: EnvelopeId) -> Word {
        self.weight.ends.of(e)
    }

    /// Whether there is room beside `used` bytes.
    fn fits(&self, used: u64) -> bool {
        used <= self.weight.limit - self.weight.bytes.min(self.weight.limit)
    }

    /// There are `used` bytes, if that can be trusted as far as it says that there is room.
    fn decide(&mut self, used: u64) -> Option<PutEnd> {
        self.pc = if self.fits(used) { Pc::Begin } else { Pc::Full };
        None
    }
}

/// Whether a put of this weight would end at once, with its message put or refused by a closed ring: the same looks, and
/// nothing is put.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fits(PutWithin);

impl Fits {
    /// Into this ring.
    pub fn new(ring: RingAt, weight: Weight) -> Self {
        // What is put, and by which process, doesn't matter before the put itself.
        let (word, me) = (ring.tail, Member::new(0, 0));
        Self(PutWithin::new(ring, word, (0, word, word), me, Owner::unpack(0), weight))
    }
}

impl Steps for Fits {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        if self.0.pc == Pc::Begin {
            return Some(true);
        }
        self.0.step(m).map(|end| matches!(end, PutEnd::Closed(_)))
    }
}

impl Steps for PutWithin {
    type Out = PutEnd;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<PutEnd> {
        let slot_at = |ticket: Ticket| self.ring.slot(ticket.index);
        match &mut self.pc {
            Pc::Tail => {
                self.ticket = Ticket::unpack(m.load(self.ring.tail));
                self.pc = Pc::Look;
            }
            Pc::Look => {
                let slot = Slot::unpack(m.load(slot_at(self.ticket)));
                match (self.ticket.lag(slot), slot.state) {
                    (Lag::At, SlotState::Empty) => {
                        self.at = self.ticket.before(self.ring.slots);
                        self.pc = Pc::Before;
                    }
                    (Lag::At, SlotState::Closed) | (Lag::Behind, SlotState::Last(_)) => {
                        return Some(PutEnd::Closed(self.owner));
                    }
                    (Lag::At | Lag::Ahead, _) => {
                        self.seen = slot;
                        self.pc = Pc::Help;
                    }
                    (Lag::Behind, _) => return Some(PutEnd::Full(self.owner)),
                }
            }
            Pc::Help if !self.turns.one_more() => return Some(PutEnd::Full(self.owner)),
            Pc::Help => {
                let next = self.ticket.over(self.seen, self.ring.slots);
                _ = m.cas(self.ring.tail, self.ticket.pack(), next.pack());
                self.pc = Pc::Tail;
            }
            Pc::Before => {
                self.seen = Slot::unpack(m.load(slot_at(self.at)));
                match self.at.stands(self.seen) {
                    Standing::Message => self.pc = Pc::BeforeEnd,
                    // All before are taken, too.
                    Standing::Taken => {
                        self.begin = 0;
                        return self.decide(0);
                    }
                    // Garbage: where there is a next slot, the one before it was used.
                    Standing::Nothing | Standing::Closed => return self.decide(0),
                }
            }
            Pc::BeforeEnd => {
                let Some(e) = self.named() else { return self.decide(0) };
                self.begin = m.load(self.ends_of(e).plus(1));
                self.pc = Pc::Head;
            }
            Pc::Head => {
                self.at = Ticket::unpack(m.load(self.ring.head));
                self.pc = Pc::Oldest;
            }
            Pc::Oldest => {
                self.seen = Slot::unpack(m.load(slot_at(self.at)));
                match self.at.stands(self.seen) {
                    // Also if another producer has published it under the ticket that was to be this message's: what is
                    // measured then is found out by the put, or by the look before it is full.
                    Standing::Message => self.pc = Pc::OldestBegin,
                    Standing::Taken if !self.turns.one_more() => return self.decide(0),
                    Standing::Taken => self.at = self.at.over(self.seen, self.ring.slots),
                    // All are taken by now.
                    Standing::Nothing if self.at == self.ticket => return self.decide(0),
                    Standing::Nothing | Standing::Closed => self.pc = Pc::Beyond,
                }
            }
            // It went beyond its ticket, under which another producer has published since; or the head is
            // garbage.
            Pc::Beyond => {
                let slot = Slot::unpack(m.load(slot_at(self.ticket)));
                if (self.ticket.lag(slot), slot.state) == (Lag::At, SlotState::Empty) {
                    return self.decide(0);
                }
                self.pc = Pc::Tail;
            }
            // If its ticket is free, the oldest message is before it, and what was measured was there. Else the oldest may be one
            // that was published under this ticket or a later one, and lies behind nothing of what was read.
            Pc::Full => {
                let slot = Slot::unpack(m.load(slot_at(self.ticket)));
                if (self.ticket.lag(slot), slot.state) == (Lag::At, SlotState::Empty) {
                    return Some(PutEnd::Full(self.owner));
                }
                self.pc = Pc::Tail;
            }
            Pc::OldestBegin => {
                let Some(e) = self.named() else { return self.decide(0) };
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
                self.pc = Pc::Put(put.at(self.ticket));
            }
            Pc::Put(put) => match put.step(m)? {
                // Another producer was faster, or there is no room any more: only a new look shows which.
                PutEnd::Full(owner) => {
                    self.owner = owner;
                    self.pc = Pc::Tail;
                }
                end => return Some(end),
            },
        }
        None
    }
}
