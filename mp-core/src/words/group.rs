//! A group of envelopes: 64 neighbours, whose memory is given back and taken together.

use super::Member;

/// What a group of envelopes is: in use, or without memory, or in between.
///
/// An envelope counts the changes of its owner word, and processes that compare it rely on every value being new. Memory that
/// was given back is zeros when it comes again. So a group without memory keeps a sequence that none of its envelopes has
/// reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Group {
    /// Without memory. All that may be read there is zeros, and a read takes a page.
    Absent {
        /// Where the sequences of its envelopes begin when it is used again.
        base: u64,
    },
    /// A process that owns all of its envelopes gives the memory back.
    Emptying {
        /// Which process.
        by: Member,
        /// As above.
        base: u64,
    },
    /// Its envelopes are what their owner words say.
    InUse,
    /// A process gives it memory, then owner words. Those that it has written may be claimed.
    Filling {
        /// Which process.
        by: Member,
        /// As above.
        base: u64,
    },
}

impl Group {
    /// How many envelopes a group has.
    pub const ENVELOPES: u32 = 64;
    const BASE_AT: u32 = 26;

    /// As a word. Zero, which every word of a new arena is, is an absent group.
    pub const fn pack(self) -> u64 {
        match self {
            Self::Absent { base } => base << Self::BASE_AT,
            Self::Emptying { by, base } => 1 | by.raw() << 2 | base << Self::BASE_AT,
            Self::InUse => 2,
            Self::Filling { by, base } => 3 | by.raw() << 2 | base << Self::BASE_AT,
        }
    }

    /// From a word.
    pub const fn unpack(w: u64) -> Self {
        let (by, base) = (Member::from_raw(w >> 2), w >> Self::BASE_AT);
        match w & 3 {
            0 => Self::Absent { base },
            1 => Self::Emptying { by, base },
            2 => Self::InUse,
            _ => Self::Filling { by, base },
        }
    }

    /// Whether any of its envelopes may be in use. Those of other groups hold nothing, and are not looked at:
    /// it would take pages.
    pub const fn is_looked_at(self) -> bool {
        matches!(self, Self::InUse | Self::Filling { .. })
    }
}
