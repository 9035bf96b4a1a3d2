//! Sleeping on a shared 32-bit word. Reference: `futex(2)`.

use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};

use crate::sync::shared::AtomicU32;

/// Sleeps while `*word == expected`, at most `for_at_most`. Returns whether it was woken (or the word differed).
///
/// The futex is not private: waker and sleeper are different processes that map the same file.
pub(crate) fn wait(word: &AtomicU32, expected: u32, for_at_most: Duration) -> bool {
    let t = Timespec { tv_sec: for_at_most.as_secs() as i64, tv_nsec: i64::from(for_at_most.subsec_nanos()) };
    !matches!(futex::wait(word, Flags::empty(), expected, Some(&t)), Err(Errno::TIMEDOUT))
}

/// Wakes up to `n` sleepers; how many slept.
pub(crate) fn wake(word: &AtomicU32, n: u32) -> usize {
    futex::wake(word, Flags::empty(), n).unwrap_or(0)
}
