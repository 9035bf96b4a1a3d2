//! Who this process is.

use crate::sync::Ordering;
use crate::sync::shared::AtomicU64;

/// This process's tag as a member, in a word that reads 0 in a forked copy of the process (see [`super::private`]).
#[derive(Debug)]
pub(crate) struct Identity(&'static AtomicU64);

impl Identity {
    /// In a word of a private table, holding `value`, which is not 0.
    pub(crate) fn new(word: &'static AtomicU64, value: u64) -> Self {
        word.store(value, Ordering::Release);
        Self(word)
    }

    /// Changes the value.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// The value, or 0 in a forked copy.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The kernel's number of this process.
#[inline]
pub(crate) fn process() -> u32 {
    IDS.try_with(|ids| ids.0).unwrap_or_else(|_| std::process::id())
}

/// The kernel's number of this thread.
#[inline]
pub(crate) fn thread() -> u32 {
    IDS.try_with(|ids| ids.1).unwrap_or_else(|_| ids().1)
}

fn ids() -> (u32, u32) {
    (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
}

thread_local! {
    /// Asked once: a forked copy, whose numbers are others, is no member and locks nothing.
    static IDS: (u32, u32) = ids();
}
