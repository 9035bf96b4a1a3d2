//! Calls that have a lock of the driver for as long as streams run: those that threads of this process are in.

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::mutant;
use mp_core::mutex::Mutex;

#[derive(Debug)]
struct Calls {
    /// The numbers of those that are not over.
    open: Vec<u64>,
    next: u64,
}

static CALLS: PerProcess<Mutex<Calls>> =
    PerProcess::new([const { Mutex::new(Calls { open: Vec::new(), next: 0 }) }; GENERATIONS]);

/// One that has begun: dropped when it is over.
#[derive(Debug)]
pub(crate) struct LongCall(u64);

impl LongCall {
    pub(crate) fn begin() -> Self {
        let mut calls = CALLS.lock();
        let number = calls.next;
        calls.next += 1;
        calls.open.push(number);
        Self(number)
    }
}

impl Drop for LongCall {
    fn drop(&mut self) {
        CALLS.lock().open.retain(|number| *number != self.0 && !mutant!("cuda.long-calls.one-ends-all"));
    }
}

/// How many have begun.
pub(crate) fn begun() -> u64 {
    CALLS.lock().next
}

/// Whether the first ones, this many, are over.
pub(crate) fn are_over(count: u64) -> bool {
    CALLS.lock().open.iter().all(|number| *number >= count)
}

/// Whether a thread is in one: another that is to give something back waits with it.
pub(crate) fn is_under_way() -> bool {
    !CALLS.lock().open.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That a later one is over says nothing of an earlier one.
    #[test]
    fn a_call_is_waited_for_by_its_number() {
        let (first, second) = (LongCall::begin(), LongCall::begin());
        let count = begun();
        drop(second);
        let third = LongCall::begin();
        assert!(!are_over(count) && is_under_way());
        drop(first);
        assert!(are_over(count) && is_under_way());
        drop(third);
        assert!(!is_under_way());
    }
}
