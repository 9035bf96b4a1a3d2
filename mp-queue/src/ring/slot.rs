//! The slot words and the ticket.

use std::hash::{Hash, Hasher};

use mp_core::words::EnvelopeId;

use super::Small;

const LAP_BITS: u32 = 38;
const LAP_MASK: u64 = (1 << LAP_BITS) - 1;

/// A message in a slot, or its beginning: 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Content(u32);

impl Content {
    /// Contents from here on are small messages; there are fewer envelopes.
    pub(super) const SMALL: u32 = 0xf0_0000;

    /// The largest number that an envelope could have.
    #[cfg(test)]
    pub(crate) const LAST_ENVELOPE: EnvelopeId = Self::SMALL - 1;

    /// Whether an arena with this many envelopes can have rings.
    pub const fn can_name(envelopes: u32) -> bool {
        envelopes <= Self::SMALL
    }

    /// An envelope.
    #[inline]
    pub const fn of(e: EnvelopeId) -> Self {
        Self(e)
    }

    /// The beginning of a small message.
    #[inline]
    pub(super) const fn small(head: u32) -> Self {
        Self(Self::SMALL | head)
    }

    /// The envelope, if it is one.
    #[inline]
    pub const fn envelope(self) -> Option<EnvelopeId> {
        if self.0 < Self::SMALL { Some(self.0) } else { None }
    }

    /// The small message, if it is one, with what is in the slot's second word.
    #[inline]
    pub(super) const fn with(self, rest: u64) -> Option<Small> {
        if self.0 < Self::SMALL { None } else { Some(Small::from_words(self.0 & !Self::SMALL, rest)) }
    }
}

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotState {
    /// Nothing yet.
    Empty,
    /// A message.
    Full(Content),
    /// Nothing, for ever.
    Closed,
    /// A message, the last one: closed behind it.
    Last(Content),
    /// As empty, or closed, but with a content, which no step writes: garbage, to be taken away as a message
    /// is.
    Stray {
        /// What is there.
        content: Content,
        /// As closed.
        closed: bool,
    },
}

/// A slot's first word: `content 24 | state 2 | lap 38`, low bits first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// Which lap it is in.
    pub lap: u64,
    /// What it holds.
    pub state: SlotState,
}

impl Slot {
    /// As a word.
    #[inline]
    pub const fn pack(self) -> u64 {
        let low = match self.state {
            SlotState::Empty => 0,
            SlotState::Full(c) => 1 << 24 | c.0 as u64,
            SlotState::Closed => 2 << 24,
            SlotState::Last(c) => 3 << 24 | c.0 as u64,
            SlotState::Stray { content, closed } => (closed as u64) << 25 | content.0 as u64,
        };
        self.lap << 26 | low
    }

    /// From a word. Different words are different slots: what was found can be swapped, whatever it is.
    #[inline]
    pub const fn unpack(w: u64) -> Self {
        let c = Content((w & 0xff_ffff) as u32);
        let state = match (w >> 24) & 3 {
            0 if c.0 == 0 => SlotState::Empty,
            1 => SlotState::Full(c),
            2 if c.0 == 0 => SlotState::Closed,
            3 => SlotState::Last(c),
            state => SlotState::Stray { content: c, closed: state == 2 },
        };
        Self { lap: w >> 26, state }
    }

    /// The message in it.
    #[inline]
    pub const fn content(self) -> Option<Content> {
        match self.state {
            SlotState::Full(c) | SlotState::Last(c) => Some(c),
            SlotState::Empty | SlotState::Closed | SlotState::Stray { .. } => None,
        }
    }

    /// The envelope in it.
    #[inline]
    pub const fn envelope(self) -> Option<EnvelopeId> {
        match self.content() {
            Some(c) => c.envelope(),
            None => None,
        }
    }

    /// What it becomes when its message is taken.
    #[inline]
    pub(super) const fn taken(self) -> Self {
        let state = match self.state {
            SlotState::Last(_) => SlotState::Closed,
            _ => SlotState::Empty,
        };
        Self { lap: (self.lap + 1) & LAP_MASK, state }
    }
}

/// A place in the order of messages: the `index`-th slot in lap `lap`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    /// Which lap, modulo 2^38: the two bits above that are not used, and kept.
    pub lap: u64,
    /// Which slot.
    pub index: u32,
}

/// How often one call has gone on to another slot. Over slots whose laps are garbage it could go round for
/// ever; else each turn is a message that others have put or taken meanwhile. It is not part of an
/// algorithm's state: two that differ only in this do the same.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Turns(u32);

impl Turns {
    const MOST: u32 = 1 << 16;

    /// Whether the call may go on once more.
    pub(super) const fn one_more(&mut self) -> bool {
        self.0 += 1;
        self.0 <= Self::MOST
    }
}

impl PartialEq for Turns {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Turns {}

impl Hash for Turns {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// What a consumer finds in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// A later lap: what was there was taken.
    Taken,
    Message,
    Nothing,
    Closed,
}

/// Whether a slot is behind, at or ahead of a ticket's lap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lag {
    Behind,
    At,
    Ahead,
}

impl Ticket {
    /// As a word.
    #[inline]
    pub const fn pack(self) -> u64 {
        self.lap << 24 | self.index as u64
    }

