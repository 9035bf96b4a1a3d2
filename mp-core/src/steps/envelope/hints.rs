//! Groups of envelopes with hints: one bit of the group map for each, so that a search does not check all
//! groups.
//!
//! A freeing process writes the hint and then checks the bit. A taker that finds no hint clears the bit and
//! then checks the hints again. A full barrier separates the two accesses of each, so one of them sees the
//! other's write, and a group with hints has its bit.
//!
//! | killed process | left behind |
//! |---|---|
//! | a freeing process, between the hint and the bit | free envelopes that are not found until another one of the group is freed, or a put has searched all groups |
//! | a taker, between the bit and its second check | the same |
//!
//! Checked by `loom_group_is_marked_and_unmarked`.

use crate::mem::{Mem, Steps, Word};

/// Positions of a group's words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HintsAt {
    /// Hints.
    pub hints: Word,
    /// Word of the group map that contains its bit.
    pub map: Word,
    /// Bit of the group.
    pub bit: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    First,
    Load,
    Mark,
}

/// Sets hints of a group, and its bit if it is not set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HintGroup {
    at: HintsAt,
    hints: u64,
    pc: Pc,
}

impl HintGroup {
    /// Creates the steps to set these hints.
    pub fn new(at: HintsAt, hints: u64) -> Self {
        Self { at, hints, pc: Pc::First }
    }
}

impl Steps for HintGroup {
    type Out = ();

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        match self.pc {
            // Always written, even if they seem to be set: a taker may be clearing them.
            Pc::First => {
                m.or(self.at.hints, self.hints);
                m.fence_after_rmw();
                self.pc = Pc::Load;
            }
            // Usually only read: processes that take and free envelopes of one group share the word.
            Pc::Load if m.load(self.at.map) & self.at.bit != 0 => return Some(()),
            Pc::Load => self.pc = Pc::Mark,
            Pc::Mark => {
                m.or(self.at.map, self.at.bit);
                return Some(());
            }
        }
        None
    }
}

/// Clears the bit of a group in which no hint was found, and sets it again if there is a hint by then.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnmarkGroup {
    at: HintsAt,
    pc: Pc,
}

impl UnmarkGroup {
    /// Creates the steps to clear its bit.
    pub fn new(at: HintsAt) -> Self {
        Self { at, pc: Pc::First }
    }
}

impl Steps for UnmarkGroup {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        match self.pc {
            Pc::First => {
                m.and(self.at.map, !self.at.bit);
                m.fence_after_rmw();
                self.pc = Pc::Load;
            }
            Pc::Load if m.load(self.at.hints) == 0 => return Some(()),
            Pc::Load => self.pc = Pc::Mark,
            Pc::Mark => {
                m.or(self.at.map, self.at.bit);
                return Some(());
            }
        }
        None
    }
}
