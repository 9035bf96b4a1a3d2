//! Group of envelopes: 64 neighbors, whose memory is returned and committed together.

use super::Member;

/// State of a group of envelopes.
///
/// An envelope counts the changes of its owner word, and processes that compare it rely on every value being
/// new. Memory that was returned to the kernel reads as zeros when it is committed again. So a group without
/// memory stores a sequence that none of its envelopes has reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GroupState {
    /// Without memory. All reads there return zeros, and a read may commit a page.
    Absent {
        /// First sequence of its envelopes when it is used again.
        base: u64,
    },
    /// A process that owns all of its envelopes returns the memory.
    Emptying {
        /// Process that returns the memory.
        by: Member,
        /// First sequence of its envelopes when it is used again.
        base: u64,
    },
    /// The owner words of its envelopes are valid.
    InUse,
    /// A process commits the memory, then writes owner words. Envelopes whose owner words are written may be
    /// claimed.
    Filling {
        /// Process that commits the memory.
        by: Member,
        /// First sequence of its envelopes.
        base: u64,
    },
}

impl GroupState {
    /// Number of envelopes in a group.
    pub const ENVELOPES: u32 = 64;
    const BASE_AT: u32 = 26;

    /// Returns the word. Zero, the value of every word of a new arena, is an absent group.
    pub const fn pack(self) -> u64 {
        match self {
            Self::Absent { base } => base << Self::BASE_AT,
            Self::Emptying { by, base } => 1 | by.raw() << 2 | base << Self::BASE_AT,
            Self::InUse => 2,
            Self::Filling { by, base } => 3 | by.raw() << 2 | base << Self::BASE_AT,
        }
    }

    /// Creates the state from a word.
    pub const fn unpack(w: u64) -> Self {
        let (by, base) = (Member::from_raw(w >> 2), w >> Self::BASE_AT);
        match w & 3 {
            0 => Self::Absent { base },
            1 => Self::Emptying { by, base },
            2 => Self::InUse,
            _ => Self::Filling { by, base },
        }
    }

    /// Returns `true` if any of the envelopes may be in use. Other groups are not read, since that would
    /// commit pages.
    pub const fn is_scanned(self) -> bool {
        matches!(self, Self::InUse | Self::Filling { .. })
    }
}
