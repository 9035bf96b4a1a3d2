//! Slot words and positions.

use std::hash::{Hash, Hasher};

use mp_core::message::SmallBytes;
use mp_core::words::EnvelopeId;

const LAP_BITS: u32 = 38;
const LAP_MASK: u64 = (1 << LAP_BITS) - 1;

/// Content of a slot's first word, 24 bits: an envelope's number, or the beginning of a small message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Content(u32);

impl Content {
    /// Smallest content that is a small message. Smaller values are envelope numbers.
    pub(super) const SMALL: u32 = 0xf0_0000;

    /// Largest envelope number that a slot can contain.
    #[cfg(test)]
    pub(crate) const LAST_ENVELOPE: EnvelopeId = Self::SMALL - 1;

    /// Returns `true` if slots can name each of this number of envelopes.
    pub const fn can_name(envelopes: u32) -> bool {
        envelopes <= Self::SMALL
    }

    /// Returns the content for an envelope.
    #[inline]
    pub const fn of(e: EnvelopeId) -> Self {
        Self(e)
    }

    /// Returns the content for the beginning of a small message.
    #[inline]
    pub(super) const fn small(head: u32) -> Self {
        Self(Self::SMALL | head)
    }

    /// Returns the envelope, or `None` for a small message.
    #[inline]
    pub const fn envelope(self) -> Option<EnvelopeId> {
        if self.0 < Self::SMALL { Some(self.0) } else { None }
    }

    /// Decodes the small message whose first part is this content and whose second part is `rest`, the slot's
    /// second word. Returns `None` if the content is an envelope.
    #[inline]
    pub(super) const fn small_message(self, rest: u64) -> Option<SmallMessage> {
        if self.0 < Self::SMALL { None } else { Some(SmallMessage { head: self.0 & !Self::SMALL, rest }) }
    }
}

/// Small message: up to [`MOST`](Self::MOST) bytes, which fit into a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SmallMessage {
    /// Length and first bytes: `0 4 | len 4 | second byte 8 | first byte 8`, high bits first.
    head: u32,
    rest: u64,
}

impl SmallMessage {
    /// Largest number of bytes of a small message.
    pub const MOST: usize = SmallBytes::MOST;

    /// Returns the small message with these bytes, or `None` if there are too many bytes.
    #[inline]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        SmallBytes::new(bytes).map(Self::of)
    }

    /// Returns the small message with these bytes.
    #[inline]
    pub fn of(bytes: SmallBytes) -> Self {
        let [a, b, rest @ ..] = bytes.all();
        let len = bytes.len() as u32;
        let head = len << 16 | u32::from(b) << 8 | u32::from(a);
        Self { head, rest: u64::from_le_bytes(rest) }
    }

    /// Returns the bytes of the message.
    #[inline]
    pub fn bytes(self) -> SmallBytes {
        let [a, b, c, d, e, f, g, h] = self.rest.to_le_bytes();
        let len = (self.head >> 16 & 15) as usize;
        // The length may be garbage.
        let len = if len < Self::MOST { len } else { Self::MOST };
        SmallBytes::first(len, [self.head as u8, (self.head >> 8) as u8, a, b, c, d, e, f, g, h])
    }

    /// Returns the length and the first two bytes, as they are stored in a slot's first word.
    #[inline]
    pub(super) const fn head(self) -> u32 {
        self.head
    }

    /// Returns the bytes after the first two, as they are stored in a slot's second word.
    #[inline]
    pub(super) const fn rest(self) -> u64 {
        self.rest
    }

    /// Returns the small message in a slot with these two words, or `None` if the slot has none.
    #[inline]
    pub const fn in_slot([first, rest]: [u64; 2]) -> Option<Self> {
        match Slot::unpack(first).content() {
            Some(content) => content.small_message(rest),
            None => None,
        }
    }

    /// Returns the two words of a slot that contains this message, in lap `lap`.
    #[inline]
    pub(super) fn slot(self, lap: u64) -> [u64; 2] {
        [Slot { lap, state: SlotState::Full(Content::small(self.head())) }.pack(), self.rest()]
    }
}

/// State of a slot, with its content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotState {
    /// The slot has no message yet.
    Empty,
    /// The slot has a message.
    Full(Content),
    /// The slot has no message, and the ring is closed: no message will be published in this slot.
    Closed,
    /// The slot has a message, and the ring is closed: the slot's next position is the end of the ring. In a
    /// ring with retained messages: the message is retired.
    Last(Content),
    /// The slot contains garbage: it is empty or closed, but has a content. No step writes this state. A get
    /// handles the content like a message.
    Stray {
        /// Content that is garbage.
        content: Content,
        /// `true` if the slot is closed, and `false` if it is empty.
        closed: bool,
    },
}

/// A slot's first word: `content 24 | state 2 | lap 38`, low bits first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// Number of the slot's present lap.
    pub lap: u64,
    /// State of the slot in this lap.
    pub state: SlotState,
}

impl Slot {
    /// Value of a variable before a slot was read.
    pub(super) const NONE: Self = Self { lap: 0, state: SlotState::Empty };

