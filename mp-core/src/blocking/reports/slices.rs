//! Sliced waits: waits that consist of many short calls.
//!
//! An interpreter must return to its signal handlers while a thread waits. So it *slices* the wait into
//! repeated calls with short timeouts, each of which is too short to be shown. Calls within
//! [`SlicedWait::run`] count as one wait, with one beginning, one time limit and one row.

use std::cell::Cell;
use std::time::Instant;

use crate::blocking::reports::{Place, SHOWN_AFTER, WatchState};
use crate::blocking::wait_limit::Wait;

thread_local!(static CURRENT: Cell<Option<Box<Slices>>> = const { Cell::new(None) });

/// State of a sliced wait between two watches.
#[derive(Debug)]
pub(super) struct Slices {
    pub(super) since: Instant,
    pub(super) forever: bool,
    pub(super) place: Option<Place>,
    /// Time at which the next watch checks the wait.
    pub(super) due: Instant,
    pub(super) shown: Option<Box<WatchState>>,
}

impl Slices {
    /// Takes the sliced wait of the calling thread's enclosing [`SlicedWait::run`].
    pub(super) fn take() -> Option<Box<Self>> {
        CURRENT.try_with(Cell::take).ok().flatten()
    }

    /// Stores the sliced wait for the next watch of the calling thread.
    pub(super) fn leave(self: Box<Self>) {
        _ = CURRENT.try_with(|current| current.set(Some(self)));
    }
}

impl Drop for Slices {
    fn drop(&mut self) {
        if let Some(shown) = self.shown.take() {
            shown.end();
        }
    }
}

/// A wait of the calling thread that consists of many short waits. Reports show one wait until this value is
/// dropped.
#[derive(Debug)]
pub struct SlicedWait(Option<Box<Slices>>);

impl SlicedWait {
    /// Creates the wait that began at `since`, at this place in the source, with the limit `wait`.
    pub fn new(since: Instant, wait: Wait, place: Option<Place>) -> Self {
        let (due, forever) = (since + SHOWN_AFTER, wait == Wait::Forever);
        Self(Some(Box::new(Slices { since, forever, place, due, shown: None })))
    }

    /// Calls `slice`, whose blocking calls are parts of this wait. `slice` must do nothing that another
    /// thread may wait for: the proof of a hang relies on that. In a nested call of `run`, the blocking calls
    /// are parts of the outer wait.
    pub fn run<R>(&mut self, slice: impl FnOnce() -> R) -> R {
        /// Guard that moves the state back into the `SlicedWait` when `slice` returns or panics.
        struct Running<'a>(&'a mut SlicedWait);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.0 = Slices::take();
            }
        }

        if let Some(outer) = Slices::take() {
            outer.leave();
            return slice();
        }
        if let Some(own) = self.0.take() {
            own.leave();
        }
        let _running = Running(self);
        slice()
    }
}
