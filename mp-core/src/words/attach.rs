//! The word for something that is attached to a message.

use super::{BlockId, SeatAt, bits};

/// How the receiver may use an attached block; fixed by the sender's handle, so that bytes can't change it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Access {
    /// By one owner at a time, who may write.
    Exclusive = 0,
    /// By any number, read only, for ever.
    Frozen = 1,
    /// By any number, through relaxed atomics.
    Shared = 2,
    /// Through a structure of its own, a queue for example.
    Object = 3,
}

/// One attachment of an envelope: the block, the seat that the envelope has (or is about to take) in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Attach {
    /// The block, less than 2^24.
    pub block: BlockId,
    /// Where the seat is.
    pub seat: SeatAt,
    /// How it may be used.
    pub access: Access,
    /// The element type, where that matters to who may access what; at most 31.
    pub tag: u8,
}

impl Attach {
    /// As a word, never 0.
    pub const fn pack(self) -> u64 {
        1 | (self.access as u64) << 1
            | (self.tag as u64 & 31) << 3
            | (self.seat.raw() as u64) << 8
            | (self.block as u64) << 40
    }

    /// From a word; `None` for 0.
    pub const fn unpack(w: u64) -> Option<Self> {
        if w & 1 == 0 {
            return None;
        }
        let access = match bits(w, 1, 2) {
            0 => Access::Exclusive,
            1 => Access::Frozen,
            2 => Access::Shared,
            _ => Access::Object,
        };
        let seat = SeatAt::from_raw(bits(w, 8, 32) as u32);
        Some(Self { block: (w >> 40) as u32, seat, access, tag: bits(w, 3, 5) as u8 })
    }
}
