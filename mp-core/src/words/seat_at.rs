//! Where a seat is.

use super::BlockId;

/// Which of a block's seats: one in its header, or a word of a page of seats. It says where the seat is by itself, so
/// that no chain of pages is walked to reach it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SeatAt(u32);

impl SeatAt {
    /// A seat in the block's header; the first is 0.
    pub const fn inline(i: u32) -> Self {
        Self(i << 8)
    }

    /// The word of a page of seats, counted from the page's start; not 0, which is no seat.
    pub const fn paged(page: BlockId, word: u32) -> Self {
        Self(page << 8 | word & 0xff)
    }

    /// The page and the word in it; `Err` with the number of a seat in the header.
    pub const fn page(self) -> Result<(BlockId, u32), u32> {
        match self.0 & 0xff {
            0 => Err(self.0 >> 8),
            word => Ok((self.0 >> 8, word)),
        }
    }

    /// As bits of another word: page 24, word 8.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// From the bits of another word.
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }
}
