//! Test only: which waits have slept through what they waited for. Such a wait sleeps for a whole poll interval, no wake-up comes,
//! and then it finds what it waits for. That tells a wake-up that is missing from one that is late because the machine is busy, which
//! a clock does not.

use crate::sync::shared::AtomicU32;
#[cfg(feature = "inject")]
use crate::sync::shared::Ordering;

/// A word that was slept on, and its value then.
type SleptOn = (&'static AtomicU32, u32);

#[cfg(feature = "inject")]
thread_local! {
    /// What this thread's last sleep was on, if it lasted for a poll interval.
    static LAST: std::cell::RefCell<Vec<SleptOn>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// This thread has slept on these for a poll interval, and was not woken.
#[inline]
pub(crate) fn through(_words: impl IntoIterator<Item = SleptOn>) {
    #[cfg(feature = "inject")]
    LAST.with_borrow_mut(|last| {
        last.clear();
        last.extend(_words);
    });
}

/// A wait of this thread begins, or it was woken.
#[inline]
pub(crate) fn forget() {
    #[cfg(feature = "inject")]
    LAST.with_borrow_mut(Vec::clear);
}

/// What this thread waited for is there: counted, if it has slept through that.
#[inline]
pub(crate) fn found() {
    #[cfg(feature = "inject")]
    if !LAST.with_borrow(Vec::is_empty) {
        LAST.with_borrow(|last| count(last.iter().copied()));
        forget();
    }
}

/// What was waited for is there after a sleep on these: counted, unless a wake-up has come after all. It comes behind the change, so
/// it is looked for last.
#[inline]
pub(crate) fn count(_words: impl IntoIterator<Item = SleptOn>) {
    #[cfg(feature = "inject")]
    if _words.into_iter().all(|(word, expected)| word.load(Ordering::Acquire) == expected) {
        crate::sys::inject::note_slept_through();
    }
}
