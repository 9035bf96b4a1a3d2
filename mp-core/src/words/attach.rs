//! The word for something that is attached to a message.

use super::{BlockId, SeatAt, bits};

/// How the receiver may use an attached block; fixed by the sender's handle, so that bytes can't change it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Access {
    /// By one owner at a time, which may write.
    Exclusive = 0,
    /// By any number, read only, for ever.
    Frozen = 1,
    /// By any number, through relaxed atomics.
    Shared = 2,
    /// Through a structure of its own, a queue for example.
    Object = 3,
}

/// What a handle in a message gives its receiver: which access, and to which element type, where it matters
/// to what may be accessed (at most 31).
///
/// One word, as what is kept with it is: a struct that is written in parts and then moved as a whole stalls the processor, and
/// the parts of a message are moved often.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant(u64);

impl Grant {
    /// To access it like that, as elements of the type with this number.
    #[inline]
    pub const fn new(access: Access, tag: u8) -> Self {
        Self(access as u64 | (tag as u64) << 2)
    }

    /// How it may be used.
    #[inline]
    pub const fn access(self) -> Access {
        Access::of_bits(self.0)
    }

    /// The element type.
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
    /// Of its two bits.
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

/// One attachment of an envelope: the block, the seat that the envelope has (or is about to take) in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Attach {
    /// The block, less than 2^24.
    pub block: BlockId,
    /// Where the seat is.
    pub seat: SeatAt,
    /// What it gives.
    pub grant: Grant,
}

impl Attach {
    /// As a word, never 0.
    pub const fn pack(self) -> u64 {
        1 | (self.grant.0 & 127) << 1 | (self.seat.raw() as u64) << 8 | (self.block as u64) << 40
    }

    /// From a word; `None` for 0.
    pub const fn unpack(w: u64) -> Option<Self> {
        if w & 1 == 0 {
            return None;
        }
        let seat = SeatAt::from_raw(bits(w, 8, 32) as u32);
        Some(Self { block: (w >> 40) as u32, seat, grant: Grant(bits(w, 1, 7)) })
    }
}
