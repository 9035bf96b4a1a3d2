//! Word for an attachment of a message, and the position of a seat.

use super::{BlockId, bits};

/// Access of the receiver to an attached block. The sender's handle determines the access, so the bytes of a
/// message can't change it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Access {
    /// Read and write access for one owner at a time.
    Exclusive = 0,
    /// Read access for any number of holders, forever.
    Frozen = 1,
    /// Access through relaxed atomics for any number of holders.
    Shared = 2,
    /// Access through a structure in the block, for example a queue.
    Object = 3,
}

/// Rights that a handle in a message gives to its receiver: the access, and the element type (at most 31), if
/// it restricts the access.
///
/// Stored as one word: a struct that is written in parts and then moved as a whole stalls the processor, and
/// the parts of a message are moved often.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant(u64);

impl Grant {
    /// Creates a grant of this access, to elements of the type with this number.
    #[inline]
    pub const fn new(access: Access, tag: u8) -> Self {
        Self(access as u64 | (tag as u64) << 2)
    }

    /// Returns the access.
    #[inline]
    pub const fn access(self) -> Access {
        Access::of_bits(self.0)
    }

    /// Returns the number of the element type.
    #[inline]
    pub const fn tag(self) -> u8 {
        (self.0 >> 2) as u8
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} (element type {})", self.access(), self.tag())
    }
}

impl Access {
    /// Returns the access with these two bits.
    #[inline]
    const fn of_bits(w: u64) -> Self {
        match w & 3 {
            0 => Self::Exclusive,
            1 => Self::Frozen,
            2 => Self::Shared,
            _ => Self::Object,
        }
    }
}

/// Attachment of an envelope: the block, and the envelope's seat in it (held, or about to be taken).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Attachment {
    /// Block, less than 2^24.
    pub block: BlockId,
    /// Position of the seat.
    pub seat: SeatAt,
    /// Rights of the receiver.
    pub grant: Grant,
}

impl Attachment {
    /// Encodes the attachment as a word, which is never 0.
    pub const fn pack(self) -> u64 {
        1 | (self.grant.0 & 127) << 1 | (self.seat.raw() as u64) << 8 | (self.block as u64) << 40
    }

    /// Creates an attachment from a word. Returns `None` for 0.
    pub const fn unpack(w: u64) -> Option<Self> {
        if w & 1 == 0 {
            return None;
        }
        let seat = SeatAt::from_raw(bits(w, 8, 32) as u32);
        Some(Self { block: (w >> 40) as u32, seat, grant: Grant(bits(w, 1, 7)) })
    }
}

/// Position of a block's seat: in the block's header, or in a page of seats. The position contains the page,
/// so that no chain of pages has to be traversed.
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
