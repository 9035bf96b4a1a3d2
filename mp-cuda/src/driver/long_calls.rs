//! Calls of this process's threads that hold a lock of the driver for as long as streams run.

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

#[derive(Debug)]
struct OpenCalls {
    /// Numbers of running calls.
    open: Vec<u64>,
    next: u64,
}

static CALLS: PerProcess<Mutex<OpenCalls>> =
    mp_core::per_process!(Mutex::new(OpenCalls { open: Vec::new(), next: 0 }));

/// Call that has begun. It is dropped when the call has ended.
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
        CALLS.lock().open.retain(|number| *number != self.0);
    }
}

/// Returns the number of calls that have begun.
pub(crate) fn begun() -> u64 {
    CALLS.lock().next
}

/// Returns `true` if the first `count` calls have ended.
pub(crate) fn are_over(count: u64) -> bool {
    CALLS.lock().open.iter().all(|number| *number >= count)
}

/// Returns `true` if a thread is in such a call. Other threads that give memory back wait for that call.
pub(crate) fn is_under_way() -> bool {
    !CALLS.lock().open.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a later call does not end an earlier call.
    #[test]
    fn long_calls_are_awaited_by_number() {
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
