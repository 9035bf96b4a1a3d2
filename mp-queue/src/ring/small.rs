//! Messages of a few bytes, stored in the slot itself.
//!
//! | first word | second word | meaning |
//! |---|---|---|
//! | `(lap, FULL, small)` | remaining bytes | a message of up to 10 bytes: its length and first two bytes are in `small` |
//! | `(lap, LAST, small)` | remaining bytes | like FULL, and the ring is closed: the slot's next position is the end |
//! | any other | 0 | as in [the ring](super) |
//!
//! Both words are published and taken by one compare-and-swap of 16 bytes. There is no intermediate state, so
//! a killed process leaves nothing to reclaim, and no intent is needed. A process that swaps only the first
//! word (a closer, or a producer or consumer of an envelope) succeeds only if the second word belongs to the
//! first.
//!
//! A message that is to be leased needs an envelope, since its consumer may die later. The first consumer
//! that leases sets a bit in the queue's header, and producers that read the bit use envelopes. A consumer
//! that leases may still find a small message that was put before. The consumer copies that message into an
//! envelope. [`Enclose`] leases the envelope and then takes the message out of its slot. Meanwhile the
//! envelope's place word has a mark ([`RingPlace::ENCLOSING`]), so that a process that lists the queue's
//! messages does not list both copies. A consumer that is killed leaves the mark, and the next leaseholder
//! removes it.
//!
//! | killed in `Enclose` | left | recovery or reclaim |
//! |---|---|---|
//! | before it leases the envelope | an envelope with owner `MEMBER(dead)` | frees the envelope |
//! | before it takes the message out of the slot | an envelope with owner `LEASED(dead)`, and the message in the slot | returns the envelope: the message is delivered twice |
//! | after it takes the message out of the slot | an envelope with owner `LEASED(dead)` | returns the envelope |
//! | after another consumer took the message out of the slot, while the envelope is still leased | an envelope with owner `LEASED(dead)` | returns the envelope: the message is delivered twice |
//!
//! In all cases, the message is delivered at least once, as for any lease.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::{Holder, Member, Owner, RingPlace};

use super::RingAt;
use super::put::PutOutcome;
use super::slot::{Content, Lag, Position, Slot, SlotState, SmallMessage, Turns};

/// Returns the two words of a slot in lap `lap`, with a small message or empty.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn small_words(message: Option<SmallMessage>, lap: u64) -> [u64; 2] {
    let empty = [Position { lap, index: 0 }.empty_slot().pack(), 0];
    message.map_or(empty, |message| message.slot(lap))
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Tail,
    Load,
    Help,
    Publish,
    Rest,
    Clear,
    Advance,
}

/// Tries once to put a small message into a ring. Never waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PutSmall {
    ring: RingAt,
    message: SmallMessage,
    position: Position,
    batched: bool,
    /// Slot at `position`, which is in use, so that the tail must be advanced past it.
    seen: Slot,
    /// Second word that was read from an empty slot.
    rest: u64,
    turns: Turns,
    pc: Pc,
}

impl PutSmall {
    /// Creates the steps to put `message`.
    pub fn new(ring: RingAt, message: SmallMessage) -> Self {
        let (position, seen, turns) = (Position::NONE, Slot::NONE, Turns::default());
        Self { ring, message, position, batched: false, seen, rest: 0, turns, pc: Pc::Tail }
    }

    /// Makes the put part of a batch: see [`Put::batched`](super::Put::batched).
    #[must_use]
    pub fn batched(self, last: Option<Position>) -> Self {
        match last {
            Some(last) => Self { position: last.next(self.ring.slots), batched: true, pc: Pc::Load, ..self },
            None => Self { batched: true, ..self },
        }
    }

    // Each step computes this itself. With common code before the `match`, the compiler would not merge all
    // steps into straight-line code.
    #[inline(always)]
    fn slot_at(&self) -> Word {
        self.ring.slot(self.position.index)
    }
}

