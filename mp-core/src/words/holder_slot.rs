//! Word that names the holder of a permit, a place among readers, or a place in the line of waiters.
//!
//! The structures that consist of such words define which process changes them, and the effects of a death
//! (in `mp-sync`, `steps::slot`). The fields are defined here, because the search for cycles of waiters reads
//! them, too.

use super::Member;

/// Unused: the contents of fresh memory.
pub const EMPTY: u8 = 0;
/// In use, without a holder.
pub const OPEN: u8 = 1;
/// Held by a member.
pub const HELD: u8 = 2;
/// Held by a member in a different way than [`HELD`], which each structure defines.
pub const RETAINED: u8 = 3;

/// Decoded word of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HolderSlot {
    /// [`EMPTY`], [`OPEN`], [`HELD`] or [`RETAINED`].
    pub state: u8,
    /// Member that holds the slot, if it is held.
    pub member: Member,
    /// Thread of the member, in structures that record it; at most 22 bits.
    pub thread: u32,
    /// Number of changes, modulo 2^16. Compared for equality only.
    pub sequence: u16,
}

const SEQUENCE_AT: u32 = 2 + Member::BITS;
const THREAD_AT: u32 = SEQUENCE_AT + 16;

impl HolderSlot {
    /// Encodes the slot as a word. The low half of the word, on which threads may sleep, contains the state,
    /// the member and some bits of the sequence.
    pub const fn pack(self) -> u64 {
        self.state as u64 & 3
            | self.member.raw() << 2
            | (self.sequence as u64) << SEQUENCE_AT
            | (self.thread as u64) << THREAD_AT
    }

    /// Creates the slot from a word.
    pub const fn unpack(w: u64) -> Self {
        Self {
            state: (w & 3) as u8,
            member: Member::from_raw(w >> 2),
            thread: (w >> THREAD_AT) as u32,
            sequence: (w >> SEQUENCE_AT) as u16,
        }
    }

    /// Returns the slot after a change to `state`, held by `thread` of `member`.
    #[must_use]
    pub fn then(self, state: u8, member: Member, thread: u32) -> Self {
        Self { state, member, thread, sequence: self.sequence.wrapping_add(1) }
    }

    /// Returns the slot after a change of its state, with the same holder.
    #[must_use]
    pub fn into_state(self, state: u8) -> Self {
        self.then(state, self.member, self.thread)
    }

    /// Returns the slot after a change to `state` without a holder.
    #[must_use]
    pub fn vacated(self, state: u8) -> Self {
        self.then(state, Member::from_raw(0), 0)
    }

    /// Returns `true` if the state is in a set created by [`set`].
    pub const fn is_in(self, states: u8) -> bool {
        states >> self.state & 1 == 1
    }
}

/// Creates a set of states for [`HolderSlot::is_in`].
pub const fn set(states: &[u8]) -> u8 {
    let (mut bits, mut i) = (0, 0);
    while i < states.len() {
        bits |= 1 << states[i];
        i += 1;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_slots_round_trip() {
        let slot = HolderSlot {
            state: RETAINED,
            member: Member::new(4095, 4094),
            thread: (1 << 22) - 1,
            sequence: u16::MAX,
        };
        assert_eq!(HolderSlot::unpack(slot.pack()), slot);
        assert_eq!(slot.into_state(HELD).sequence, 0);
        assert_eq!(slot.vacated(EMPTY).member, Member::from_raw(0));
        assert!(slot.is_in(set(&[HELD, RETAINED])) && !slot.is_in(set(&[EMPTY, OPEN, HELD])));
        assert_eq!(HolderSlot::unpack(0).state, EMPTY);
        // Sleepers compare the low half, so it must contain the state and the sequence.
        assert_ne!(slot.pack() as u32, slot.into_state(HELD).pack() as u32);
    }
}
