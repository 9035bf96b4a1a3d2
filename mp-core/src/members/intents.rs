//! Lanes: each thread that changes shared words has an intent word.
//!
//! A thread takes a lane when it first needs one, and keeps the lane until the thread ends. Threads that find
//! no free lane share lane 0, under a lock of this process.

use std::cell::Cell;

use crate::layout::LANES;
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};

/// Lane shared by all threads that found no free lane.
const COMMON: u32 = 0;

#[derive(Debug)]
struct Lanes {
    taken: u64,
}

static LANES_TAKEN: PerProcess<Mutex<Lanes>> = per_process!(Mutex::new(Lanes { taken: 1 << COMMON }));
static COMMON_LANE: PerProcess<Mutex<()>> = per_process!(Mutex::new(()));

/// A lane of this thread, returned when the thread ends.
struct ThreadLane(Cell<Option<u32>>);

impl Drop for ThreadLane {
    fn drop(&mut self) {
        if let Some(lane) = self.0.get() {
            LANES_TAKEN.lock().taken &= !(1 << lane);
        }
    }
}

thread_local! {
    static MINE: ThreadLane = const { ThreadLane(Cell::new(None)) };
}

/// Forgets the lane of this thread, in a forked child that becomes a separate process.
pub(crate) fn forget_thread() {
    _ = MINE.try_with(|mine| mine.0.set(None));
}

/// Calls `f` with the lane of this thread. `taken(lane)` is called before a lane is used for the first time.
///
/// `f` must not call this function, and must not run user code.
#[inline]
pub(crate) fn with<R>(taken: impl Fn(u32), f: impl FnOnce(u32) -> R) -> R {
    match MINE.try_with(|mine| mine.0.get()) {
        Ok(Some(lane)) => f(lane),
        Ok(None) => first(taken, f),
        // The thread is ending.
        Err(_) => common(&taken, f),
    }
}

#[cold]
fn first<R>(taken: impl Fn(u32), f: impl FnOnce(u32) -> R) -> R {
    let Some(lane) = take(&taken) else { return common(&taken, f) };
    // Can't fail, since the variable was accessible a moment ago. A failure would leave the lane taken, which
    // is harmless.
    _ = MINE.try_with(|mine| mine.0.set(Some(lane)));
    f(lane)
}

#[cold]
fn common<R>(taken: &impl Fn(u32), f: impl FnOnce(u32) -> R) -> R {
    let _guard = COMMON_LANE.lock();
    taken(COMMON);
    f(COMMON)
}

#[cold]
fn take(taken: &impl Fn(u32)) -> Option<u32> {
    let mut lanes = LANES_TAKEN.lock();
    let lane = lanes.taken.trailing_ones();
    if lane >= LANES {
        return None;
    }
    lanes.taken |= 1 << lane;
    taken(lane);
    Some(lane)
}
