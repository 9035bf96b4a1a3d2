//! Groups of envelopes that have hints: a bit of the group map for each, so that a search does not look at
//! all groups.
//!
//! A freer writes the hint and then looks at the bit; a taker that finds no hint clears the bit and then
//! looks at the hints again. A full barrier is between the two accesses of each: so one of them sees what the
//! other has written, and a group with hints has its bit.
//!
//! | killed | left |
//! |---|---|
//! | a freer, between the hint and the bit | free envelopes that are not found until another one of the group is freed, or a put has searched all groups |
//! | a taker, between the bit and its second look | the same |
//!
//! Checked by `loom_group_is_marked_and_unmarked`.

use crate::mem::{Mem, Steps, Word};

/// Words of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HintsAt {
    /// The hints.
    pub hints: Word,
    /// The word of the group map with its bit.
    pub map: Word,
    /// Bit of the group.
    pub bit: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    First,
    Look,
    Mark,
}

/// Sets hints of a group, and its bit if that is not set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HintGroup {
    at: HintsAt,
    hints: u64,
    pc: Pc,
}

impl HintGroup {
    /// To set these hints.
    pub fn new(at: HintsAt, hints: u64) -> Self {
        Self { at, hints, pc: Pc::First }
    }
}

impl Steps for HintGroup {
    type Out = ();

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        match self.pc {
            // Always written, never skipped because they seem to be set: a taker may clear them.
            Pc::First => {
                m.or(self.at.hints, self.hints);
                m.fence_after_rmw();
                self.pc = Pc::Look;
            }
            // Only read as a rule: processes that take and free envelopes of one group share the word.
            Pc::Look if m.load(self.at.map) & self.at.bit != 0 => return Some(()),
            Pc::Look => self.pc = Pc::Mark,
            Pc::Mark => {
                m.or(self.at.map, self.at.bit);
                return Some(());
            }
        }
        None
    }
}

/// Clears the bit of a group in which no hint was seen, and sets it again if there is a hint by then.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnmarkGroup {
    at: HintsAt,
    pc: Pc,
}

impl UnmarkGroup {
    /// To clear its bit.
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
                self.pc = Pc::Look;
            }
            Pc::Look if m.load(self.at.hints) == 0 => return Some(()),
            Pc::Look => self.pc = Pc::Mark,
            Pc::Mark => {
                m.or(self.at.map, self.at.bit);
                return Some(());
            }
        }
        None
    }
}
