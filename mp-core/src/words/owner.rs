//! An envelope's words: its owner, where it is queued, how often it was delivered.

use super::{BlockId, Member};

/// The owner of an envelope.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Holder {
    /// None: it may be claimed, unless its word is zero ([`Owner::claimable`]).
    Free,
    /// A process that fills or empties it.
    Member(Member),
    /// A ring; [`Place`] says which and where.
    Queued,
    /// A process that has it for a time: when it dies, another one gets it.
    Leased(Member),
    /// The queue that [`Place`] names: it was leased by a process that died, or gave it back.
    Returned,
    /// That queue: it came back as often as the queue allows.
    Undeliverable,
}

/// How often the message of an envelope was delivered, from its meta word.
#[inline]
pub const fn deliveries(meta: u64) -> u32 {
    (meta >> 17 & 0x7f) as u32
}

/// The same meta word, delivered once more; it counts to 127.
#[inline]
pub const fn delivered(meta: u64) -> u64 {
    if deliveries(meta) < 0x7f { meta + (1 << 17) } else { meta }
}

/// An envelope's owner word: the holder, and how often it changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    /// Its owner.
    pub holder: Holder,
    /// Counts every change of this word.
    pub seq: u64,
}

impl Owner {
    const SEQ_AT: u32 = 26;
    /// The bits of a sequence.
    const SEQ: u64 = u64::MAX >> Self::SEQ_AT;
    /// Leases without a holder: no member has such a slot, there are fewer.
    const RETURNED: Member = Member::from_raw(0xff_ffff);
    const UNDELIVERABLE: Member = Member::from_raw(0xff_efff);

    /// As a word.
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

    /// From a word.
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

    /// What to add to the word of a queued envelope so that it is `holder`'s, and counted up.
    #[inline]
    pub const fn queued_to(holder: Holder) -> u64 {
        let queued = Self { holder: Holder::Queued, seq: 0 };
        let taken = queued.then(holder);
        taken.pack().wrapping_sub(queued.pack())
    }

    /// From the word of an envelope that may be claimed. Zero is that of an envelope without memory: its sequence is elsewhere.
    #[inline]
    pub const fn claimable(w: u64) -> Option<Self> {
        let owner = Self::unpack(w);
        if matches!(owner.holder, Holder::Free) && w != 0 { Some(owner) } else { None }
    }

    /// Free, with this sequence, or with 1 instead of 0.
    pub const fn free(seq: u64) -> Self {
        let seq = seq & Self::SEQ;
        Self { holder: Holder::Free, seq: if seq == 0 { 1 } else { seq } }
    }

    /// The next value of the word, free.
    #[inline]
    pub const fn freed(self) -> Self {
        Self::free(self.seq + 1)
    }

    /// The later of two sequences, of which none is half of all sequences ahead of the other.
    pub const fn later(a: u64, b: u64) -> u64 {
        if (b.wrapping_sub(a) & Self::SEQ) <= Self::SEQ / 2 { b } else { a }
    }

    /// The next value of the word, owned by `holder`.
    #[inline]
    pub const fn then(self, holder: Holder) -> Self {
        Self { holder, seq: (self.seq + 1) & Self::SEQ }
    }
}

/// Which slot of which ring an envelope is queued in. Written by the envelope's owner before it queues it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The block that contains the ring.
    pub ring: BlockId,
    /// The index of the slot.
    pub slot: u32,
}

impl Place {
    /// As a word.
    pub const fn pack(self) -> u64 {
        self.slot as u64 | (self.ring as u64) << 32
    }

    /// From a word.
    pub const fn unpack(w: u64) -> Self {
        Self { ring: (w >> 32) as u32, slot: w as u32 }
    }
}
