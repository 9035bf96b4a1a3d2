//! # Safety
//! Clock and page size from the C library. Unsafe, because these are C functions. Sound, because they take a
//! valid pointer and numbers. Not from `rustix`, which looks both up in each process again, whereas the C
//! library has already done so. Under valgrind, that lookup leads to unmapped memory.
#![allow(unsafe_code)]

use std::time::Duration;

/// Returns the time of the monotonic clock, which all processes of this machine share.
pub fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for writes. It can't fail for a clock that each kernel has.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Returns the page size in bytes.
pub(crate) fn page_size() -> u64 {
    // SAFETY: it takes a number only.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}
