//! Test only: a process kills or stops itself at its n-th access to shared memory.
//!
//! With the feature `inject`, every shared access counts; [`arm`] says at which one the process sends itself a
//! signal. So a test can go through all the points at which a process can die, one by one.
//!
//! And it knows a few bugs, which a test plants by the environment variable `MP_PLANTED`, to see that they are found.

pub(crate) mod planted;

use crate::sync::shared::{AtomicU64, Ordering};

static LEFT: AtomicU64 = AtomicU64::new(u64::MAX);
static SEEN: AtomicU64 = AtomicU64::new(0);
static SIGNAL: AtomicU64 = AtomicU64::new(0);
/// 1 if only what may change memory counts.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Sends `signal` to this process just before its `n`-th access from now on (1 is the next one).
pub fn arm(n: u64, signal: i32) {
    start(n, signal, 0);
}

/// As [`arm`], but counts only what may change memory: a process that dies before it reads leaves what one leaves that
/// dies after it.
pub fn arm_at_change(n: u64, signal: i32) {
    start(n, signal, 1);
}

fn start(n: u64, signal: i32, changes: u64) {
    CHANGES.store(changes, Ordering::SeqCst);
    SIGNAL.store(signal as u64, Ordering::SeqCst);
    LEFT.store(n, Ordering::SeqCst);
}

/// How many accesses there were.
pub fn seen() -> u64 {
    SEEN.load(Ordering::SeqCst)
}

/// One access is about to happen, which may change memory or only reads it.
#[inline]
pub(crate) fn access(changes: bool) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    if !changes && CHANGES.load(Ordering::Relaxed) == 1 {
        return;
    }
    if LEFT.load(Ordering::Relaxed) != u64::MAX && LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
        LEFT.store(u64::MAX, Ordering::SeqCst);
        crate::sys::signal_self(SIGNAL.load(Ordering::SeqCst) as i32);
    }
}
