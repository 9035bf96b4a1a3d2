//! Something that is done once, even if a process dies while doing it.
//!
//! # Words, and what may change them
//! | word | states | changed by |
//! |---|---|---|
//! | lock: see [`mp_core::steps::lock`] | | a thread that wants to do it |
//! | done: 0 or 1 | only grows | the thread that holds the lock and has done it → 1 |
//!
//! A thread looks at the word first, and asks for the lock only if it is not done; once it has the lock it
//! looks again, since another one may have done it meanwhile.
//!
//! # What a death leaves, and where one may be stopped
//! | killed | left | then |
//! |---|---|---|
//! | before it has the lock | nothing | |
//! | holding the lock, doing it or about to | held by a dead process, not done | the next one adopts the lock, learns which process died, and does it again |
//! | done, before it said so | the same | the same: it is done twice, one after the other |
//! | said so, before it released the lock | held by a dead process, done | a waiter adopts the lock, and finds it done; a thread that comes does not ask for the lock |
//!
//! A thread that is stopped while it holds the lock delays the threads that asked for the lock; once it has
//! said that it is done, no others.

use mp_core::mem::{Mem, Steps, Word};

/// Ends with whether it is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IsDone(pub Word);

impl Steps for IsDone {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        if mp_core::mutant!("once.looked-at-relaxed") {
            return Some(m.load_relaxed(self.0) != 0);
        }
        Some(m.load(self.0) != 0)
    }
}

/// Says that it is done: by the thread that has done it, and holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SetDone(pub Word);

impl Steps for SetDone {
    type Out = ();

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        if mp_core::mutant!("once.done-relaxed") {
            m.store_relaxed(self.0, 1);
        } else if !mp_core::mutant!("once.done-not-written") {
            m.store(self.0, 1);
        }
        Some(())
    }
}
