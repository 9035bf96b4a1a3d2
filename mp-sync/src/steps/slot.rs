//! Steps of slots. A slot is a word that names the holder of one object: a permit, a place among readers, or
//! a place in a queue of waiters.
//!
//! A plain counter can't be repaired after a death, because counting and recording the owner are two steps. A
//! slot is changed by one compare-and-swap that does both.
//!
//! # Words and their transitions
//! | word | states | changed by |
//! |---|---|---|
//! | slot: `state 2, member 24, sequence 16, thread 22` | [`EMPTY`] or [`OPEN`]: no holder | a thread that claims it → held by that thread, sequence + 1 |
//! |  | held by `m` | `m` → no holder, or another state held by `m`; if `m` is dead, any process that read exactly this word → no holder |
//! | used: number of slots ever in use | only grows | a thread that finds no slot, **before** it takes a new one |
//!
//! # Effect of a death
//! | killed | remaining state | next search |
//! |---|---|---|
//! | before the swap | nothing; `used` may be one too high | loads one slot more |
//! | holding | a slot that names a dead process | releases the slot by a swap of exactly the word that it read |
//! | after the release, before it woke a waiter | a free slot | sleepers check within a poll interval |
//! | releasing a dead member's slot | the slot, unchanged or released | as in one of the two rows above |
//!
//! A process may decide to release a dead member's slot, be stopped, and continue a week later. If another
//! thread has claimed the slot meanwhile, the sequence has changed, so the swap of the late process fails.

use mp_core::mem::{Mem, Steps, Word};
use mp_core::words::Member;
pub use mp_core::words::holder_slot::{EMPTY, HELD, HolderSlot, OPEN, RETAINED, set};

/// Location of a structure's slots.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slots {
    /// Word with the number of slots ever in use.
    pub used: Word,
    /// First slot. The other slots follow.
    pub first: Word,
    /// Maximum number of slots.
    pub limit: u32,
}

impl Slots {
    /// Returns the word of slot `i`.
    pub const fn at(&self, i: u32) -> Word {
        self.first.plus(i as u64)
    }
}

/// A slot and its observed content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ObservedSlot {
    /// Index of the slot.
    pub index: u32,
    /// Content of the slot when its word was last loaded or changed.
    pub slot: HolderSlot,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Used,
    Load,
    Swap(HolderSlot),
    Grow,
}

/// Takes a slot. Ends with `None` if no slot is in the required state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClaimSlot {
    slots: Slots,
    from: u8,
    to: (u8, Member, u32),
    grows: bool,
    used: u32,
    at: u32,
    visited: u32,
    pc: Pc,
}

impl ClaimSlot {
    /// Creates the steps that change a slot from the state `from` to `to` (state, member, thread). The search
    /// begins at slot `start`.
    pub fn new(slots: Slots, from: u8, to: (u8, Member, u32), start: u32) -> Self {
        Self { slots, from, to, grows: false, used: 0, at: start, visited: 0, pc: Pc::Used }
    }

    /// Extends the claim to slots that were never in use.
    #[must_use]
    pub fn or_grow(self) -> Self {
        Self { grows: true, ..self }
    }
}

impl Steps for ClaimSlot {
    type Out = Option<ObservedSlot>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<ObservedSlot>> {
        match self.pc {
            Pc::Used => {
                self.used = (m.load(self.slots.used) as u32).min(self.slots.limit);
                self.visited = 0;
                self.at = if self.at < self.used { self.at } else { 0 };
                self.pc = if self.used == 0 { Pc::Grow } else { Pc::Load };
            }
            Pc::Load => {
                let slot = HolderSlot::unpack(m.load(self.slots.at(self.at)));
                if slot.state == self.from {
                    self.pc = Pc::Swap(slot);
                } else {
                    return self.next();
                }
            }
            Pc::Swap(slot) => {
                let (state, member, thread) = self.to;
                let mine = slot.then(state, member, thread);
                if m.cas(self.slots.at(self.at), slot.pack(), mine.pack()).is_ok() {
                    return Some(Some(ObservedSlot { index: self.at, slot: mine }));
                }
                return self.next();
            }
            Pc::Grow => {
                let used = self.used;
                if !self.grows || used >= self.slots.limit {
                    return Some(None);
                }
                // If another thread has added a slot first, both search that slot.
                if m.cas(self.slots.used, self.used.into(), u64::from(self.used) + 1).is_ok() {
                    (self.at, self.visited, self.used) = (self.used, 0, self.used + 1);
                    self.pc = Pc::Load;
                } else {
                    self.pc = Pc::Used;
                }
            }
        }
        None
    }
}

