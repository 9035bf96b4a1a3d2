//! What a slab's maker has given away, and what came back: from words of the arena alone, so it doesn't matter which process dropped a
//! piece, or died with it.
//!
//! | a piece has no holder, and | its range |
//! |---|---|
//! | its last use has run | is free |
//! | its last use is on its way | is free for a stream that waits for it, if it is work of one process |
//! | the same, of several processes | stays out until it has run: one of them may die, and with it the wait for the work of another ends |
//! | its last use is of a stream whose process is dead, and never finished | stays out: the slab is *retired* |
//! | a process died while it could write to it | stays out: the slab is retired |
//!
//! From a retired slab no piece is cut any more, since what a dead process has left on the device may write to it yet. It is given back to
//! the driver when its last piece is gone.

use std::ops::Range;

use mp_core::clocks::Tick;
use mp_core::mutant;

use super::cut::Ranges;
use crate::memory::object::SlabObject;
use crate::memory::ticks::{self, State};
use mp_core::steps::row::Returned;

/// A piece that was given away: the mark of its object, and its units.
#[derive(Debug)]
struct Out {
    mark: u64,
    units: Range<u32>,
}

/// Units that are free for streams that wait for a tick.
#[derive(Debug)]
struct Cooling {
    units: Range<u32>,
    tick: Tick,
}

/// What one slab has given away.
#[derive(Debug, Default)]
pub(crate) struct Given {
    out: Vec<Out>,
    /// The next one to look at.
    next: usize,
    cooling: Vec<Cooling>,
    retired: bool,
}

impl Given {
    /// Notes a piece that was cut, before any other process knows it.
    pub(crate) fn give(&mut self, mark: u64, units: Range<u32>) {
        self.out.push(Out { mark, units });
    }

    /// Looks at this many of the pieces that are out, and gives what came back to `ranges`.
    pub(crate) fn look(&mut self, slab: &SlabObject, ranges: &mut Ranges, most: usize) {
        for _ in 0..most.min(self.out.len()) {
            if self.next >= self.out.len() {
                self.next = 0;
            }
            let one = &self.out[self.next];
            let back = ticks::is_gone(one.mark).then(|| slab.row(one.units.start).returned());
            let back = back.map(|found| (found, ticks::state(found.last_use)));
            let waits =
                |(found, state): &(Returned, State)| found.whole && found.mixed && *state == State::Pending;
            let Some((Returned { last_use: last, whole, .. }, state)) = back.filter(|back| !waits(back))
            else {
                self.next += 1;
                continue;
            };
            let Out { units, .. } = self.out.swap_remove(self.next);
            match state {
                State::Never if !mutant!("cuda.given.dead-use-ignored") => self.retired = true,
                _ if !whole => self.retired = true,
                State::Complete | State::Never => ranges.give(units),
                State::Pending => {
                    ranges.give(units.clone());
                    if !self.cooling.is_empty() && mutant!("cuda.given.second-not-cooled") {
                        continue;
                    }
                    self.cooling.extend(Tick::from_raw(last).map(|tick| Cooling { units, tick }));
                }
            }
        }
    }

    /// As [`look`](Self::look) at all of them, and at what was on its way before.
    pub(crate) fn look_at_all(&mut self, slab: &SlabObject, ranges: &mut Ranges) {
        self.next = 0;
        self.look(slab, ranges, usize::MAX);
        self.cool();
    }

    /// Forgets ticks that have come.
    fn cool(&mut self) {
        let retired = &mut self.retired;
        self.cooling.retain(|one| match ticks::state(one.tick.raw()) {
            State::Complete => false,
            State::Pending => true,
            State::Never => {
                *retired = true;
                false
            }
        });
    }

    /// The ticks for which a stream has to wait that gets these units. Afterwards the slab may be retired: then they are not to be had.
    pub(crate) fn ticks_of(&mut self, units: &Range<u32>) -> Vec<Tick> {
        self.cool();
        let touch = |one: &&Cooling| one.units.start < units.end && units.start < one.units.end;
        if mutant!("cuda.given.ticks-not-waited") {
            return Vec::new();
        }
        self.cooling.iter().filter(touch).map(|one| one.tick).collect()
    }

    /// Whether no piece is to be cut any more.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired && !mutant!("cuda.given.retired-cut")
    }

    /// How many pieces are out.
    pub(crate) fn out(&self) -> usize {
        self.out.len()
    }

    /// Whether no process has a piece: the slab may be given back to the driver, once no stream of this process reaches it. Streams of
    /// others have mappings of their own.
    pub(crate) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }
}
