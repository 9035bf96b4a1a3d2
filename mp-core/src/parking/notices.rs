//! Count of the deaths that any process has detected. Waiters sleep on it in addition to their own word.

use crate::arena::{Arena, view};
use crate::layout::control;
use crate::mem::{Mem, Word};
use crate::sync::shared::AtomicU32;
use crate::sys::futex;

view! {
    /// Notices of deaths in an arena.
    pub struct Notices;
}

impl Notices {
    /// Returns the word that counts the detected deaths, to sleep on.
    pub(crate) fn noticed_word(self) -> &'static AtomicU32 {
        self.map().futex_at(Word::at(control::NOTICED))
    }

    /// Returns the number of deaths that any process has detected.
    #[inline]
    pub fn noticed(self) -> u32 {
        self.map().load(Word::at(control::NOTICED)) as u32
    }

    /// Wakes all waiters that may depend on a member that is marked dead, or on a queue that this
    /// process has given up.
    #[cold]
    pub(crate) fn tell_of_a_lost_holder(self) {
        self.map().add(Word::at(control::NOTICED), 1);
        futex::wake(self.noticed_word(), i32::MAX as u32);
    }
}
