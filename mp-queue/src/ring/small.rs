//! Messages of a few bytes, stored in the slot itself.
//!
//! | first word | second word | meaning |
//! |---|---|---|
//! | `(lap, FULL, small)` | remaining bytes | a message of up to 10 bytes: its length and first two bytes are in `small` |
//! | `(lap, LAST, small)` | remaining bytes | like FULL, and the last message of the ring |
//! | any other | 0 | as in [the ring](super) |
//!
//! Both words are published and taken by one compare-and-swap of 16 bytes. So there is no intermediate state:
//! a killed process has put or taken the message or not, and leaves nothing to sweep. No intent is needed. A
//! process that swaps only the first word (a closer, or a producer or consumer of an envelope) succeeds only
//! if the second word belongs to the first.
//!
//! A message that is to be leased needs an envelope, since its consumer may die later. As soon as a consumer
//! has leased, producers use envelopes (they read a word that consumers set). A consumer that leases may find
//! a small message that was put before. [`Enclose`] then creates an envelope with a copy, which is already
//! leased, and takes the slot afterwards.
//!
//! | killed in `Enclose` | left | the sweep |
//! |---|---|---|
//! | before the envelope is leased | `MEMBER(dead)` | frees it |
//! | before the slot is taken | `LEASED(dead)`, and the message in the slot | returns it: the message is delivered twice |
//! | after the slot is taken | `LEASED(dead)` | returns it |
//! | after another consumer took the slot, while the envelope is still leased | `LEASED(dead)` | returns it: the message is delivered twice |
//!
//! Delivery is at least once, as leases promise.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::message::FewBytes;
use mp_core::words::{Holder, Member, Owner, Place};

use super::slot::{Content, Lag, Slot, SlotState, Ticket, Turns};
use super::{PutEnd, RingAt};

/// A message of up to [`MOST`](Self::MOST) bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Small {
    /// `0 4 | len 4 | second byte 8 | first byte 8`.
    head: u32,
    rest: u64,
}

impl Small {
    /// Largest number of bytes.
    pub const MOST: usize = FewBytes::MOST;

    /// Returns the message with these bytes, or `None` if there are too many.
    #[inline]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        FewBytes::new(bytes).map(Self::of)
    }

    /// Returns the message with these bytes.
    #[inline]
    pub fn of(bytes: FewBytes) -> Self {
        let [a, b, rest @ ..] = bytes.all();
        let len = bytes.len() as u32;
        let head = len << 16 | u32::from(b) << 8 | u32::from(a);
        Self { head, rest: u64::from_le_bytes(rest) }
    }

    /// Returns the bytes of the message.
    #[inline]
    pub fn bytes(self) -> FewBytes {
        let [a, b, c, d, e, f, g, h] = self.rest.to_le_bytes();
        let len = (self.head >> 16 & 15) as usize;
        // The length may be garbage.
        let len = if len < Self::MOST { len } else { Self::MOST };
        FewBytes::first(len, [self.head as u8, (self.head >> 8) as u8, a, b, c, d, e, f, g, h])
    }

    /// Returns the small message in a slot with these words, if it contains one.
    #[inline]
    pub const fn in_slot([first, rest]: [u64; 2]) -> Option<Self> {
        match Slot::unpack(first).content() {
            Some(content) => content.with(rest),
            None => None,
        }
    }

    #[inline]
    pub(super) const fn from_words(head: u32, rest: u64) -> Self {
        Self { head, rest }
    }

    /// Returns the words of a slot with this message.
    #[inline]
    fn slot(self, lap: u64) -> [u64; 2] {
        [Slot { lap, state: SlotState::Full(Content::small(self.head)) }.pack(), self.rest]
    }
}

/// Returns the words of a slot in this lap, with or without a message.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn small_words(message: Option<Small>, lap: u64) -> [u64; 2] {
    let empty = [Slot { lap, state: SlotState::Empty }.pack(), 0];
    message.map_or(empty, |message| message.slot(lap))
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Tail,
    Look,
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
    message: Small,
    ticket: Ticket,
    batched: bool,
    /// A used slot.
    seen: Slot,
    /// Second word of an empty slot.
    rest: u64,
    turns: Turns,
    pc: Pc,
}

impl PutSmall {
    /// Creates the steps to put `message`.
    pub fn new(ring: RingAt, message: Small) -> Self {
        let (ticket, seen) = (Ticket { lap: 0, index: 0 }, Slot { lap: 0, state: SlotState::Empty });
        Self { ring, message, ticket, batched: false, seen, rest: 0, turns: Turns::default(), pc: Pc::Tail }
    }

    /// Makes it part of a batch: see [`Put::batched`](super::Put::batched).
    #[must_use]
    pub fn batched(self, last: Option<Ticket>) -> Self {
        match last {
            Some(last) => Self { ticket: last.next(self.ring.slots), batched: true, pc: Pc::Look, ..self },
            None => Self { batched: true, ..self },
        }
    }

    // Not computed at the beginning of each step: without common code there, the compiler merges all steps
    // into straight-line code.
    #[inline(always)]
    fn slot_at(&self) -> Word {
        self.ring.slot(self.ticket.index)
    }
}

