//! Calls that have a lock of the driver for as long as streams run: how many threads of this process are in one.

use mp_core::fork::{GENERATIONS, PerProcess};

use crate::sync::{AtomicU64, Ordering};

/// How many have begun, and how many are over.
static COUNTS: PerProcess<[AtomicU64; 2]> =
    PerProcess::new([const { [const { AtomicU64::new(0) }; 2] }; GENERATIONS]);

/// One that has begun: dropped when it is over.
#[derive(Debug)]
pub(crate) struct LongCall(());

impl LongCall {
    pub(crate) fn begin() -> Self {
        COUNTS[0].fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for LongCall {
    fn drop(&mut self) {
        COUNTS[1].fetch_add(1, Ordering::Release);
    }
}

/// How many have begun.
pub(crate) fn begun() -> u64 {
    COUNTS[0].load(Ordering::Relaxed)
}

/// Whether this many are over.
pub(crate) fn are_over(count: u64) -> bool {
    COUNTS[1].load(Ordering::Acquire) >= count
}

/// Whether a thread is in one: another that is to give something back waits with it.
pub(crate) fn is_under_way() -> bool {
    !are_over(begun())
}
