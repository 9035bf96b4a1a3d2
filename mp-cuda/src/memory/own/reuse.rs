//! Outstanding pieces of a slab, and the reuse of returned pieces by the slab's maker. All state is in the
//! arena, so any process may drop a piece, or die with it.
//!
//! | a piece has no holder, and | its range |
//! |---|---|
//! | its last use has run | is free |
//! | its last use is pending, and is work of this process alone | is free for a stream that waits for the last use |
//! | its last use is pending, and is work of another process, or of several | stays outstanding until the last use has run: if such a process died, a stream that waits for the last use would continue, although the work may still run |
//! | its last use was by a stream whose process is dead, and never finished | stays outstanding: the slab is *retired* |
//! | a process died while it could write to the piece | stays outstanding: the slab is retired |
//! | its last use has run, after work of several processes, and a clock has ended with unfinished work since the piece was cut | stays outstanding: the slab is retired, because a stream may have run its work before earlier work that is pending ([`use_record`](mp_core::steps::device::use_record)) |
//!
//! No more pieces are cut out of a retired slab, because unrecorded work may still access it. The slab is
//! given back to the driver when its last piece has no holder.

use std::ops::Range;

use mp_core::clocks::Tick;

use super::ranges::Ranges;
use crate::memory::object::SlabObject;
use crate::memory::ticks::{self, TickProgress};
use mp_core::steps::device::use_record::UseRecord;

/// Piece that some process may hold: the mark of its object, and its units.
#[derive(Debug)]
struct OutstandingPiece {
    mark: u64,
    units: Range<u32>,
    /// Number of [unfinished ends](ticks::unfinished_ends) of clocks at the time when the piece was cut.
    ends: u64,
}

/// Units whose previous piece was dropped, but whose last use is pending. A stream may use them after it
/// waits for the tick.
#[derive(Debug)]
struct CoolingRange {
    units: Range<u32>,
    tick: Tick,
}

/// Outstanding pieces of one slab.
#[derive(Debug, Default)]
pub(crate) struct PieceLedger {
    outstanding: Vec<OutstandingPiece>,
    /// Index of the piece to inspect next.
    next: usize,
    cooling: Vec<CoolingRange>,
    retired: bool,
}

impl PieceLedger {
    /// Records a piece that was cut, before any other process has it.
    pub(crate) fn give(&mut self, mark: u64, units: Range<u32>) {
        self.outstanding.push(OutstandingPiece { mark, units, ends: ticks::unfinished_ends() });
    }

    /// Inspects up to `most` outstanding pieces, and frees the units of returned pieces in `ranges`.
    pub(crate) fn scan(&mut self, slab: &SlabObject, ranges: &mut Ranges, most: usize) {
        for _ in 0..most.min(self.outstanding.len()) {
            if self.next >= self.outstanding.len() {
                self.next = 0;
            }
            let one = &self.outstanding[self.next];
            let back =
                ticks::has_no_holder(one.mark).then(|| ticks::last_use(&slab.row(one.units.start), one.ends));
            let waits = |(found, state): &(UseRecord, TickProgress)| {
                let is_ours = !found.is_mixed && ticks::is_ours(found.last_use);
                found.is_complete && *state == TickProgress::Pending && !is_ours
            };
            let Some((UseRecord { last_use: last, is_complete: whole, .. }, state)) =
                back.filter(|back| !waits(back))
            else {
                self.next += 1;
                continue;
            };
            let OutstandingPiece { units, .. } = self.outstanding.swap_remove(self.next);
            match state {
                TickProgress::Lost => self.retired = true,
                _ if !whole => self.retired = true,
                TickProgress::Complete => ranges.give(units),
                TickProgress::Pending => {
                    ranges.give(units.clone());
                    self.cooling.extend(Tick::from_raw(last).map(|tick| CoolingRange { units, tick }));
                }
            }
        }
    }

    /// Inspects all outstanding pieces, and all cooling ranges.
    pub(crate) fn scan_all(&mut self, slab: &SlabObject, ranges: &mut Ranges) {
        self.next = 0;
        self.scan(slab, ranges, usize::MAX);
        self.prune_cooled();
    }

    /// Removes cooling ranges whose ticks are not pending. A lost tick retires the slab.
    fn prune_cooled(&mut self) {
        let retired = &mut self.retired;
        self.cooling.retain(|one| match ticks::progress(one.tick.raw()) {
            TickProgress::Complete => false,
            TickProgress::Pending => true,
            TickProgress::Lost => {
                *retired = true;
                false
            }
        });
    }

    /// Returns the ticks for which a stream has to wait before it uses these units. If
    /// [`is_retired`](Self::is_retired) is `true` after this call, the units must not be used.
    pub(crate) fn pending_ticks(&mut self, units: &Range<u32>) -> Vec<Tick> {
        self.prune_cooled();
        let touch = |one: &&CoolingRange| one.units.start < units.end && units.start < one.units.end;
        self.cooling.iter().filter(touch).map(|one| one.tick).collect()
    }

    /// Returns `true` if the slab is retired, so that no more pieces may be cut.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired
    }

    /// Returns the number of outstanding pieces.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Returns `true` if no process holds a piece of the slab. The slab may be given back to the driver when
    /// no stream of this process can access it. Streams of other processes use their own mappings.
    pub(crate) fn is_empty(&self) -> bool {
        self.outstanding.is_empty()
    }
}
