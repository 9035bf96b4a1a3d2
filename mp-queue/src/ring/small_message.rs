//! Messages of a few bytes.

use mp_core::message::SmallBytes;

/// A message of up to [`MOST`](Self::MOST) bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SmallMessage {
    /// `0 4 | len 4 | second byte 8 | first byte 8`.
    head: u32,
    rest: u64,
}

impl SmallMessage {
    /// Largest number of bytes.
    pub const MOST: usize = SmallBytes::MOST;

    /// Returns the message with these bytes, or `None` if there are too many.
    #[inline]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        SmallBytes::new(bytes).map(Self::of)
    }

    /// Returns the message with these bytes.
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

    #[inline]
    pub(super) const fn from_words(head: u32, rest: u64) -> Self {
        Self { head, rest }
    }

    /// Returns the length and the first two bytes, as they are stored in a slot's first word.
    #[inline]
    pub(super) const fn head(self) -> u32 {
        self.head
    }

    /// Returns the other bytes: the second word of the slot.
    #[inline]
    pub(super) const fn rest(self) -> u64 {
        self.rest
    }
}
