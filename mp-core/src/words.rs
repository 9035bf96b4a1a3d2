//! The shared words: which fields they have, in which bits.
//!
//! | word | fields (low bits first) |
//! |---|---|
//! | [`Member`] (a tag in other words) | slot 12, epoch 12 |
//! | [`Seat`] | kind 2 (`FREE`, `MEMBER`, `ENVELOPE`, `BLOCK`), member / envelope / block 24 |
//! | [`BlockState`] | state 2 (`FREE`, `LIVE`, `BUSY`), kind 4, member 24, version 34 |
//! | [`Owner`] (of an envelope) | state 2 (`FREE`, `MEMBER`, `QUEUED`, `LEASED`), member 24, sequence 38 |
//! | [`Place`] (of a queued envelope) | slot index 32, ring's block 32 |
//!
//! Sequences and versions count how often a word changed. They are compared for equality only, so that a wrap
//! matters only to a process that slept through an exact multiple of 2^34 (2^38) changes of one single word
//! and wakes at that very instant.

mod seat_at;

use std::fmt;

pub use seat_at::SeatAt;

const fn bits(v: u64, at: u32, len: u32) -> u64 {
    (v >> at) & ((1 << len) - 1)
}

/// Which process: slot in the member table, and the epoch of that slot's present tenant.
///
/// Slots are reused only after every word that names the old tenant was swept; the epoch is a second check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(u32);

impl Member {
    /// How many bits a tag takes.
    pub const BITS: u32 = 24;
    /// How many slots a member table can have.
    pub const MAX_SLOTS: u32 = 1 << 12;

    /// The tenant of `slot` in its `epoch` (modulo 4096).
    pub const fn new(slot: u32, epoch: u32) -> Self {
        Self((slot & 0xfff) | (epoch & 0xfff) << 12)
    }

    /// Its slot in the member table.
    pub const fn slot(self) -> u32 {
        self.0 & 0xfff
    }

    /// The epoch of the slot, modulo 4096.
    pub const fn epoch(self) -> u32 {
        self.0 >> 12
    }

    /// As bits of another word.
    pub const fn raw(self) -> u64 {
        self.0 as u64
    }

    /// From the bits of another word.
    pub const fn from_raw(raw: u64) -> Self {
        Self((raw & 0xff_ffff) as u32)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {}.{}", self.slot(), self.epoch())
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The index of an envelope in the envelope table.
pub type EnvelopeId = u32;
/// The index of a block in the block table.
pub type BlockId = u32;

/// Who holds a block through one of its seats.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seat {
    /// Nobody.
    Free,
    /// A process: its handles are counted inside that process.
    Member(Member),
    /// A message on its way.
    Envelope(EnvelopeId),
    /// Another block, of which this one is a part.
    Block(BlockId),
}

impl Seat {
    /// As a word.
    pub const fn pack(self) -> u64 {
        match self {
            Seat::Free => 0,
            Seat::Member(m) => 1 | m.raw() << 2,
            Seat::Envelope(e) => 2 | (e as u64) << 2,
            Seat::Block(b) => 3 | (b as u64) << 2,
        }
    }

    /// Whether the seat that is this word is free.
    #[inline]
    pub const fn is_free(w: u64) -> bool {
        w & 3 == 0
    }

    /// From a word.
    pub const fn unpack(w: u64) -> Self {
        match w & 3 {
            0 => Seat::Free,
            1 => Seat::Member(Member::from_raw(w >> 2)),
            2 => Seat::Envelope((w >> 2) as u32),
            _ => Seat::Block((w >> 2) as u32),
        }
    }
}

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
    /// Elements that nobody writes any more: never [`Data`](Self::Data) again as long as the block lives.
    Frozen = 4,
    /// A structure that this layer made, and whose header says which: it can't be passed off as elements, nor elements
    /// as it.
    Object = 5,
    /// Elements that anybody may write: never [`Data`](Self::Data) again as long as the block lives.
    Shared = 8,
}

impl Kind {
    /// A look in a table: done several times for every allocation.
    #[inline]
    const fn from_bits(b: u64) -> Self {
        const KINDS: [Kind; 16] = {
            let mut kinds = [Kind::Data; 16];
            let named = [Kind::Ring, Kind::Seats, Kind::Spill, Kind::Frozen, Kind::Object, Kind::Shared];
            let mut i = 0;
            while i < named.len() {
                kinds[named[i] as usize] = named[i];
                i += 1;
            }
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
    /// One member is making it live, or is freeing it; if that member is dead, whoever sweeps it frees it.
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

/// Who owns an envelope.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Holder {
    /// Nobody: it may be claimed.
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
    /// Who owns it.
    pub holder: Holder,
    /// Counts every change of this word.
    pub seq: u64,
}

impl Owner {
    const SEQ_AT: u32 = 26;
    /// Leases of nobody: no member has such a slot, there are fewer.
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

    /// The next value of the word, owned by `holder`.
    #[inline]
    pub const fn then(self, holder: Holder) -> Self {
        Self { holder, seq: (self.seq + 1) & (u64::MAX >> Self::SEQ_AT) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_fields() {
        let m = Member::new(4095, 4097);
        assert_eq!((m.slot(), m.epoch()), (4095, 1));
        for s in [Seat::Free, Seat::Member(m), Seat::Envelope(0xff_ffff), Seat::Block(0xff_fffe)] {
            assert_eq!(Seat::unpack(s.pack()), s);
        }
        for life in [Life::Free, Life::Live, Life::Busy(m)] {
            let b = BlockState { life, kind: Kind::Spill, version: (1 << 34) - 1 };
            assert_eq!(BlockState::unpack(b.pack()), b);
            assert_eq!(BlockState::unpack(b.pack().wrapping_add(BlockState::BUMP)), b.bumped());
            assert_eq!(b.bumped().version, 0);
        }
        let m2 = Member::new(1023, 4095);
        let leases = [Holder::Leased(m2), Holder::Returned, Holder::Undeliverable];
        for holder in [Holder::Free, Holder::Member(m), Holder::Queued].into_iter().chain(leases) {
            let o = Owner { holder, seq: (1 << 38) - 1 };
            assert_eq!(Owner::unpack(o.pack()), o);
            assert_eq!(o.then(Holder::Free).seq, 0);
        }
        for seq in [0, 5, (1 << 38) - 1] {
            let queued = Owner { holder: Holder::Queued, seq };
            for taker in [Holder::Member(m), Holder::Leased(m2)] {
                let added = queued.pack().wrapping_add(Owner::queued_to(taker));
                assert_eq!(Owner::unpack(added), queued.then(taker));
            }
        }
        for seat in [SeatAt::inline(5), SeatAt::paged(0xff_fffe, 255), SeatAt::paged(0, 3)] {
            let a = Attach { block: 0xff_fffe, seat, access: Access::Shared, tag: 31 };
            assert_eq!(Attach::unpack(a.pack()), Some(a));
        }
        assert_eq!(SeatAt::inline(5).page(), Err(5));
        assert_eq!(SeatAt::paged(7, 255).page(), Ok((7, 255)));
        assert_eq!(Attach::unpack(0), None);
        let meta = (0..200).fold(5 << 32 | 77, |meta, _| delivered(meta));
        assert_eq!((deliveries(meta), meta >> 32, meta & 0xffff), (127, 5, 77));
        let p = Place { ring: 7, slot: u32::MAX };
        assert_eq!(Place::unpack(p.pack()), p);
    }
}
