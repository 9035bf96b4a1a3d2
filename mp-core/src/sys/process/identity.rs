//! Identity of this process.

use std::cell::Cell;

use crate::sync::Ordering;
use crate::sync::shared::AtomicU64;

/// Tag of this process as a member, in a word that reads 0 in a forked copy of the process (see
/// [`crate::sys::private_table`]).
#[derive(Debug)]
pub(crate) struct Identity(&'static AtomicU64);

impl Identity {
    /// Creates an identity in a word of a private table, with a `value` other than 0.
    pub(crate) fn new(word: &'static AtomicU64, value: u64) -> Self {
        word.store(value, Ordering::Release);
        Self(word)
    }

    /// Creates the identity from a word that already has its value.
    pub(crate) fn of(word: &'static AtomicU64) -> Self {
        Self(word)
    }

    /// Changes the value.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// Returns the value, or 0 in a forked copy.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns the process id.
#[inline]
pub(crate) fn process() -> u32 {
    IDS.try_with(|ids| cached(ids).0).unwrap_or_else(|_| std::process::id())
}

/// Returns the thread id.
#[inline]
pub(crate) fn thread() -> u32 {
    IDS.try_with(|ids| cached(ids).1).unwrap_or_else(|_| ids().1)
}

#[inline]
fn cached(asked: &Cell<Option<(u32, u32)>>) -> (u32, u32) {
    asked.get().unwrap_or_else(|| {
        let now = ids();
        asked.set(Some(now));
        now
    })
}

/// Resets the ids in a forked copy that becomes a process of its own, since the ids of the calling thread
/// have changed.
pub(crate) fn forget_thread() {
    _ = IDS.try_with(|asked| asked.set(None));
}

/// Returns `true` if this process executed a program after it was forked. Its memory then refers only to
/// files that this process has opened. Returns `false` if the kernel does not report it.
#[cfg(feature = "tokio")]
pub(crate) fn was_executed() -> bool {
    // PF_FORKNOEXEC, in field 9 of `proc_pid_stat(5)`: forked, but didn't execute. The name, field 2, may
    // contain any characters.
    const COPIED: u64 = 0x40;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let flags = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & COPIED == 0)
}

fn ids() -> (u32, u32) {
    (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
}

thread_local! {
    /// Process and thread id, looked up once. A forked copy has other ids: it either resets these, or is not
    /// a member and acquires no lock.
    static IDS: Cell<Option<(u32, u32)>> = const { Cell::new(None) };
}
