//! Test only: a process kills or stops itself at its n-th access to shared memory.
//!
//! With the feature `inject`, every shared access is counted, and the process sends itself a signal at the
//! access selected by [`arm`]. So a test can enumerate all the points at which a process can die. Copies by
//! [`Fork`] count separately, from their first access on: [`arm_copies`] arms them.
//!
//! [`Fork`]: crate::fork::Fork
//!
//! The module also counts waits that were not woken: [`slept_through`].
//!
//! # Safety
//! `raise` sends a signal to the calling thread. It is a C function, and takes and keeps no pointer.
#![allow(unsafe_code)]

use crate::process::{PerProcess, per_process};
use crate::sync::shared::{AtomicU64, Ordering};

/// Sends a signal to the calling thread, so that it takes effect before the thread's next instruction. (If it
/// were sent to the process, another thread could receive it while this one continues.) Reference:
/// `raise(3)`.
pub(in crate::sys) fn signal_self(signal: i32) {
    // SAFETY: `raise` takes any number; an invalid signal is an error that changes nothing.
    _ = unsafe { libc::raise(signal) };
}

/// Pending signal of this process.
struct Armed {
    left: AtomicU64,
    seen: AtomicU64,
    signal: AtomicU64,
    /// 1 if only accesses that can change memory are counted in `left`, 0 if all accesses are.
    changes: AtomicU64,
    /// Number of accesses from the first signal to the second, or `u64::MAX` for no second signal.
    again: AtomicU64,
    /// Values of `left` and `signal` with which a copy begins.
    of_copies: [AtomicU64; 2],
}

impl Armed {
    const fn new() -> Self {
        Self {
            left: AtomicU64::new(u64::MAX),
            seen: AtomicU64::new(0),
            signal: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            again: AtomicU64::new(u64::MAX),
            of_copies: [AtomicU64::new(u64::MAX), AtomicU64::new(0)],
        }
    }
}

static ARMED: PerProcess<Armed> = per_process!(Armed::new());

/// Sends `signal` to this process just before its `n`-th access from now on (1 is the next one).
pub fn arm(n: u64, signal: i32) {
    start(n, signal, 0);
}

/// Sends a signal like [`arm`], but counts only accesses that may change memory: dying before a read has the
/// same effect as dying after it.
pub fn arm_at_change(n: u64, signal: i32) {
    start(n, signal, 1);
}

/// Sends the signal once more, at the `n`-th access after the first signal, if this process continues.
pub fn arm_again(n: u64) {
    ARMED.again.store(n, Ordering::SeqCst);
}

/// Makes each copy of this process that [`Fork`](crate::fork::Fork) creates from now on send itself `signal`
/// just before its `n`-th access, counted from its beginning, and so also while it receives its arguments.
/// `u64::MAX` disarms the copies.
pub fn arm_copies(n: u64, signal: i32) {
    let [left, what] = &ARMED.of_copies;
    what.store(signal as u64, Ordering::SeqCst);
    left.store(n, Ordering::SeqCst);
}

/// Returns the initial values of `left` and `signal` for copies of this process. Called before the copy is
/// made, because a copy has separate words.
pub(crate) fn for_copies() -> [u64; 2] {
    ARMED.of_copies.each_ref().map(|word| word.load(Ordering::SeqCst))
}

/// Sets the values that [`for_copies`] has returned, in a copy, before the copy's first access.
pub(crate) fn begin_copy([n, signal]: [u64; 2]) {
    start(n, signal as i32, 0);
}

fn start(n: u64, signal: i32, changes: u64) {
    ARMED.changes.store(changes, Ordering::SeqCst);
    ARMED.signal.store(signal as u64, Ordering::SeqCst);
    ARMED.left.store(n, Ordering::SeqCst);
}

/// Returns the number of accesses that this process has made to shared memory.
pub fn seen() -> u64 {
    ARMED.seen.load(Ordering::SeqCst)
}

/// Number of waits of this process that ended only after a whole poll interval without a wake-up.
static SLEPT_THROUGH: PerProcess<AtomicU64> = per_process!(AtomicU64::new(0));

/// Returns the number of waits of this process that slept for a whole poll interval without a wake-up and
/// then found their condition met.
pub fn slept_through() -> u64 {
    SLEPT_THROUGH.load(Ordering::SeqCst)
}

pub(crate) fn note_slept_through() {
    SLEPT_THROUGH.fetch_add(1, Ordering::SeqCst);
}

/// Counts one access before it happens. `changes` is `true` if it may change memory.
#[inline]
pub(crate) fn access(changes: bool) {
    let Armed { left, seen, signal, changes: only_changes, again, .. } = &*ARMED;
    seen.fetch_add(1, Ordering::Relaxed);
    if !changes && only_changes.load(Ordering::Relaxed) == 1 {
        return;
    }
    if left.load(Ordering::Relaxed) != u64::MAX && left.fetch_sub(1, Ordering::SeqCst) == 1 {
        left.store(again.swap(u64::MAX, Ordering::SeqCst), Ordering::SeqCst);
        signal_self(signal.load(Ordering::SeqCst) as i32);
    }
}
