//! Steps of an event: a flag, and the number of times that it was set.
//!
//! # Words and their transitions
//! | word | states | changed by |
//! |---|---|---|
//! | event: `set 1, count 63` | not set | a setter → set, count + 1 |
//! |  | set | a clearer → not set |
//!
//! A waiter loads the word first. The wait has ended if the flag is set **or** the count has changed. So the
//! waiter does not miss an event that was set and cleared again before the waiter loaded the word again.
//!
//! # Effect of a death
//! | killed | remaining state | effect |
//! |---|---|---|
//! | before the swap | nothing | |
//! | after the swap, before it woke the sleepers | set | the sleepers check within a poll interval |

use mp_core::mem::{Mem, Steps, Word};

const SET: u64 = 1;

/// Content of the word of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EventWord(pub u64);

impl EventWord {
    /// Returns `true` if the event is set.
    pub const fn is_set(self) -> bool {
        self.0 & SET != 0
    }

    /// Returns `true` if the event is set, or was set since the word was `before`.
    pub fn was_set_since(self, before: Self) -> bool {
        self.is_set() || self.0 >> 1 != before.0 >> 1
    }
}

/// Sets an event. Ends with `true` if the event was not set before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Set {
    at: Word,
    seen: Option<u64>,
}

impl Set {
    /// Creates the steps for the event at `at`.
    pub fn new(at: Word) -> Self {
        Self { at, seen: None }
    }
}

impl Steps for Set {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let Some(seen) = self.seen else {
            self.seen = Some(m.load(self.at));
            return None;
        };
        // Swaps even if the event is set already, so that this setter's writes are ordered before the reads
        // of a thread that finds the event set.
        let to = if seen & SET == 0 { seen.wrapping_add(2) | SET } else { seen };
        match m.cas(self.at, seen, to) {
            Ok(()) => Some(seen & SET == 0),
            Err(now) => {
                self.seen = Some(now);
                None
            }
        }
    }
}

/// Clears an event. Ends with `true` if the event was set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Clear(pub Word);

impl Steps for Clear {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let keep = !SET;
        Some(m.and(self.0, keep) & SET != 0)
    }
}
