//! Layout of the shared words: their fields and bits.
//!
//! | word | fields (low bits first) |
//! |---|---|
//! | [`Member`] (a tag in other words) | slot 12, epoch 12 |
//! | [`Seat`] | kind 2 (`FREE`, `MEMBER`, `ENVELOPE`, `BLOCK`), member / envelope / block 24 |
//! | [`BlockState`] | state 2 (`FREE`, `LIVE`, `BUSY`), kind 4, member 24, version 34 |
//! | [`Owner`] (of an envelope) | state 2 (`FREE`, `MEMBER`, `QUEUED`, `LEASED`), member 24, sequence 38 |
//! | [`GroupState`] (of 64 envelopes) | state 2 (`ABSENT`, `EMPTYING`, `IN USE`, `FILLING`), member 24, base of the sequences 38 |
//! | [`RingPlace`] (of a queued envelope) | slot index 32, ring's block 31, "enclosing a small message" 1 |
//! | [`Tenancy`] (of a member's slot) | state 2 (`FREE`, `LIVE`, `DEAD`, `RECLAIMING`), recoveries begun 29 and vacating 1, or reclaiming member 24, epoch 32 |
//! | [`Tick`] | value 52 (count 36, epoch 16), clock 12 |
//! | [`ClockState`] | phase 3 (`FREE`, `LIVE`, `LEFT`, `ENDING`, `DEAD`, `CLAIMING`), member 24, epoch 16, first epoch that a death ended 16 |
//! | [`RecoveringSlots`] (of a member) | "is recovering" 1, first slot 31, last slot 32 |
//! | [`HolderSlot`](holder_slot::HolderSlot) (of a permit, a reader, a waiter at a condition) | state 2, member 24, sequence 16, thread 22 |
//! | [`WaitMark`] (of a thread's wait note) | state 2 (`FREE`, `WRITING`, `WAITING`), thread 22, sequence 40 |
//! | [`WaitGoal`] (of a wait note, two words) | kind 8, lock 56; readers' count 8, limit 24, slots 32 |
//!
//! Sequences and versions count the changes of a word. They are compared for equality. A wrap matters only if
//! a process is stopped during an exact multiple of 2^34 (or 2^38) changes of one single word. Only one
//! comparison uses their order: it finds the latest sequence of 64 envelopes when their memory is returned
//! ([`Owner::later`]), and assumes that these sequences are less than 2^37 changes apart.
//!
//! # Stability
//! Public for the models, for verification and for the other crates of this project. Not covered by semantic
//! versioning: any release may change or remove an item.

mod block_state;
mod clock;
mod dtype;
mod envelope;
pub mod holder_slot;
mod seat;
mod tenancy;
mod wait_note;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use block_state::{BlockKind, BlockLife, BlockState};
pub use clock::{ClockPhase, ClockState, END_OF_TICKS, Tick};
pub use dtype::DType;
pub use envelope::{GroupState, Holder, Owner, RingPlace, delivered, deliveries, with_deliveries};
pub use seat::{Access, Attachment, Grant, SeatAt};
pub use tenancy::{CurrentUpdate, Presence, RecoveringSlots, Tenancy};
pub use wait_note::{LockKind, ReadersAt, WaitGoal, WaitMark, WaitState};

const fn bits(v: u64, at: u32, len: u32) -> u64 {
    (v >> at) & ((1 << len) - 1)
}

/// Identity of a process: its slot in the member table, and the epoch of that slot.
///
/// A slot is reused only when no block, envelope or queue names its old tenant: the reclaim reads all of
/// them. The words of locks and permits may still name the old tenant: the epoch distinguishes the old tenant
/// from the next 4095 tenants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member(u32);

impl Member {
    /// Number of bits of a tag.
    pub const BITS: u32 = 24;
    /// Maximum number of slots in a member table.
    pub const MAX_SLOTS: u32 = 1 << 12;

    /// Returns the tag of the tenant of `slot` in its `epoch` (modulo 4096).
    pub const fn new(slot: u32, epoch: u32) -> Self {
        Self((slot & 0xfff) | (epoch & 0xfff) << 12)
    }