impl Steps for PutSmall {
    type Out = PutEnd<()>;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<PutEnd<()>> {
        match self.pc {
            Pc::Tail => {
                self.ticket = Ticket::unpack(m.load(self.ring.tail));
                // Fetches the line once, for writing, instead of first for reading and then for writing.
                m.will_write(self.ring.slot(self.ticket.index));
                self.pc = Pc::Look;
            }
            Pc::Look => {
                let slot = Slot::unpack(m.load(self.slot_at()));
                match (self.ticket.lag(slot), slot.state) {
                    (Lag::At, SlotState::Empty) => self.pc = Pc::Publish,
                    (Lag::At, SlotState::Closed) | (Lag::Behind, SlotState::Last(_)) => {
                        return Some(PutEnd::Closed(()));
                    }
                    (Lag::At | Lag::Ahead, _) => {
                        self.seen = slot;
                        self.pc = Pc::Help;
                    }
                    (Lag::Behind, _) => return Some(PutEnd::Full(())),
                }
            }
            Pc::Help => {
                if !self.turns.one_more() {
                    return Some(PutEnd::Full(()));
                }
                let next = self.ticket.over(self.seen, self.ring.slots);
                if m.cas(self.ring.tail, self.ticket.pack(), next.pack()).is_err() {
                    m.lost();
                }
                self.pc = Pc::Tail;
            }
            Pc::Publish => {
                let empty = Slot { lap: self.ticket.lap, state: SlotState::Empty };
                let full = self.message.slot(self.ticket.lap);
                self.pc = match m.cas_pair(self.slot_at(), [empty.pack(), 0], full) {
                    true if self.batched => return Some(PutEnd::Done(self.ticket)),
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
                let empty = Slot { lap: self.ticket.lap, state: SlotState::Empty }.pack();
                m.cas_pair(self.slot_at(), [empty, self.rest], [empty, 0]);
                self.pc = Pc::Tail;
            }
            Pc::Advance => {
                _ = m.cas(self.ring.tail, self.ticket.pack(), self.ticket.next(self.ring.slots).pack());
                return Some(PutEnd::Done(self.ticket));
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Enclosing {
    Place,
    Lease,
    Look,
    Take,
    Advance,
    Unlease,
}

/// Leases a small message in an envelope with a copy of it. Ends with the envelope's owner word, and `true`
/// if the caller now has the lease. If `false`, another process was faster, and the caller still owns the
/// envelope and must free it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Enclose {
    ring: RingAt,
    owner_at: Word,
    place_at: Word,
    me: Member,
    owner: Owner,
    message: Small,
    ticket: Ticket,
    slot: Slot,
    pc: Enclosing,
}

impl Enclose {
    /// Creates the steps to lease `message`, which [`Get`](super::Get) has found under `ticket`, in an
    /// envelope of `me` that contains a copy of it. The envelope's owner word, at `owner_at`, is `owner`. Its
    /// place word is at `place_at`.
    pub fn new(
        ring: RingAt,
        (owner_at, place_at): (Word, Word),
        (me, owner): (Member, Owner),
        (message, ticket): (Small, Ticket),
    ) -> Self {
        let slot = Slot { lap: ticket.lap, state: SlotState::Empty };
        Self { ring, owner_at, place_at, me, owner, message, ticket, slot, pc: Enclosing::Place }
    }
}

impl Steps for Enclose {
    type Out = (Owner, bool);

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<(Owner, bool)> {
        let slot_at = self.ring.slot(self.ticket.index);
        match self.pc {
            Enclosing::Place => {
                let place = Place {
                    ring: self.ring.block,
                    slot: self.ring.before + self.ring.index(self.ticket.index),
                };
                m.store_relaxed(self.place_at, place.pack());
                self.pc = Enclosing::Lease;
            }
            Enclosing::Lease => {
                self.owner = self.owner.then(Holder::Leased(self.me));
                m.store(self.owner_at, self.owner.pack());
                self.pc = Enclosing::Look;
            }
            // The slot may have become the last one since.
            Enclosing::Look => {
                self.slot = Slot::unpack(m.load(slot_at));
                let same = self.slot.content() == Some(Content::small(self.message.head));
                let same = same && (self.ticket.lag(self.slot) == Lag::At);
                self.pc = if same { Enclosing::Take } else { Enclosing::Unlease };
            }
            Enclosing::Take => {
                let full = [self.slot.pack(), self.message.rest];
                let taken = m.cas_pair(slot_at, full, [self.slot.taken().pack(), 0]);
                self.pc = if taken { Enclosing::Advance } else { Enclosing::Unlease };
            }
            Enclosing::Advance => {
                _ = m.cas(self.ring.head, self.ticket.pack(), self.ticket.next(self.ring.slots).pack());
                return Some((self.owner, true));
            }
            Enclosing::Unlease => {
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
    fn bytes_come_back() {
        for len in 0..=Small::MOST {
            let bytes: Vec<u8> = (0..len as u8).map(|i| 255 - i).collect();
            let small = Small::new(&bytes).unwrap();
            let there = Slot::unpack(small.slot(3)[0]);
            assert_eq!((there.lap, there.envelope()), (3, None));
            assert_eq!(Small::in_slot(small.slot(3)).unwrap().bytes().as_slice(), bytes);
        }
        assert_eq!(Small::new(&[0; Small::MOST + 1]), None);
    }

    #[test]
    fn a_length_that_no_producer_writes_is_cut() {
        assert_eq!(Small::from_words(0xf_ffff, u64::MAX).bytes().as_slice(), [255; Small::MOST]);
    }
}
