//! Test only: a process kills or stops itself at its n-th access to shared memory.
//!
//! With the feature `inject`, every shared access counts; [`arm`] says at which one the process sends itself a
//! signal. So a test can go through all the points at which a process can die, one by one. Copies by [`Fork`] count for
//! themselves, from their first access on: [`arm_copies`] arms those.
//!
//! [`Fork`]: crate::fork::Fork
//!
//! It counts waits that were not woken as well: [`slept_through`].

use crate::process::{GENERATIONS, PerProcess};
use crate::sync::shared::{AtomicU64, Ordering};

/// What is to happen to this process.
struct Armed {
    left: AtomicU64,
    seen: AtomicU64,
    signal: AtomicU64,
    /// 1 if only what may change memory counts.
    changes: AtomicU64,
    /// What `left` is after that.
    again: AtomicU64,
    /// What `left` and `signal` are in a copy, at first.
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

static ARMED: PerProcess<Armed> = PerProcess::new([const { Armed::new() }; GENERATIONS]);

/// Sends `signal` to this process just before its `n`-th access from now on (1 is the next one).
pub fn arm(n: u64, signal: i32) {
    start(n, signal, 0);
}

/// As [`arm`], but counts only what may change memory: a process that dies before it reads leaves what one leaves that
/// dies after it.
pub fn arm_at_change(n: u64, signal: i32) {
    start(n, signal, 1);
}

/// When what was armed has happened, and this process continues: the same at the `n`-th access after that,
/// once.
pub fn arm_again(n: u64) {
    ARMED.again.store(n, Ordering::SeqCst);
}

/// Each copy of this process that [`Fork`](crate::fork::Fork) makes from now on sends itself `signal` just before its `n`-th
/// access, counted from its beginning: so also while it gets its arguments. No copy does, if `n` is `u64::MAX`.
pub fn arm_copies(n: u64, signal: i32) {
    let [left, what] = &ARMED.of_copies;
    what.store(signal as u64, Ordering::SeqCst);
    left.store(n, Ordering::SeqCst);
}

/// What copies of this process begin with. To be asked for as the original: a copy that has begun has words of its own.
pub(crate) fn for_copies() -> [u64; 2] {
    ARMED.of_copies.each_ref().map(|word| word.load(Ordering::SeqCst))
}

/// In the copy, before its first access.
pub(crate) fn begin_copy([n, signal]: [u64; 2]) {
    start(n, signal as i32, 0);
}

fn start(n: u64, signal: i32, changes: u64) {
    ARMED.changes.store(changes, Ordering::SeqCst);
    ARMED.signal.store(signal as u64, Ordering::SeqCst);
    ARMED.left.store(n, Ordering::SeqCst);
}

/// How many accesses there were.
pub fn seen() -> u64 {
    ARMED.seen.load(Ordering::SeqCst)
}

/// Waits of this process that have slept through what they waited for.
static SLEPT_THROUGH: PerProcess<AtomicU64> = PerProcess::new([const { AtomicU64::new(0) }; GENERATIONS]);

/// How often a wait of this process slept for a whole poll interval, without a wake-up, and found then what it waited for.
pub fn slept_through() -> u64 {
    SLEPT_THROUGH.load(Ordering::SeqCst)
}

pub(crate) fn note_slept_through() {
    SLEPT_THROUGH.fetch_add(1, Ordering::SeqCst);
}

/// One access is about to happen, which may change memory or only reads it.
#[inline]
pub(crate) fn access(changes: bool) {
    let Armed { left, seen, signal, changes: only_changes, again, .. } = &*ARMED;
    seen.fetch_add(1, Ordering::Relaxed);
    if !changes && only_changes.load(Ordering::Relaxed) == 1 {
        return;
    }
    if left.load(Ordering::Relaxed) != u64::MAX && left.fetch_sub(1, Ordering::SeqCst) == 1 {
        left.store(again.swap(u64::MAX, Ordering::SeqCst), Ordering::SeqCst);
        crate::sys::raise::signal_self(signal.load(Ordering::SeqCst) as i32);
    }
}
