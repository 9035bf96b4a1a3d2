//! State word of a block: its life cycle and its use.

use super::{Member, bits};

/// Use of a block. Before a block is freed, its contents are released, as its kind requires.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum BlockKind {
    /// Elements of tensors, with one owner.
    Data = 0,
    /// Ring of a queue. Its envelopes are released before the block is freed.
    Ring = 1,
    /// Additional seats of another block.
    Seats = 2,
    /// Bytes of a message that is too large for its envelope.
    Spill = 3,
    /// Elements of tensors that no process writes any more. The block never becomes [`Data`](Self::Data)
    /// again.
    Frozen = 4,
    /// Structure created by this layer, with a header that names its type. The kind prevents that the block
    /// is used as elements, or a block of elements as a structure.
    Object = 5,
    /// Descriptors that a message has in the locker. They are closed before the block is freed.
    Descriptors = 6,
    /// [`Object`](Self::Object) that keeps a descriptor in the locker. The descriptor is closed before the
    /// block is freed. The number contains the bits of [`Object`](Self::Object).
    Keeper = 7,
    /// Elements of tensors that any process may write. The block never becomes [`Data`](Self::Data) again.
    Shared = 8,
    /// [`Object`](Self::Object) that is a child of another block. The seat in the parent is released before
    /// the block is freed. The number contains the bits of [`Object`](Self::Object).
    Child = 13,
}

impl BlockKind {
    /// Returns `true` for the kinds of blocks with structures of this layer.
    pub const fn is_object(self) -> bool {
        matches!(self, Self::Object | Self::Keeper | Self::Child)
    }

    /// Returns the kind with these bits. Written so that it compiles to a table lookup: every allocation
    /// calls it several times.
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
    /// The block has no holder, and any process can claim it.
    Free,
    /// The block is held through its seats.
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
    /// Number of times that an additional seat was taken, or that the block was published or freed.
    pub version: u64,
}

impl BlockState {
    const VERSION_AT: u32 = 30;
    /// Value that increments the version when it is added to the word.
    pub const BUMP: u64 = 1 << Self::VERSION_AT;

    /// Encodes the state as a word.
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

    /// Returns the bits that this kind has in a state word.
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
