//! # Safety
//! The clock and the size of a page, as the C library knows them. Unsafe, because these are C functions; sound, because they
//! take a valid place and numbers. Not by `rustix`: what it looks up for that in each process anew is there in the C library
//! already, and under valgrind it leads to memory that is no more.
#![allow(unsafe_code)]

use std::time::Duration;

/// The monotonic clock, which all processes of this machine share: the time since it began.
pub fn monotonic() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is valid for writes. It can't fail for a clock that each kernel has.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Bytes of a page.
pub(crate) fn page_size() -> u64 {
    // SAFETY: it takes a number only.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}
