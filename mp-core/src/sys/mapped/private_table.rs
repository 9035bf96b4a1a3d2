//! # Safety
//! Large table of words that is private to this process and takes memory only for the parts in use. Unsafe,
//! because it is mapped. Sound, because it is never unmapped, and holds only aligned atomics, for which the
//! zeros of the kernel are valid.
//!
//! A raw `fork` copies a process without notice to this library. The copy is not a member: it must not
//! release the blocks that its parent holds. With `MADV_WIPEONFORK` (Linux 4.14) the table reads 0 in the
//! copy, including the process's identity.
#![allow(unsafe_code)]

#[cfg(not(miri))]
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::Result;
use crate::sync::shared::AtomicU64;
#[cfg(not(miri))]
use crate::sys::os;

/// Allocates `len` words, initially zero. Miri has no sparse mappings, so it allocates all of them.
#[cfg(miri)]
pub(crate) fn table(len: usize) -> Result<&'static [AtomicU64]> {
    Ok(Vec::leak((0..len).map(|_| AtomicU64::new(0)).collect()))
}

/// Allocates `len` words, initially zero, and zero in a forked copy of the process.
#[cfg(not(miri))]
pub(crate) fn table(len: usize) -> Result<&'static [AtomicU64]> {
    let bytes = len * size_of::<AtomicU64>();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) }
        .map_err(os("mmap of the table of handles (see RLIMIT_AS, and RLIMIT_MEMLOCK after mlockall)"))?;
    // SAFETY: the range is the mapping just made.
    unsafe { super::mapping::open(at, bytes, true) }.map_err(os("mprotect of the table of handles"))?;
    // SAFETY: the range is the mapping just made.
    unsafe { rustix::mm::madvise(at, bytes, Advice::LinuxWipeOnFork) }
        .map_err(os("madvise(MADV_WIPEONFORK) of the table of handles"))?;
    // SAFETY: page aligned, zeroed, `bytes` long, never unmapped, reached only as atomics.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), len) })
}
