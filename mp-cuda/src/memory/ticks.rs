//! Reads from the arena whether an object has holders, and whether a tick is complete.

use mp_core::clocks::{Clocks, Tick, TickState};
use mp_core::steps::device::use_record::UseRecord;
use mp_core::{Arena, Blocks};

use super::object::PieceRow;

/// Progress of the work before a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TickProgress {
    /// The work has run.
    Complete,
    /// The work has not run yet.
    Pending,
    /// The work never runs: its process is dead, or no process has made this tick.
    Lost,
}

/// Returns the progress of the work before the tick that a row's word contains. The word 0 contains no tick,
/// and counts as complete.
pub(super) fn progress(word: u64) -> TickProgress {
    let Some(tick) = Tick::from_raw(word) else { return TickProgress::Complete };
    match Arena::get().map(|arena| Clocks(arena).state(tick)) {
        Some(TickState::Complete) => TickProgress::Complete,
        Some(TickState::Pending) => TickProgress::Pending,
        _ => TickProgress::Lost,
    }
}

/// Returns the number of clocks (one for each stream) that have ended with unfinished work.
pub(super) fn unfinished_ends() -> u64 {
    Arena::get().map_or(0, |arena| Clocks(arena).unfinished_ends())
}

/// Returns the uses of a piece without holders, and the progress of the last use. A complete last use that is
/// not [conclusive](UseRecord::is_conclusive) counts as lost. `ends` is the number of [unfinished
/// ends](unfinished_ends) before another process had the piece.
pub(super) fn last_use(row: &PieceRow, ends: u64) -> (UseRecord, TickProgress) {
    let found = row.returned();
    match progress(found.last_use) {
        TickProgress::Complete if !found.is_conclusive([ends, unfinished_ends()]) => {
            (found, TickProgress::Lost)
        }
        state => (found, state),
    }
}

/// Returns `true` if the tick in a row's word is pending, and this process has made it.
pub(super) fn is_ours(word: u64) -> bool {
    let (Some(tick), Some(arena)) = (Tick::from_raw(word), Arena::get()) else { return false };
    Clocks(arena).owner(tick).is_some_and(|owner| arena.me().is_ok_and(|me| me == owner))
}

/// Returns `true` if the object with this mark has no holder. An object without holders never gets a holder
/// again.
pub(super) fn has_no_holder(mark: u64) -> bool {
    Arena::get().is_some_and(|arena| !Blocks(arena).lives(mark))
}

/// Removes ticks that are not pending. Removes ticks of a dead process, too, because its streams ended with
/// it.
pub(super) fn retain_pending(ticks: &mut Vec<Tick>) {
    ticks.retain(|tick| progress(tick.raw()) == TickProgress::Pending);
}