impl Steps for PutSmall {
    type Out = PutOutcome<()>;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<PutOutcome<()>> {
        match self.pc {
            Pc::Tail => {
                self.position = Position::unpack(m.load(self.ring.tail));
                // Fetches the line once, for writing, instead of first for reading and then for writing.
                m.will_write(self.ring.slot(self.position.index));
                self.pc = Pc::Load;
            }
            Pc::Load => {
                let slot = Slot::unpack(m.load(self.slot_at()));
                match (self.position.lag(slot), slot.state) {
                    (Lag::Equal, SlotState::Empty) => self.pc = Pc::Publish,
                    (Lag::Equal, SlotState::Closed) | (Lag::Behind, SlotState::Last(_)) => {
                        return Some(PutOutcome::Closed(()));
                    }
                    (Lag::Equal | Lag::Ahead, _) => {
                        self.seen = slot;
                        self.pc = Pc::Help;
                    }
                    (Lag::Behind, _) => return Some(PutOutcome::Full(())),
                }
            }
            Pc::Help => {
                if !self.turns.one_more() {
                    return Some(PutOutcome::Full(()));
                }
                if !self.ring.help(m, self.ring.tail, self.position, self.seen) {
                    m.lost();
                }
                self.pc = Pc::Tail;
            }
            Pc::Publish => {
                let empty = self.position.empty_slot();
                let full = self.message.slot(self.position.lap);
                self.pc = match m.cas_pair(self.slot_at(), [empty.pack(), 0], full) {
                    true if self.batched => return Some(PutOutcome::Done(self.position)),
                    true => Pc::Advance,
                    false => {
                        m.lost();
                        Pc::Rest
                    }
                };
            }
            // The slot contains another message, or it is empty and its second word is not 0, which no step
            // writes.
            Pc::Rest => {
                let rest = m.load(self.slot_at().plus(1));
                self.rest = rest;
                let whole = rest == 0;
                self.pc = if whole { Pc::Tail } else { Pc::Clear };
            }
            Pc::Clear => {
                let empty = self.position.empty_slot().pack();
                m.cas_pair(self.slot_at(), [empty, self.rest], [empty, 0]);
                self.pc = Pc::Tail;
            }
            Pc::Advance => {
                self.ring.pass(m, self.ring.tail, self.position);
                return Some(PutOutcome::Done(self.position));
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum EnclosePc {
    Place,
    Lease,
    Load,
    Take,
    Unmark,
    Advance,
    Unlease,
}

/// Leases a small message in an envelope that contains a copy of the message. Ends with the envelope's owner
/// word, and with `true` if the caller has the lease. If `false`, another process took the message first, and
/// the caller still owns the envelope and must free it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Enclose {
    ring: RingAt,
    owner_at: Word,
    place_at: Word,
    me: Member,
    owner: Owner,
    message: SmallMessage,
    position: Position,
    slot: Slot,
    pc: EnclosePc,
}

impl Enclose {
    /// Creates the steps to lease `message`, which [`Get`](super::Get) has found at `position`. The envelope
    /// with the copy belongs to `me`, the calling process. Its owner word at `owner_at` is `owner`. Its place
    /// word is at `place_at`.
    pub fn new(
        ring: RingAt,
        (owner_at, place_at): (Word, Word),
        (me, owner): (Member, Owner),
        (message, position): (SmallMessage, Position),
    ) -> Self {
        let slot = position.empty_slot();
        Self { ring, owner_at, place_at, me, owner, message, position, slot, pc: EnclosePc::Place }
    }
}

impl Steps for Enclose {
    type Out = (Owner, bool);

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<(Owner, bool)> {
        let slot_at = self.ring.slot(self.position.index);
        match self.pc {
            EnclosePc::Place => {
                m.store_relaxed(self.place_at, self.ring.place(self.position) | RingPlace::ENCLOSING);
                self.pc = EnclosePc::Lease;
            }
            EnclosePc::Lease => {
                self.owner = self.owner.then(Holder::Leased(self.me));
                m.store(self.owner_at, self.owner.pack());
                self.pc = EnclosePc::Load;
            }
            // A closer may have marked the slot as `LAST` meanwhile.
            EnclosePc::Load => {
                self.slot = Slot::unpack(m.load(slot_at));
                let same = self.slot.content() == Some(Content::small(self.message.head()));
                let same = same && (self.position.lag(self.slot) == Lag::Equal);
                self.pc = if same { EnclosePc::Take } else { EnclosePc::Unlease };
            }
            EnclosePc::Take => {
                let full = [self.slot.pack(), self.message.rest()];
                let taken = m.cas_pair(slot_at, full, [self.slot.after_take().pack(), 0]);
                self.pc = if taken { EnclosePc::Unmark } else { EnclosePc::Unlease };
            }
            EnclosePc::Unmark => {
                m.store(self.place_at, self.ring.place(self.position));
                self.pc = EnclosePc::Advance;
            }
            EnclosePc::Advance => {
                self.ring.pass(m, self.ring.head, self.position);
                return Some((self.owner, true));
            }
            EnclosePc::Unlease => {
                self.owner = self.owner.then(Holder::Member(self.me));
                m.store(self.owner_at, self.owner.pack());
                return Some((self.owner, false));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_message_bytes_round_trip_through_a_slot() {
        for len in 0..=SmallMessage::MOST {
            let bytes: Vec<u8> = (0..len as u8).map(|i| 255 - i).collect();
            let small = SmallMessage::new(&bytes).unwrap();
            let there = Slot::unpack(small.slot(3)[0]);
            assert_eq!((there.lap, there.envelope()), (3, None));
            assert_eq!(SmallMessage::in_slot(small.slot(3)).unwrap().bytes().as_slice(), bytes);
        }
        assert_eq!(SmallMessage::new(&[0; SmallMessage::MOST + 1]), None);
    }

    #[test]
    fn too_long_small_message_is_truncated() {
        assert_eq!(
            Content::small(0xf_ffff).small_message(u64::MAX).unwrap().bytes().as_slice(),
            [255; SmallMessage::MOST]
        );
    }
}
