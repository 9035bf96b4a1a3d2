//! Position of a seat.

use super::BlockId;

/// Position of one of a block's seats: in its header, or in a page of seats. It contains the page, so that no
/// chain of pages is traversed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SeatAt(u32);

impl SeatAt {
    /// Returns the position of seat `i` in the block's header, from 0.
    pub const fn inline(i: u32) -> Self {
        Self(i << 8)
    }

    /// Returns the position of a word in a page of seats, counted from the page's start. Word 0 is not a
    /// seat.
    pub const fn paged(page: BlockId, word: u32) -> Self {
        Self(page << 8 | word & 0xff)
    }

    /// Returns the page and the word in it, or `Err` with the number of a seat in the header.
    pub const fn page(self) -> Result<(BlockId, u32), u32> {
        match self.0 & 0xff {
            0 => Err(self.0 >> 8),
            word => Ok((self.0 >> 8, word)),
        }
    }

    /// Returns the position as bits of another word: page 24, word 8.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Creates the position from the bits of another word.
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}
