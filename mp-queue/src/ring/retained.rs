//! Words of a ring with retained messages, and small messages in its slots.
//!
//! A message of a few bytes is stored in its slot, as in [other rings](super::SmallMessage). It has no
//! envelope, so no reader pins it and no sender retires or collects it. A later message overwrites it in
//! place.
//!
//! | both words of a slot | changed by one swap of both words |
//! |---|---|
//! | `(lap, EMPTY)`, 0 | a sender → `(lap, FULL, small)`, remaining bytes |
//! | `(lap, FULL, small)`, remaining bytes | a sender at the slot's next position → `(lap+1, FULL, small)`, remaining bytes, or `(lap+1, EMPTY)`, 0 before it publishes an envelope there |
//!
//! A reader loads the first word, the second one, and the first one again. If the first word is unchanged,
//! both words belong to one message, since the first word never returns to an earlier value.
//!
//! # Replaced messages
//! A ring keeps [`keep`](RetainedAt::keep) messages. A message is *replaced* as soon as a message at least
//! `keep` positions later is published. This holds for every kind of message, even if its slot is still
//! unchanged. To check this, a reader reads the slot `keep` positions later, which is usually in a cache line
//! that it has read in the previous lap. If that position was skipped, or its message is retired, the reader
//! checks the next one. The search always ends: the slot of the newest message is `FULL`, and the position
//! after that message is not published.
//!
//! A slot's next position is used only after another message has replaced the slot's message: between the
//! position of that other message and the slot's next position are more positions than pins, and only pinned
//! slots are skipped. So a replaced message is never the newest, and no message is overwritten before it is
//! replaced.
//!
//! A sender of a small message retires no envelopes, unless the slot `keep` positions earlier contains an
//! envelope, or the message's position begins a batch of 64 positions. So the head may lag by a batch.
//!
//! | killed | left | other processes |
//! |---|---|---|
//! | after emptying a slot for an envelope | an empty slot | the next sender publishes in this slot |
//! | after publishing a small message, before advancing the tail | a tail that lags | the next sender advances the tail |
//! | after publishing a small message, before retiring an envelope | one more envelope than the limit, which no reader gets | a sender at the beginning of a batch, or the next sender of an envelope, retires it |

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::Member;

use super::RingAt;
use super::slot::{Lag, Position, Slot, SmallMessage};

/// Number of positions after which a sender of small messages retires all older envelopes and advances the
/// head.
const BATCH: u32 = 64;

/// Locations of the pins of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pins {
    /// Location of the number of pins that may be in use.
    pub used: Word,
    /// Location of the first pin. The other pins follow.
    pub first: Word,
    /// Number of pins of the ring.
    pub count: u32,
}

impl Pins {
    /// Returns the location of pin `i`.
    #[inline]
    pub const fn pin(&self, i: u32) -> Word {
        self.first.plus(i as u64)
    }

    /// Returns the word of a pin with which `me` has pinned slot `index`.
    #[inline]
    pub const fn pack(me: Member, index: u32) -> u64 {
        me.raw() | (index as u64 + 1) << Member::BITS
    }

    /// Returns the reader and the slot index in the word of a pin, or `None` if the pin is free.
    #[inline]
    pub const fn unpack(word: u64) -> Option<(Member, u32)> {
        match (word >> Member::BITS) as u32 {
            0 => None,
            n => Some((Member::from_raw(word), n - 1)),
        }
    }
}

/// Locations of the words of a ring with retained messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RetainedAt {
    /// Locations of the ring's slots and hints.
    pub ring: RingAt,
    /// Locations of the pins of the ring's readers.
    pub pins: Pins,
    /// Location of the count of skipped positions of the first slot. The counts of the other slots follow:
    /// see [`AssignSkips`](super::AssignSkips).
    pub skips: Word,
    /// Number of messages that the ring keeps. Smaller than its number of slots.
    pub keep: u32,
}

impl RetainedAt {
    /// Returns the location of the count of skipped positions before the message in slot `i`.
    #[inline]
    pub const fn skips(&self, i: u32) -> Word {
        self.skips.plus(self.ring.index(i) as u64)
    }

    /// Returns the position whose message, when published, replaces the message at `position`.
    #[inline]
    pub(super) const fn replacement(&self, position: Position) -> Position {
        position.plus(self.keep, self.ring.slots)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum PublishPc {
    Rest,
    Swap(u64),
    Advance,
    Oldest,
}

/// Publishes a small message. Ends with `None` if the slot has changed. Otherwise ends with `true` if the
/// sender must retire older envelopes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PublishSmall {
    at: RetainedAt,
    position: Position,
    seen: Slot,
    message: SmallMessage,
    pc: PublishPc,
}

impl PublishSmall {
    /// Creates the steps for a position and its slot, as found by
    /// [`FindPublishSlot`](super::FindPublishSlot).
    pub fn new(at: RetainedAt, (position, seen): (Position, Slot), message: SmallMessage) -> Self {
        Self { at, position, seen, message, pc: PublishPc::Rest }
    }
}

impl Steps for PublishSmall {
    type Out = Option<bool>;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<bool>> {
        let slot = self.at.ring.slot(self.position.index);
        match self.pc {
            PublishPc::Rest => self.pc = PublishPc::Swap(m.load(slot.plus(1))),
            PublishPc::Swap(rest) => {
                if !m.cas_pair(slot, [self.seen.pack(), rest], self.message.slot(self.position.lap)) {
                    m.lost();
                    return Some(None);
                }
                self.pc = PublishPc::Advance;
            }
            PublishPc::Advance => {
                self.at.ring.pass(m, self.at.ring.tail, self.position);
                if self.position.index.is_multiple_of(BATCH) {
                    return Some(Some(true));
                }
                self.pc = PublishPc::Oldest;
            }
            PublishPc::Oldest => {
                let oldest = self.position.minus(self.at.keep, self.at.ring.slots);
                let slot = Slot::unpack(m.load(self.at.ring.slot(oldest.index)));
                return Some(Some(oldest.lag(slot) == Lag::Equal && slot.envelope().is_some()));
            }
        }
        None
    }
}

/// Removes a replaced small message from a slot, so that an envelope can be published in the slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DiscardSmall {
    slot: Word,
    seen: u64,
    empty: u64,
    rest: Option<u64>,
}

impl DiscardSmall {
    /// Creates the steps for a position and its slot, as found by
    /// [`FindPublishSlot`](super::FindPublishSlot).
    pub fn new(at: RetainedAt, (position, seen): (Position, Slot)) -> Self {
        let (slot, empty) = (at.ring.slot(position.index), position.empty_slot().pack());
        Self { slot, seen: seen.pack(), empty, rest: None }
    }
}

impl Steps for DiscardSmall {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        let Some(rest) = self.rest else {
            self.rest = Some(m.load(self.slot.plus(1)));
            return None;
        };
        m.cas_pair(self.slot, [self.seen, rest], [self.empty, 0]);
        Some(())
    }
}