    /// From a word.
    #[inline]
    pub const fn unpack(w: u64) -> Self {
        Self { lap: w >> 24, index: (w & 0xff_ffff) as u32 }
    }

    /// The one after it in a ring of `slots`.
    #[inline]
    pub const fn next(self, slots: u32) -> Self {
        if self.index + 1 < slots {
            Self { lap: self.lap, index: self.index + 1 }
        } else {
            Self { lap: (self.lap + 1) & LAP_MASK, index: 0 }
        }
    }

    /// The first ticket that may still come, as far as this one's slot can tell, which is used: it was, under
    /// this ticket or a later one, and so are all tickets before that. A hint lags by little, unless a
    /// process wrote garbage into it.
    pub fn over(self, slot: Slot, slots: u32) -> Self {
        let lap = match self.lag(slot) {
            Lag::Ahead => slot.lap.wrapping_sub(1) & LAP_MASK,
            Lag::At | Lag::Behind => self.lap,
        };
        Self { lap, index: self.index }.next(slots)
    }

    /// The one before it in a ring of `slots`.
    pub(crate) fn before(self, slots: u32) -> Self {
        match self.index.checked_sub(1) {
            Some(index) => Self { lap: self.lap, index },
            None => Self { lap: self.lap.wrapping_sub(1) & LAP_MASK, index: slots - 1 },
        }
    }

    /// How many tickets `self` is ahead of `earlier`, in a ring of `slots`.
    pub const fn since(self, earlier: Self, slots: u32) -> u64 {
        let laps = self.lap.wrapping_sub(earlier.lap) & LAP_MASK;
        (laps * slots as u64).wrapping_add(self.index as u64).wrapping_sub(earlier.index as u64)
    }

    /// How the slot stands to this ticket. Laps compare modulo 2^38.
    #[inline]
    pub(super) const fn lag(self, slot: Slot) -> Lag {
        let d = slot.lap.wrapping_sub(self.lap) & LAP_MASK;
        if d == 0 {
            Lag::At
        } else if d < 1 << (LAP_BITS - 1) {
            Lag::Ahead
        } else {
            Lag::Behind
        }
    }

    /// What a consumer that has this ticket finds in the slot.
    pub(crate) const fn stands(self, slot: Slot) -> Standing {
        match (self.lag(slot), slot.state) {
            (Lag::Ahead, _) => Standing::Taken,
            (Lag::At, SlotState::Full(_) | SlotState::Last(_) | SlotState::Stray { .. }) => Standing::Message,
            (Lag::At, SlotState::Closed) => Standing::Closed,
            (Lag::At, SlotState::Empty) | (Lag::Behind, _) => Standing::Nothing,
        }
    }

    /// Whether a producer that has this ticket finds the end in the slot; `None`: the slot is used, look at the next.
    pub(crate) const fn finds_end(self, slot: Slot) -> Option<bool> {
        match (self.lag(slot), slot.state) {
            (Lag::At, SlotState::Closed) | (Lag::Behind, SlotState::Last(_)) => Some(true),
            (Lag::At, SlotState::Empty) | (Lag::Behind, _) => Some(false),
            (Lag::At | Lag::Ahead, _) => None,
        }
    }

    /// Whether a producer that has this ticket need not wait at the slot, for it is free, or the end; `None`: it is used, look
    /// at the next.
    pub(crate) const fn finds_room(self, slot: Slot) -> Option<bool> {
        match (self.lag(slot), slot.state) {
            (Lag::At, SlotState::Closed | SlotState::Empty) | (Lag::Behind, SlotState::Last(_)) => Some(true),
            (Lag::Behind, _) => Some(false),
            (Lag::At | Lag::Ahead, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_fields_and_laps_wrap() {
        let last = SlotState::Last(Content::of(5));
        for state in [SlotState::Empty, SlotState::Full(Content(0xff_ffff)), SlotState::Closed, last] {
            let s = Slot { lap: LAP_MASK, state };
            assert_eq!(Slot::unpack(s.pack()), s);
        }
        for w in [0, 5, 1 << 24, 2 << 24, 2 << 24 | 5, 3 << 24 | 5, u64::MAX, 77 << 26 | 1] {
            assert_eq!(Slot::unpack(w).pack(), w);
            assert_eq!(Ticket::unpack(w).pack(), w);
        }
        assert_eq!(Slot::unpack(77 << 26 | 1).content(), None);
        let last = Ticket { lap: LAP_MASK, index: 2 };
        assert_eq!(Ticket::unpack(last.pack()), last);
        assert_eq!(last.next(3), Ticket { lap: 0, index: 0 });
        assert_eq!(last.next(3).since(last, 3), 1);
        assert_eq!(last.next(3).before(3), last);
        let slot = |lap| Slot { lap, state: SlotState::Empty };
        assert_eq!(last.over(slot(0), 3), last.next(3));
        assert_eq!(Ticket { lap: 7, index: 1 }.over(slot(1000), 3), Ticket { lap: 999, index: 2 });
        assert_eq!(Ticket { lap: 7, index: 900 }.over(slot(1000), 3), Ticket { lap: 1000, index: 0 });
        assert_eq!(last.lag(slot(0)), Lag::Ahead);
        assert_eq!(last.next(3).lag(slot(LAP_MASK)), Lag::Behind);
        assert_eq!(last.lag(slot(LAP_MASK)), Lag::At);
    }
}
