//! What is in a ring's block, byte by byte.
//!
//! | offset | what | written |
//! |---|---|---|
//! | 0 | magic | last of all, by the maker |
//! | 8 | number of slots | by the maker |
//! | 16 | fingerprint of the message type | by the maker |
//! | 24, 32 | the last process that ended, or dropped its last handle: tag + 1, pid | by it, or by sweepers |
//! | 40 | length of the type's name; the name follows, cut at 208 bytes | by the maker |
//! | 256 | head hint | by consumers |
//! | 384 | tail hint | by producers and closers |
//! | 512 | parking: not empty | |
//! | 640 | parking: not full | |
//! | 768 | slots, 8 bytes each | |
//!
//! Hot words are 128 bytes apart: neighbours would be fetched together.

use mp_core::mem::{Mem, Word};
use mp_core::words::{BlockId, Member};

use crate::ring::{RingAt, Slot, SlotState, Ticket};

const MAGIC: u64 = u64::from_le_bytes(*b"mp-ring1");
const NAME: u64 = 48;
const NAME_MAX: usize = 208;
const HEAD: u64 = 256;
const TAIL: u64 = 384;
const SLOTS: u64 = 768;

/// The words of one ring's block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    base: Word,
}

impl Header {
    pub(crate) const fn at(base: Word) -> Self {
        Self { base }
    }

    const fn word(self, byte: u64) -> Word {
        self.base.plus(byte / 8)
    }

    /// How many bytes a ring of so many slots needs.
    pub(crate) const fn bytes(slots: u32) -> u64 {
        SLOTS + 8 * slots as u64
    }

    pub(crate) const fn not_empty(self) -> Word {
        self.word(512)
    }
    pub(crate) const fn not_full(self) -> Word {
        self.word(640)
    }

    /// Where the ring's words are.
    pub(crate) const fn ring(self, block: BlockId, slots: u32) -> RingAt {
        RingAt { block, slots, head: self.word(HEAD), tail: self.word(TAIL), first: self.word(SLOTS) }
    }

    /// Makes an empty ring in fresh memory. Magic last.
    pub(crate) fn write<M: Mem>(self, m: &M, block: BlockId, slots: u32, fingerprint: u64, type_name: &str) {
        for i in 0..SLOTS / 8 {
            m.store_relaxed(self.base.plus(i), 0);
        }
        m.store_relaxed(self.word(8), u64::from(slots));
        m.store_relaxed(self.word(16), fingerprint);
        let name = &type_name.as_bytes()[..type_name.len().min(NAME_MAX)];
        m.store_relaxed(self.word(40), name.len() as u64);
        for (i, part) in name.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            m.store_relaxed(self.word(NAME).plus(i as u64), u64::from_le_bytes(bytes));
        }
        let ring = self.ring(block, slots);
        let empty = Slot { lap: 1, state: SlotState::Empty }.pack();
        (0..slots).for_each(|i| m.store_relaxed(ring.slot(i), empty));
        let first = Ticket { lap: 1, index: 0 }.pack();
        m.store_relaxed(ring.head, first);
        m.store_relaxed(ring.tail, first);
        m.store(self.base, MAGIC);
    }

    /// The ring in `len` bytes here, if there is one.
    pub(crate) fn read<M: Mem>(self, m: &M, block: BlockId, len: u64) -> Option<RingAt> {
        if len < Self::bytes(1) || m.load(self.base) != MAGIC {
            return None;
        }
        let slots = u32::try_from(m.load_relaxed(self.word(8))).ok()?;
        (slots > 0 && slots <= RingAt::MAX_SLOTS && Self::bytes(slots) <= len)
            .then(|| self.ring(block, slots))
    }

    pub(crate) fn fingerprint<M: Mem>(self, m: &M) -> u64 {
        m.load_relaxed(self.word(16))
    }

    /// The name of the message type.
    pub(crate) fn type_name<M: Mem>(self, m: &M) -> String {
        let len = (m.load_relaxed(self.word(40)) as usize).min(NAME_MAX);
        let words = (0..len.div_ceil(8) as u64).map(|i| m.load_relaxed(self.word(NAME).plus(i)));
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.truncate(len);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Notes that a holder is gone.
    pub(crate) fn note_gone<M: Mem>(self, m: &M, dead: Member, pid: u32) {
        m.store(self.word(32), u64::from(pid));
        m.store(self.word(24), dead.raw() + 1);
    }

    /// The last holder that went, and its pid.
    pub(crate) fn last_gone<M: Mem>(self, m: &M) -> Option<(Member, u32)> {
        let tag = m.load(self.word(24)).checked_sub(1)?;
        Some((Member::from_raw(tag), m.load(self.word(32)) as u32))
    }
}
