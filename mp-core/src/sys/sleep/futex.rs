//! Sleeping on one or many shared 32-bit words, and the clock. Reference: `futex(2)`, and for many words
//! `futex_waitv` (Linux 5.16), documented in the kernel's `Documentation/userspace-api/futex2.rst`.
//!
//! # Safety
//! Reads the clock and the page size by functions of the C library. Unsafe, because these are C functions.
//! Sound, because they take a valid pointer and numbers. In each process, `rustix` would look up the clock's
//! function and the page size again, although the C library has already done so. Under valgrind, that lookup
//! accesses unmapped memory.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::ClockId;
use rustix::thread::futex::{self, Flags, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags};

use crate::sync::shared::AtomicU32;

/// Returns the time of the monotonic clock, which all processes of this machine share.
pub fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for writes. The call can't fail for a clock that each kernel has.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Returns the page size in bytes.
pub(crate) fn page_size() -> u64 {
    // SAFETY: it takes a number only.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

/// Sleeps while `*word == expected`, at most `for_at_most`. Returns `false` if that time has expired, and
/// `true` after a wake-up or a signal, or if the word differed.
///
/// The futex is not private: waker and sleeper are different processes that map the same file.
pub(crate) fn wait(word: &AtomicU32, expected: u32, for_at_most: Duration) -> bool {
    let t = Timespec { tv_sec: for_at_most.as_secs() as i64, tv_nsec: i64::from(for_at_most.subsec_nanos()) };
    !matches!(futex::wait(word, Flags::empty(), expected, Some(&t)), Err(Errno::TIMEDOUT))
}

/// Wakes up to `n` sleepers. Returns the number of woken sleepers.
pub(crate) fn wake(word: &AtomicU32, n: u32) -> usize {
    futex::wake(word, Flags::empty(), n).unwrap_or(0)
}

/// Maximum number of words in one call of [`wait_for_any`].
pub(crate) const MOST: usize = 128;

/// Returns `true` if the kernel can sleep on many words. Older and some emulated kernels can't, and some
/// system call filters forbid it.
pub(crate) fn can_wait_for_many() -> bool {
    // fork: the kernel is the same. The value is computed before a fork, so that no copy inherits an
    // unfinished computation.
    static CAN: OnceLock<bool> = OnceLock::new();
    // A kernel that has the call rejects an empty list.
    *CAN.get_or_init(|| futex::waitv(&[], WaitvFlags::empty(), None, ClockId::Monotonic) == Err(Errno::INVAL))
}

/// Sleeps while all words (at most [`MOST`]) have their expected values, at most `for_at_most`. Returns
/// `false` if that time has expired. Requires [`can_wait_for_many`].
pub(crate) fn wait_for_any(words: &[(&AtomicU32, u32)], for_at_most: Option<Duration>) -> bool {
    let mut waits = [Wait::new(); MOST];
    let used = waits.len().min(words.len());
    for (wait, (word, expected)) in waits.iter_mut().zip(words) {
        wait.val = u64::from(*expected);
        wait.uaddr = WaitPtr::new(word.as_ptr().cast());
        wait.flags = WaitFlags::SIZE_U32;
    }
    // The system call takes an absolute time.
    let until = for_at_most.and_then(|d| {
        let then = crate::sys::monotonic().checked_add(d)?;
        Some(Timespec {
            tv_sec: i64::try_from(then.as_secs()).ok()?,
            tv_nsec: i64::from(then.subsec_nanos()),
        })
    });
    // A wake-up, a different word, a time-out, or a signal: the caller checks again in any case.
    let slept = futex::waitv(&waits[..used], WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic);
    !matches!(slept, Err(Errno::TIMEDOUT))
}
