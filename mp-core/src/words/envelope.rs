//! Words of an envelope and its group: the envelope's owner, its position in a queue, its number of
//! deliveries, and the state of the group.

use super::{BlockId, Member};

/// Owner of an envelope.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Holder {
    /// The envelope has no owner, and may be claimed, unless its word is zero ([`Owner::claimable`]).
    Free,
    /// This process owns the envelope, and fills or empties it.
    Member(Member),
    /// The ring named by [`RingPlace`] owns the envelope.
    Queued,
    /// This process has leased the message. If the process dies, another process gets the message.
    Leased(Member),
    /// The queue named by [`RingPlace`] owns the envelope. The process that had leased the message died, or
    /// returned the message.
    Returned,
    /// The queue named by [`RingPlace`] owns the envelope, and no longer delivers the message: the message
    /// was returned as often as the queue allows.
    Undeliverable,
}

/// Returns the number of deliveries of the envelope's message, from its meta word.
#[inline]
pub const fn deliveries(meta: u64) -> u32 {
    (meta >> 17 & 0x7f) as u32
}

/// Returns the meta word with one more delivery, up to 127.
#[inline]
pub const fn delivered(meta: u64) -> u64 {
    if deliveries(meta) < 0x7f { meta + (1 << 17) } else { meta }
}

/// Returns the meta word with this number of deliveries, up to 127.
pub const fn with_deliveries(meta: u64, times: u32) -> u64 {
    let times = if times < 0x7f { times as u64 } else { 0x7f };
    meta & !(0x7f << 17) | times << 17
}

/// Owner word of an envelope: the owner, and the number of changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    /// Present owner.
    pub holder: Holder,
    /// Number of changes of this word.
    pub seq: u64,
}

impl Owner {
    const SEQ_AT: u32 = 26;
    /// Mask of the bits of a sequence.
    const SEQ: u64 = u64::MAX >> Self::SEQ_AT;
    /// Tag in the word of a leased message that was returned. No member has this tag, since there are fewer
    /// slots.
    const RETURNED: Member = Member::from_raw(0xff_ffff);
    const UNDELIVERABLE: Member = Member::from_raw(0xff_efff);

    /// Encodes the owner and the sequence as a word.
    #[inline]
    pub const fn pack(self) -> u64 {
        let low = match self.holder {
            Holder::Free => 0,
            Holder::Member(m) => 1 | m.raw() << 2,
            Holder::Queued => 2,
            Holder::Leased(m) => 3 | m.raw() << 2,
            Holder::Returned => 3 | Self::RETURNED.raw() << 2,
            Holder::Undeliverable => 3 | Self::UNDELIVERABLE.raw() << 2,
        };
        low | self.seq << Self::SEQ_AT
    }

    /// Creates the value from a word.
    #[inline]
    pub const fn unpack(w: u64) -> Self {
        let holder = match w & 3 {
            0 => Holder::Free,
            1 => Holder::Member(Member::from_raw(w >> 2)),
            2 => Holder::Queued,
            _ => match Member::from_raw(w >> 2) {
                Self::RETURNED => Holder::Returned,
                Self::UNDELIVERABLE => Holder::Undeliverable,
                m => Holder::Leased(m),
            },
        };
        Self { holder, seq: w >> Self::SEQ_AT }
    }

    /// Returns the number that, added to the word of a queued envelope, makes `holder` its owner and
    /// increments the sequence.
    #[inline]
    pub const fn queued_to(holder: Holder) -> u64 {
        let queued = Self { holder: Holder::Queued, seq: 0 };
        let taken = queued.then(holder);
        taken.pack().wrapping_sub(queued.pack())
    }

    /// Decodes the word of an envelope that may be claimed. Returns `None` for other words, and for 0, the
    /// word of an envelope without memory.
    #[inline]
    pub const fn claimable(w: u64) -> Option<Self> {
        let owner = Self::unpack(w);
        if matches!(owner.holder, Holder::Free) && w != 0 { Some(owner) } else { None }
    }

    /// Returns the word of a free envelope with this sequence. A sequence of 0 is replaced by 1.
    pub const fn free(seq: u64) -> Self {
        let seq = seq & Self::SEQ;
        Self { holder: Holder::Free, seq: if seq == 0 { 1 } else { seq } }
    }

    /// Returns the next word of the envelope when it becomes free.
    #[inline]
    pub const fn freed(self) -> Self {
        Self::free(self.seq + 1)
    }

    /// Returns the later of two sequences. The result is only valid if they are less than 2^37 apart.
    pub const fn later(a: u64, b: u64) -> u64 {
        if (b.wrapping_sub(a) & Self::SEQ) <= Self::SEQ / 2 { b } else { a }
    }

    /// Returns the next word of the envelope when `holder` becomes its owner.
    #[inline]
    pub const fn then(self, holder: Holder) -> Self {
        Self { holder, seq: (self.seq + 1) & Self::SEQ }
    }
}

/// Ring and slot in which an envelope is queued. The envelope's owner writes this word before it puts the
/// envelope into the slot.
///
/// The word may also have the bit [`ENCLOSING`](Self::ENCLOSING).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RingPlace {
    /// Block that contains the ring.
    pub ring: BlockId,
    /// Index of the slot.
    pub slot: u32,
}

impl RingPlace {
    /// Flag in this word: a consumer has leased a small message and copied it into the envelope, but may not
    /// have taken the message out of its slot yet.
    pub const ENCLOSING: u64 = 1 << 63;

    /// Encodes the ring and slot as a word.
    pub const fn pack(self) -> u64 {
        self.slot as u64 | (self.ring as u64) << 32
    }

    /// Creates the value from a word.
    pub const fn unpack(w: u64) -> Self {
        Self { ring: ((w & !Self::ENCLOSING) >> 32) as u32, slot: w as u32 }
    }
}

/// State of a group of envelopes.
///
/// The owner word of an envelope counts its changes, and processes that compare the word rely on every value
/// being new. Memory that was returned to the kernel reads as zeros when it is committed again. So a group
/// without memory stores a sequence that none of its envelopes has reached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GroupState {
    /// The group has no memory. Reads of its words return zeros, and may commit a page.
    Absent {
        /// First sequence of the group's envelopes after the group is filled again.
        base: u64,
    },
    /// A process that owns all envelopes of the group returns their memory.
    Emptying {
        /// Process that returns the memory.
        by: Member,
        /// First sequence of the group's envelopes after the group is filled again.
        base: u64,
    },
    /// The group has memory, and the owner words of its envelopes are valid.
    InUse,
    /// A process has committed the memory, and writes the owner words. Envelopes whose owner words are
    /// written may be claimed.
    Filling {
        /// Process that writes the owner words.
        by: Member,
        /// First sequence of the group's envelopes.
        base: u64,
    },
}

impl GroupState {
    /// Number of envelopes in a group.
    pub const ENVELOPES: u32 = 64;
    const BASE_AT: u32 = 26;

    /// Encodes the state as a word. Zero, the value of every word of a new arena, is an absent group.
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

    /// Returns `true` if a pass over all envelopes reads this group, because its envelopes may be in use.
    /// Reading another group would commit pages.
    pub const fn is_scanned(self) -> bool {
        matches!(self, Self::InUse | Self::Filling { .. })
    }
}
