//! A word that names the holder of one thing: a permit, a place among readers, a place in the line of waiters.
//!
//! Which process changes it, and what a death leaves, stands where the structures are that are made of such words (in `mp-sync`,
//! `steps::slot`). Here are its fields: a search for cycles of waiters reads them, too.

use super::Member;

/// Nothing is there. What fresh memory holds.
pub const EMPTY: u8 = 0;
/// Something is there, and has no holder.
pub const OPEN: u8 = 1;
/// A member has it.
pub const HELD: u8 = 2;
/// A member has it, in another way than [`HELD`]; each structure says in which.
pub const KEPT: u8 = 3;

/// What a slot says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// [`EMPTY`], [`OPEN`], [`HELD`] or [`KEPT`].
    pub state: u8,
    /// The member that has it, if one does.
    pub member: Member,
    /// Which thread of it, where that matters; at most 22 bits.
    pub thread: u32,
    /// How often it changed, modulo 2^16. Compared for equality only.
    pub sequence: u16,
}

const SEQUENCE_AT: u32 = 2 + Member::BITS;
const THREAD_AT: u32 = SEQUENCE_AT + 16;

impl Slot {
    /// As a word. Its low half, on which one may sleep, has the state, the member and some of the sequence.
    pub const fn pack(self) -> u64 {
        self.state as u64 & 3
            | self.member.raw() << 2
            | (self.sequence as u64) << SEQUENCE_AT
            | (self.thread as u64) << THREAD_AT
    }

    /// From a word.
    pub const fn unpack(w: u64) -> Self {
        Self {
            state: (w & 3) as u8,
            member: Member::from_raw(w >> 2),
            thread: (w >> THREAD_AT) as u32,
            sequence: (w >> SEQUENCE_AT) as u16,
        }
    }

    /// The same slot after a change: in `state`, of `member` and its `thread`.
    #[must_use]
    pub fn then(self, state: u8, member: Member, thread: u32) -> Self {
        Self { state, member, thread, sequence: self.sequence.wrapping_add(1) }
    }

    /// The same slot after a change of its state alone.
    #[must_use]
    pub fn into_state(self, state: u8) -> Self {
        self.then(state, self.member, self.thread)
    }

    /// The same slot after it was given back.
    #[must_use]
    pub fn given_back(self, state: u8) -> Self {
        self.then(state, Member::from_raw(0), 0)
    }

    /// Whether the state is in the set of [`set`].
    pub const fn is_in(self, states: u8) -> bool {
        states >> self.state & 1 == 1
    }
}

/// A set of states.
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
    fn words_keep_their_fields() {
        let slot =
            Slot { state: KEPT, member: Member::new(4095, 4094), thread: (1 << 22) - 1, sequence: u16::MAX };
        assert_eq!(Slot::unpack(slot.pack()), slot);
        assert_eq!(slot.into_state(HELD).sequence, 0);
        assert_eq!(slot.given_back(EMPTY).member, Member::from_raw(0));
        assert!(slot.is_in(set(&[HELD, KEPT])) && !slot.is_in(set(&[EMPTY, OPEN, HELD])));
        assert_eq!(Slot::unpack(0).state, EMPTY);
        // Waking is seen on the low half: the state and the sequence are in it.
        assert_ne!(slot.pack() as u32, slot.into_state(HELD).pack() as u32);
    }
}
