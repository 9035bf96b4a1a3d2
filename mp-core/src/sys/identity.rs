//! Who this process is.

use std::cell::Cell;

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
    IDS.try_with(|ids| known(ids).0).unwrap_or_else(|_| std::process::id())
}

/// The kernel's number of this thread.
#[inline]
pub(crate) fn thread() -> u32 {
    IDS.try_with(|ids| known(ids).1).unwrap_or_else(|_| ids().1)
}

#[inline]
fn known(asked: &Cell<Option<(u32, u32)>>) -> (u32, u32) {
    asked.get().unwrap_or_else(|| {
        let now = ids();
        asked.set(Some(now));
        now
    })
}

/// In a forked copy that becomes a process of its own: the numbers of the calling thread are others.
pub(crate) fn forget_thread() {
    _ = IDS.try_with(|asked| asked.set(None));
}

fn ids() -> (u32, u32) {
    (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
}

thread_local! {
    /// Asked once: a forked copy, whose numbers are others, is no member and locks nothing, or has forgotten them.
    static IDS: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
}