    /// Converts the slot into a word.
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

    /// Converts a word into a slot. Different words yield different slots, so a swap can expect the packed
    /// slot.
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

    /// Returns the content of a slot with a message or garbage, or `None` if the slot has neither.
    #[inline]
    pub const fn content(self) -> Option<Content> {
        match self.state {
            SlotState::Full(c) | SlotState::Last(c) => Some(c),
            SlotState::Empty | SlotState::Closed | SlotState::Stray { .. } => None,
        }
    }

    /// Returns the envelope in the slot, or `None` if the slot has none.
    #[inline]
    pub const fn envelope(self) -> Option<EnvelopeId> {
        match self.content() {
            Some(c) => c.envelope(),
            None => None,
        }
    }

    /// Returns the state of the slot after its message was taken.
    #[inline]
    pub(super) const fn after_take(self) -> Self {
        let state = match self.state {
            SlotState::Last(_) => SlotState::Closed,
            _ => SlotState::Empty,
        };
        Self { lap: (self.lap + 1) & LAP_MASK, state }
    }
}

/// A position in the order of messages: slot `index` in lap `lap`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Position {
    /// Number of the lap, modulo 2^38. The two bits above are unused and preserved.
    pub lap: u64,
    /// Index of the slot in the ring.
    pub index: u32,
}

/// Number of times that one call had to start again or continue at another slot, usually because another
/// process has put or taken a message meanwhile. The number is limited, because a call could continue forever
/// if laps contain garbage. All values compare as equal: two states of an algorithm that differ only in this
/// number behave the same.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Turns(u32);

impl Turns {
    const MOST: u32 = 1 << 16;

    /// Increments the number. Returns `true` if the call may continue.
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

/// State of a position, as a consumer finds it in the position's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PositionState {
    /// The message was taken, since the slot is in a later lap.
    Taken,
    Message,
    Empty,
    Closed,
}

/// Relation of a slot's lap to a position's lap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lag {
    Behind,
    Equal,
    Ahead,
}

impl Position {
    /// Placeholder for an unknown position. No message of the first segment has this position, since laps of
    /// that segment start at 1.
    pub(crate) const NONE: Self = Self { lap: 0, index: 0 };

    /// Returns the slot of this position before its message is published.
    #[inline(always)]
    pub(super) const fn empty_slot(self) -> Slot {
        Slot { lap: self.lap, state: SlotState::Empty }
    }

    /// Converts the position into a word.
    #[inline]
    pub const fn pack(self) -> u64 {
        self.lap << 24 | self.index as u64
    }

    /// Converts a word into a position.
    #[inline]
    pub const fn unpack(w: u64) -> Self {
        Self { lap: w >> 24, index: (w & 0xff_ffff) as u32 }
    }

    /// Returns the position after this one, in a ring of `slots` slots.
    #[inline]
    pub const fn next(self, slots: u32) -> Self {
        if self.index + 1 < slots {
            Self { lap: self.lap, index: self.index + 1 }
        } else {
            Self { lap: (self.lap + 1) & LAP_MASK, index: 0 }
        }
    }

    /// Returns the first position after this one that may be unused. The caller has found in `slot`, this
    /// position's slot, that this position is used. If the slot is in a later lap, the positions up to its
    /// previous lap are used, too, and are skipped. Without garbage, a hint lags by few positions.
    pub fn skip_used(self, slot: Slot, slots: u32) -> Self {
        let lap = match self.lag(slot) {
            Lag::Ahead => slot.lap.wrapping_sub(1) & LAP_MASK,
            Lag::Equal | Lag::Behind => self.lap,
        };
        Self { lap, index: self.index }.next(slots)
    }

    /// Returns the position before this one, in a ring of `slots` slots.
    pub fn previous(self, slots: u32) -> Self {
        match self.index.checked_sub(1) {
            Some(index) => Self { lap: self.lap, index },
            None => Self { lap: self.lap.wrapping_sub(1) & LAP_MASK, index: slots - 1 },
        }
    }

    /// Returns the position `n` positions later, in a ring of `slots` slots. `n` is at most `slots`.
    #[inline]
    pub(super) const fn plus(self, n: u32, slots: u32) -> Self {
        let index = self.index + n;
        if index < slots {
            Self { lap: self.lap, index }
        } else {
            Self { lap: (self.lap + 1) & LAP_MASK, index: index - slots }
        }
    }

    /// Returns the position `n` positions earlier, in a ring of `slots` slots. `n` is at most `slots`.
    #[inline]
    pub(super) const fn minus(self, n: u32, slots: u32) -> Self {
        match self.index.checked_sub(n) {
            Some(index) => Self { lap: self.lap, index },
            None => Self { lap: self.lap.wrapping_sub(1) & LAP_MASK, index: self.index + (slots - n) },
        }
    }

    /// Returns the number of positions from `earlier` to this position, in a ring of `slots` slots.
    pub const fn distance_from(self, earlier: Self, slots: u32) -> u64 {
        let laps = self.lap.wrapping_sub(earlier.lap) & LAP_MASK;
        (laps * slots as u64).wrapping_add(self.index as u64).wrapping_sub(earlier.index as u64)
    }

