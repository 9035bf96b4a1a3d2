//! A block's state word: where it is in its life, and what it is used for.

use super::{Member, bits};

/// What a block is used for; decides what happens when it is freed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Elements of tensors, with one owner.
    Data = 0,
    /// A queue's ring: the envelopes in it are released first.
    Ring = 1,
    /// More seats of another block.
    Seats = 2,
    /// The bytes of a message that was too large for its envelope.
    Spill = 3,
    /// Elements that no process writes any more: never [`Data`](Self::Data) again as long as the block lives.
    Frozen = 4,
    /// A structure that this layer made, and whose header says which: it can't be passed off as elements, nor elements
    /// as it.
    Object = 5,
    /// Descriptors that a message has in the locker: they are closed first.
    Descriptors = 6,
    /// An [`Object`](Self::Object) that keeps a descriptor in the locker: it is closed first. Its bits are those of an object, and
    /// one more.
    Keeper = 7,
    /// Elements that any process may write: never [`Data`](Self::Data) again as long as the block lives.
    Shared = 8,
    /// An [`Object`](Self::Object) that is a part of another one: its seat of that is given up first. Its bits are those of an object, and
    /// one more.
    Part = 13,
}

impl Kind {
    /// Whether it is a structure that this layer made.
    pub const fn is_object(self) -> bool {
        matches!(self, Self::Object | Self::Keeper | Self::Part)
    }

    /// A look in a table: done several times for every allocation.
    #[inline]
    const fn from_bits(b: u64) -> Self {
        const KINDS: [Kind; 16] = {
            let mut kinds = [Kind::Data; 16];
            let named = [
                Kind::Ring,
                Kind::Seats,
                Kind::Spill,
                Kind::Frozen,
                Kind::Object,
                Kind::Descriptors,
                Kind::Keeper,
                Kind::Shared,
                Kind::Part,
            ];
            let mut i = 0;
            while i < named.len() {
                kinds[named[i] as usize] = named[i];
                i += 1;
            }
            // Opened both ways at once, by two threads: no owner's any more, by whichever name.
            kinds[Kind::Frozen as usize | Kind::Shared as usize] = Kind::Shared;
            kinds
        };
        KINDS[(b & 15) as usize]
    }
}

/// Where a block is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Life {
    /// May be claimed.
    Free,
    /// Held through its seats.
    Live,
    /// One member is making it live, or is freeing it; if that member is dead, its sweeper frees it.
    Busy(Member),
}

/// A block's state word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockState {
    /// Where it is in its life.
    pub life: Life,
    /// What it is used for.
    pub kind: Kind,
    /// How often a seat was taken beside a held one, or the block changed hands.
    pub version: u64,
}

impl BlockState {
    const VERSION_AT: u32 = 30;
    /// What to add to the word to count the version up.
    pub const BUMP: u64 = 1 << Self::VERSION_AT;

    /// As a word.
    pub const fn pack(self) -> u64 {
        let (life, member) = match self.life {
            Life::Free => (0, 0),
            Life::Live => (1, 0),
            Life::Busy(m) => (2, m.raw()),
        };
        life | (self.kind as u64) << 2 | member << 6 | self.version << Self::VERSION_AT
    }

    /// From a word.
    #[inline(always)]
    pub const fn unpack(w: u64) -> Self {
        let life = match w & 3 {
            0 => Life::Free,
            1 => Life::Live,
            _ => Life::Busy(Member::from_raw(w >> 6)),
        };
        Self { life, kind: Kind::from_bits(bits(w, 2, 4)), version: w >> Self::VERSION_AT }
    }

    /// The bits that say what it is used for.
    pub const fn kind_bits(kind: Kind) -> u64 {
        (kind as u64) << 2
    }

    /// The same block, later in its life.
    pub const fn with(self, life: Life) -> Self {
        Self { life, ..self }
    }

    /// The same, one version on.
    pub const fn bumped(self) -> Self {
        Self { version: (self.version + 1) & (u64::MAX >> Self::VERSION_AT), ..self }
    }
}
