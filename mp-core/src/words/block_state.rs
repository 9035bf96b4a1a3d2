//! State word of a block: its life cycle and its use.

use super::{Member, bits};

/// Use of a block. The kind determines the actions before the block is freed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum BlockKind {
    /// Elements of tensors, with one owner.
    Data = 0,
    /// Ring of a queue. Its envelopes are released first.
    Ring = 1,
    /// Additional seats of another block.
    Seats = 2,
    /// Bytes of a message that is too large for its envelope.
    Spill = 3,
    /// Elements that are no longer written. The block never becomes [`Data`](Self::Data) again.
    Frozen = 4,
    /// Structure created by this layer, with a header that names its type. The kind prevents that the block
    /// is used as elements, or a block of elements as a structure.
    Object = 5,
    /// Descriptors that a message has in the locker. The descriptors are closed first.
    Descriptors = 6,
    /// [`Object`](Self::Object) that keeps a descriptor in the locker. The descriptor is closed first. The
    /// kind has the bits of an object, and one more.
    Keeper = 7,
    /// Elements that any process may write. The block never becomes [`Data`](Self::Data) again.
    Shared = 8,
    /// [`Object`](Self::Object) that is a child of another one. Its seat in the parent is released first. The
    /// kind has the bits of an object, and one more.
    Child = 13,
}

impl BlockKind {
    /// Returns `true` for a structure created by this layer.
    pub const fn is_object(self) -> bool {
        matches!(self, Self::Object | Self::Keeper | Self::Child)
    }

    /// Written so that it compiles to a table lookup: every allocation calls it several times.
    #[inline]
    const fn from_bits(b: u64) -> Self {
        match b & 15 {
            1 => Self::Ring,
            2 => Self::Seats,
            3 => Self::Spill,
            4 => Self::Frozen,
            5 => Self::Object,
            6 => Self::Descriptors,
            7 => Self::Keeper,
            // 12 has the bits of both kinds: the memory was shared and frozen.
            8 | 12 => Self::Shared,
            13 => Self::Child,
            _ => Self::Data,
        }
    }
}

/// Life cycle of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockLife {
    /// May be claimed.
    Free,
    /// Held through its seats.
    Live,
    /// This member is allocating or freeing the block. If the member is dead, the process that reclaims it
    /// frees the block.
    Busy(Member),
}

/// State word of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockState {
    /// Life cycle.
    pub life: BlockLife,
    /// Use of the block.
    pub kind: BlockKind,
    /// Number of times that an additional seat was taken, or the block changed hands.
    pub version: u64,
}

impl BlockState {
    const VERSION_AT: u32 = 30;
    /// Summand that increments the version in the word.
    pub const BUMP: u64 = 1 << Self::VERSION_AT;

    /// Returns the word.
    pub const fn pack(self) -> u64 {
        let (life, member) = match self.life {
            BlockLife::Free => (0, 0),
            BlockLife::Live => (1, 0),
            BlockLife::Busy(m) => (2, m.raw()),
        };
        life | (self.kind as u64) << 2 | member << 6 | self.version << Self::VERSION_AT
    }

    /// Creates the state from a word.
    #[inline(always)]
    pub const fn unpack(w: u64) -> Self {
        let life = match w & 3 {
            0 => BlockLife::Free,
            1 => BlockLife::Live,
            _ => BlockLife::Busy(Member::from_raw(w >> 6)),
        };
        Self { life, kind: BlockKind::from_bits(bits(w, 2, 4)), version: w >> Self::VERSION_AT }
    }

    /// Returns the bits of the word for this kind.
    pub const fn kind_bits(kind: BlockKind) -> u64 {
        (kind as u64) << 2
    }

    /// Returns the state of the same block with another life cycle.
    pub const fn with(self, life: BlockLife) -> Self {
        Self { life, ..self }
    }

    /// Returns the state with the next version.
    pub const fn bumped(self) -> Self {
        Self { version: (self.version + 1) & (u64::MAX >> Self::VERSION_AT), ..self }
    }
}
