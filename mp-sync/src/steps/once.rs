//! Steps of a one-time execution that survives the death of the executing process.
//!
//! # Words and their transitions
//! | word | states | changed by |
//! |---|---|---|
//! | lock: see [`mp_core::steps::lock`] | | a thread that wants to run its closure |
//! | done: 0 or 1 | only grows | the thread that holds the lock and has run its closure → 1 |
//!
//! A thread loads `done` first, and takes the lock only if it is 0. With the lock it loads `done` again,
//! because another thread may have finished meanwhile.
//!
//! # Effect of a death or stop
//! | killed | remaining state | effect |
//! |---|---|---|
//! | before it has the lock | nothing | |
//! | with the lock, before or during its closure | held by a dead process, not done | the next caller adopts the lock, gets the name of the dead process, and runs its own closure |
//! | after its closure, before it stored `done` | the same | the same: two closures run, one after the other |
//! | after it stored `done`, before it released the lock | held by a dead process, done | a waiter adopts the lock, and finds `done` set; new callers do not take the lock |
//!
//! A thread that is stopped while it holds the lock delays the threads that wait for the lock. Once `done` is
//! stored, it delays no new callers.

use mp_core::mem::{Mem, Steps, Word};

/// Returns `true` if the closure has finished.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IsDone(pub Word);

impl Steps for IsDone {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        Some(m.load(self.0) != 0)
    }
}

/// Records that the closure has finished. The caller has run the closure, and holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SetDone(pub Word);

impl Steps for SetDone {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        m.store(self.0, 1);
        Some(())
    }
}
