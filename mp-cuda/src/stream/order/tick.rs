//! Comparison of ticks of one stream, and progress of the work before a tick.

use mp_core::Arena;
use mp_core::clocks::{Clocks, Tick, TickState};

use crate::error::{Error, Result};

/// Returns `true` if two ticks belong to one stream. Ticks of the same clock with different epochs belong to
/// different streams: a tick of the clock's next owner does not cover work that the previous owner lost.
pub(crate) fn are_of_one_stream(one: Tick, other: Tick) -> bool {
    (one.clock(), one.epoch()) == (other.clock(), other.epoch())
}

/// Adds a tick to a list that contains the last tick of each stream.
pub(crate) fn keep_latest(list: &mut Vec<Tick>, tick: Tick) {
    match list.iter_mut().find(|one| are_of_one_stream(**one, tick)) {
        Some(one) if *one < tick => *one = tick,
        Some(_) => {}
        None => list.push(tick),
    }
}

/// Returns `true` if a tick is complete.
///
/// # Errors
/// [`Error::ProducerDied`] if the work before the tick will never run; [`Error::Malformed`] for a tick that
/// was never made.
pub(crate) fn is_complete(tick: Tick) -> Result<bool> {
    match Clocks(Arena::current()?).state(tick) {
        TickState::Complete => Ok(true),
        TickState::Pending => Ok(false),
        TickState::Died { pid } => Err(Error::ProducerDied { pid }),
        _ => Err(Error::Malformed(format!("{tick:?} is not a tick of a stream"))),
    }
}
