//! Long calls of this process: driver calls that hold a lock of the driver until the work of streams has run.

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;

#[derive(Debug)]
struct OpenCalls {
    /// Numbers of the calls that are running.
    open: Vec<u64>,
    next: u64,
}

static CALLS: PerProcess<Mutex<OpenCalls>> =
    mp_core::per_process!(Mutex::new(OpenCalls { open: Vec::new(), next: 0 }));

/// Record of a running long call. Dropping the value records that the call has ended.
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

/// Returns the number of long calls that have begun in this process.
pub(crate) fn begun() -> u64 {
    CALLS.lock().next
}

/// Returns `true` if the first `count` long calls of this process have ended.
pub(crate) fn are_over(count: u64) -> bool {
    CALLS.lock().open.iter().all(|number| *number >= count)
}

/// Returns `true` if a thread is in a long call. Threads that give memory back wait until the call has ended.
pub(crate) fn is_under_way() -> bool {
    !CALLS.lock().open.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a later call does not end an earlier call.
    #[test]
    fn long_driver_calls_are_awaited_by_number() {
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