    /// Returns the slot in the member table.
    pub const fn slot(self) -> u32 {
        self.0 & 0xfff
    }

    /// Returns the epoch of the slot, modulo 4096.
    pub const fn epoch(self) -> u32 {
        self.0 >> 12
    }

    /// Returns the tag as bits of another word.
    pub const fn raw(self) -> u64 {
        self.0 as u64
    }

    /// Returns the process for an error message: `process 4711 (member 3.1)`. A `pid` of 0 means unknown.
    pub const fn process(self, pid: u32) -> MemberProcess {
        MemberProcess { member: self, pid }
    }

    /// Creates the tag from the bits of another word.
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

/// Text that identifies a process in messages: the result of [`Member::process`].
#[derive(Clone, Copy, Debug)]
pub struct MemberProcess {
    member: Member,
    pid: u32,
}

impl fmt::Display for MemberProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, pid } = self;
        match pid {
            0 => write!(f, "{member} (process id not known)"),
            pid => write!(f, "process {pid} ({member})"),
        }
    }
}

/// Index of an envelope in the envelope table.
pub type EnvelopeId = u32;
/// Index of a block in the block table.
pub type BlockId = u32;

/// Holder that a seat of a block names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seat {
    /// No holder.
    Free,
    /// Process, by its member. The number of the process's handles is private to the process.
    Member(Member),
    /// Message in flight, by its envelope.
    Envelope(EnvelopeId),
    /// Another block: a child of this block. The seat 0 of a page of seats names the block to which the seats
    /// belong.
    Block(BlockId),
}

impl Seat {
    /// Encodes the seat as a word.
    pub const fn pack(self) -> u64 {
        match self {
            Seat::Free => 0,
            Seat::Member(m) => 1 | m.raw() << 2,
            Seat::Envelope(e) => 2 | (e as u64) << 2,
            Seat::Block(b) => 3 | (b as u64) << 2,
        }
    }

    /// Returns `true` if this word is a free seat.
    #[inline]
    pub const fn is_free(w: u64) -> bool {
        w & 3 == 0
    }

    /// Creates the seat from a word.
    pub const fn unpack(w: u64) -> Self {
        match w & 3 {
            0 => Seat::Free,
            1 => Seat::Member(Member::from_raw(w >> 2)),
            2 => Seat::Envelope((w >> 2) as u32),
            _ => Seat::Block((w >> 2) as u32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_and_members_round_trip() {
        let m = Member::new(4095, 4097);
        assert_eq!((m.slot(), m.epoch()), (4095, 1));
        assert_eq!(m.process(4711).to_string(), "process 4711 (member 4095.1)");
        assert_eq!(m.process(0).to_string(), "member 4095.1 (process id not known)");
        for s in [Seat::Free, Seat::Member(m), Seat::Envelope(0xff_ffff), Seat::Block(0xff_fffe)] {
            assert_eq!(Seat::unpack(s.pack()), s);
        }
        for life in [BlockLife::Free, BlockLife::Live, BlockLife::Busy(m)] {
            let b = BlockState { life, kind: BlockKind::Spill, version: (1 << 34) - 1 };
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
            let a = Attachment { block: 0xff_fffe, seat, grant: Grant::new(Access::Shared, 31) };
            assert_eq!(Attachment::unpack(a.pack()), Some(a));
        }
        assert_eq!(SeatAt::inline(5).page(), Err(5));
        assert_eq!(SeatAt::paged(7, 255).page(), Ok((7, 255)));
        assert_eq!(Attachment::unpack(0), None);
        let meta = (0..200).fold(5 << 32 | 77, |meta, _| delivered(meta));
        assert_eq!((deliveries(meta), meta >> 32, meta & 0xffff), (127, 5, 77));
        let p = RingPlace { ring: 7, slot: u32::MAX };
        assert_eq!(RingPlace::unpack(p.pack()), p);
        assert_eq!(RingPlace::unpack(p.pack() | RingPlace::ENCLOSING), p);
    }
}
