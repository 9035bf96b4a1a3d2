//! A flag between processes, and how often it was set.
//!
//! # Words, and what may change them
//! | word | states | changed by |
//! |---|---|---|
//! | event: `set 1, count 63` | not set | a setter → set, count + 1 |
//! |  | set | a clearer → not set |
//!
//! A waiter notes the word first, and has waited enough when the flag is set **or** the count is another: so
//! it sees every setting, also one that was cleared before it looked.
//!
//! # What a death leaves
//! | killed | left | then |
//! |---|---|---|
//! | before the swap | nothing | |
//! | set, before it woke the sleepers | set | they look within a poll interval |

use mp_core::mem::{Mem, Steps, Word};

const SET: u64 = 1;

/// What the word of an event says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EventWord(pub u64);

impl EventWord {
    /// Whether it is set.
    pub const fn is_set(self) -> bool {
        self.0 & SET != 0
    }

    /// Whether it is set, or was since it said `before`.
    pub fn was_set_since(self, before: Self) -> bool {
        self.is_set() || self.0 >> 1 != before.0 >> 1 && !mp_core::mutant!("event.setting-overlooked")
    }
}

/// Sets an event; ends with whether it was not set before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Set {
    at: Word,
    seen: Option<u64>,
}

impl Set {
    /// The event at `at`.
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
        // Also when it is set already: a thread that sets it is ordered before a thread that sees it set.
        if seen & SET != 0 && mp_core::mutant!("event.set-already-not-ordered") {
            return Some(false);
        }
        let to = if mp_core::mutant!("event.setting-not-counted") {
            seen | SET
        } else if seen & SET == 0 {
            seen.wrapping_add(2) | SET
        } else {
            seen
        };
        match m.cas(self.at, seen, to) {
            Ok(()) => Some(seen & SET == 0 && !mp_core::mutant!("event.wake-dropped")),
            Err(now) => {
                self.seen = Some(now);
                None
            }
        }
    }
}

/// Clears an event; ends with whether it was set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Clear(pub Word);

impl Steps for Clear {
    type Out = bool;

    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        let keep = if mp_core::mutant!("event.count-cleared-too") { 0 } else { !SET };
        Some(m.and(self.0, keep) & SET != 0)
    }
}