    /// Compares the lap of `slot`, this position's slot, with this position's lap, modulo 2^38.
    #[inline]
    pub(super) const fn lag(self, slot: Slot) -> Lag {
        let d = slot.lap.wrapping_sub(self.lap) & LAP_MASK;
        if d == 0 {
            Lag::Equal
        } else if d < 1 << (LAP_BITS - 1) {
            Lag::Ahead
        } else {
            Lag::Behind
        }
    }

    /// Returns the state of this position, whose slot is `slot`, for a consumer.
    pub(crate) const fn state_in(self, slot: Slot) -> PositionState {
        match (self.lag(slot), slot.state) {
            (Lag::Ahead, _) => PositionState::Taken,
            (Lag::Equal, SlotState::Full(_) | SlotState::Last(_) | SlotState::Stray { .. }) => {
                PositionState::Message
            }
            (Lag::Equal, SlotState::Closed) => PositionState::Closed,
            (Lag::Equal, SlotState::Empty) | (Lag::Behind, _) => PositionState::Empty,
        }
    }

    /// Checks whether `slot`, this position's slot, shows that the message `keep` positions earlier was
    /// replaced. Returns `false` if no message is published at this position or later. Returns `None` if this
    /// position was skipped or its message is retired, so that the caller must check the next position.
    pub(super) fn has_replaced(self, slot: Slot) -> Option<bool> {
        match (self.lag(slot), slot.state) {
            (Lag::Equal | Lag::Ahead, SlotState::Full(_)) => Some(true),
            (Lag::Equal, SlotState::Last(_)) | (Lag::Ahead, _) => None,
            _ => Some(false),
        }
    }

    /// Checks whether `slot`, this position's slot, shows that the ring is closed. Returns `false` if a
    /// message can be published at this position. Returns `None` if the position is used, so that the caller
    /// must check the next position.
    pub(crate) const fn check_end(self, slot: Slot) -> Option<bool> {
        match (self.lag(slot), slot.state) {
            (Lag::Equal, SlotState::Closed) | (Lag::Behind, SlotState::Last(_)) => Some(true),
            (Lag::Equal, SlotState::Empty) | (Lag::Behind, _) => Some(false),
            (Lag::Equal | Lag::Ahead, _) => None,
        }
    }

    /// Checks whether a producer at this position, whose slot is `slot`, need not wait: the slot is free or
    /// the ring is closed. Returns `false` if the slot still has a message of the previous lap. Returns
    /// `None` if the position is used, so that the caller must check the next position.
    pub(crate) const fn check_room(self, slot: Slot) -> Option<bool> {
        match (self.lag(slot), slot.state) {
            (Lag::Equal, SlotState::Closed | SlotState::Empty) | (Lag::Behind, SlotState::Last(_)) => {
                Some(true)
            }
            (Lag::Behind, _) => Some(false),
            (Lag::Equal | Lag::Ahead, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_slot_words_round_trip_and_laps_wrap() {
        let last = SlotState::Last(Content::of(5));
        for state in [SlotState::Empty, SlotState::Full(Content(0xff_ffff)), SlotState::Closed, last] {
            let s = Slot { lap: LAP_MASK, state };
            assert_eq!(Slot::unpack(s.pack()), s);
        }
        for w in [0, 5, 1 << 24, 2 << 24, 2 << 24 | 5, 3 << 24 | 5, u64::MAX, 77 << 26 | 1] {
            assert_eq!(Slot::unpack(w).pack(), w);
            assert_eq!(Position::unpack(w).pack(), w);
        }
        assert_eq!(Slot::unpack(77 << 26 | 1).content(), None);
        let last = Position { lap: LAP_MASK, index: 2 };
        assert_eq!(Position::unpack(last.pack()), last);
        assert_eq!(last.next(3), Position { lap: 0, index: 0 });
        assert_eq!(last.next(3).distance_from(last, 3), 1);
        assert_eq!(last.next(3).previous(3), last);
        assert_eq!((last.plus(2, 3), last.plus(2, 3).minus(2, 3)), (Position { lap: 0, index: 1 }, last));
        assert_eq!(last.minus(2, 3), Position { lap: LAP_MASK, index: 0 });
        assert_eq!(last.plus(3, 3).minus(3, 3), last);
        let slot = |lap| Slot { lap, state: SlotState::Empty };
        assert_eq!(last.skip_used(slot(0), 3), last.next(3));
        assert_eq!(Position { lap: 7, index: 1 }.skip_used(slot(1000), 3), Position { lap: 999, index: 2 });
        assert_eq!(
            Position { lap: 7, index: 900 }.skip_used(slot(1000), 3),
            Position { lap: 1000, index: 0 }
        );
        assert_eq!(last.lag(slot(0)), Lag::Ahead);
        assert_eq!(last.next(3).lag(slot(LAP_MASK)), Lag::Behind);
        assert_eq!(last.lag(slot(LAP_MASK)), Lag::Equal);
    }
}
