//! Test only: counts waits that missed their wake-up. Such a wait sleeps for a whole poll interval without a
//! wake-up, and then finds its condition true. A measurement of time can't replace this count, because on a
//! busy machine a wake-up may also arrive late.

use crate::sync::shared::AtomicU32;
#[cfg(feature = "inject")]
use crate::sync::shared::Ordering;

/// A word that was slept on, and its value at that time.
type SleptOn = (&'static AtomicU32, u32);

#[cfg(feature = "inject")]
thread_local! {
    /// Words of this thread's last sleep, if it lasted for a poll interval.
    static LAST: std::cell::RefCell<Vec<SleptOn>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Records that this thread slept on these words for a poll interval, and was not woken.
#[inline]
pub(crate) fn through(_words: impl IntoIterator<Item = SleptOn>) {
    #[cfg(feature = "inject")]
    LAST.with_borrow_mut(|last| {
        last.clear();
        last.extend(_words);
    });
}

/// Clears the record of the last sleep. Called when a wait of this thread begins, and after a wake-up.
#[inline]
pub(crate) fn forget() {
    #[cfg(feature = "inject")]
    LAST.with_borrow_mut(Vec::clear);
}

/// Counts the wait of this thread that ends with a result, if it missed its wake-up.
#[inline]
pub(crate) fn found() {
    #[cfg(feature = "inject")]
    if !LAST.with_borrow(Vec::is_empty) {
        LAST.with_borrow(|last| count(last.iter().copied()));
        forget();
    }
}

/// Counts a wait whose condition is true after a sleep on these words, unless a wake-up has arrived by now. A
/// wake-up follows the change of the condition, so the words are checked last.
#[inline]
pub(crate) fn count(_words: impl IntoIterator<Item = SleptOn>) {
    #[cfg(feature = "inject")]
    if _words.into_iter().all(|(word, expected)| word.load(Ordering::Acquire) == expected) {
        crate::sys::inject::note_slept_through();
    }
}