impl ClaimSlot {
    fn next(&mut self) -> Option<Option<ObservedSlot>> {
        self.visited += 1;
        self.at = if self.at + 1 < self.used { self.at + 1 } else { 0 };
        let visited = self.visited;
        self.pc = if visited < self.used { Pc::Load } else { Pc::Grow };
        None
    }
}

/// Changes a slot from exactly one value to another. Ends with `true` on success.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReplaceSlot {
    at: Word,
    from: u64,
    to: u64,
}

impl ReplaceSlot {
    /// Creates the steps that change the slot at `at`.
    pub fn new(at: Word, from: HolderSlot, to: HolderSlot) -> Self {
        Self { at, from: from.pack(), to: to.pack() }
    }
}

impl Steps for ReplaceSlot {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        Some(m.cas(self.at, self.from, self.to).is_ok())
    }
}

/// Finds the next slot that is in one of the given states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FindSlot {
    slots: Slots,
    states: u8,
    at: u32,
    used: Option<u32>,
}

impl FindSlot {
    /// Creates the steps that search for slots in `states` (a [`set`]), from slot `start` on. The search
    /// begins with a full memory barrier. So a holder that the search misses reads the value that the caller
    /// has just written by a read-modify-write.
    pub fn new(slots: Slots, states: u8, start: u32) -> Self {
        Self { slots, states, at: start, used: None }
    }
}

impl Steps for FindSlot {
    type Out = Option<ObservedSlot>;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Option<ObservedSlot>> {
        let Some(used) = self.used else {
            m.fence_after_rmw();
            self.used = Some((m.load(self.slots.used) as u32).min(self.slots.limit));
            return None;
        };
        if self.at >= used {
            return Some(None);
        }
        let (index, slot) = (self.at, HolderSlot::unpack(m.load(self.slots.at(self.at))));
        self.at += 1;
        slot.is_in(self.states).then_some(Some(ObservedSlot { index, slot }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_slots_are_claimed_once_and_grow_up_to_limit() {
        let m = mp_core::mem::HeapMem::new(8);
        let slots = Slots { used: Word::at(0), first: Word::at(8), limit: 3 };
        let me = Member::new(1, 1);
        let claim = |grows: bool| {
            let steps = ClaimSlot::new(slots, EMPTY, (HELD, me, 7), 5);
            mp_core::mem::run(if grows { steps.or_grow() } else { steps }, &m)
        };
        assert_eq!(claim(false), None);
        let got: Vec<u32> = (0..3).map(|_| claim(true).unwrap().index).collect();
        assert_eq!(got, [0, 1, 2]);
        assert_eq!(claim(true), None);
        let find = |from| mp_core::mem::run(FindSlot::new(slots, set(&[HELD]), from), &m);
        let second = find(1).unwrap();
        assert_eq!((second.index, second.slot.member, second.slot.thread), (1, me, 7));
        let back = ReplaceSlot::new(slots.at(1), second.slot, second.slot.vacated(EMPTY));
        assert!(mp_core::mem::run(back, &m) && !mp_core::mem::run(back, &m));
        assert_eq!(find(1).unwrap().index, 2);
        assert_eq!(claim(false).unwrap().index, 1);
    }
}
