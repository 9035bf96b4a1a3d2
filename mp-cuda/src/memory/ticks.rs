//! What the words of the arena say: whether an object has holders, and whether a tick has come.

use mp_core::Arena;
use mp_core::clocks::{Tick, TickState};

/// How far the work before a tick is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It has run.
    Complete,
    /// It is on its way.
    Pending,
    /// Its process is dead, and it never ran to its end; or no process has said that there is such a tick.
    Never,
}

/// How far the work is that a row's word names; 0 names none.
pub(super) fn state(word: u64) -> State {
    let Some(tick) = Tick::from_raw(word) else { return State::Complete };
    match Arena::get().map(|arena| arena.clocks().state(tick)) {
        Some(TickState::Complete) => State::Complete,
        Some(TickState::Pending) => State::Pending,
        _ => State::Never,
    }
}

/// Whether an object has no holder any more, by its mark. Once that is so, it stays so.
pub(super) fn is_gone(mark: u64) -> bool {
    Arena::get().is_some_and(|arena| !arena.lives(mark))
}

/// Leaves ticks whose work is on its way. A process that ends is not among those that have it: what it had is gone with it.
pub(super) fn keep_pending(ticks: &mut Vec<Tick>) {
    ticks.retain(|tick| state(tick.raw()) == State::Pending);
}
