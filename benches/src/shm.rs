//! Memory that two processes share: a memfd that the child inherits by number.
//!
//! # Safety
//! A region is mapped as long as it is used, and offsets are checked. The callers ensure that no process
//! writes bytes that the other process accesses at the same time.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::Result;

/// Distance of two words that must not share a cache line, nor a pair of lines that is fetched together.
pub(crate) const APART: usize = 128;

/// A shared mapping, writable and already backed by pages.
#[derive(Debug)]
pub(crate) struct Region {
    file: File,
    start: NonNull<u8>,
    len: usize,
}

impl Region {
    /// Makes a region of `len` zeroed bytes. A child that is started while the region exists can
    /// [`open`](Self::open) it.
    ///
    /// # Errors
    /// Returns an error if no memory or no descriptor is left.
    pub(crate) fn create(len: usize) -> Result<Self> {
        // Without CLOEXEC, on purpose: the next child inherits the descriptor.
        let file = File::from(rustix::fs::memfd_create("mp-bench", MemfdFlags::empty())?);
        file.set_len(len as u64)?;
        Self::map(file, len)
    }

    /// Opens the region whose [`token`](Self::token) the parent passed on.
    ///
    /// # Errors
    /// Returns an error if the token names no inherited descriptor, or no memory is left.
    pub(crate) fn open(token: &str) -> Result<Self> {
        let inherited: u32 = token.parse().map_err(|_| format!("not a descriptor: {token:?}"))?;
        let path = format!("/proc/self/fd/{inherited}");
        let file = File::from(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?);
        let len = usize::try_from(file.metadata()?.len())?;
        Self::map(file, len)
    }

    fn map(file: File, len: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory that Rust uses.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                file.as_fd(),
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or("mmap returned a null pointer")?;
        Ok(Self { file, start, len })
    }

    /// Returns the token that the child passes to [`open`](Self::open).
    pub(crate) fn token(&self) -> String {
        self.file.as_raw_fd().to_string()
    }

    fn at(&self, offset: usize, size: usize) -> NonNull<u8> {
        assert!(offset.is_multiple_of(size) && offset + size <= self.len, "word outside the region");
        // SAFETY: the offset lies within the mapping, as just checked.
        unsafe { self.start.add(offset) }
    }

    /// Returns the 64-bit word at `offset`.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping, aligned, and only ever used as an atomic; it lives as long as `self`.
        unsafe { self.at(offset, 8).cast().as_ref() }
    }

    /// Returns the 32-bit word at `offset`.
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping, aligned, and only ever used as an atomic; it lives as long as `self`.
        unsafe { self.at(offset, 4).cast().as_ref() }
    }

    /// Returns `count` 64-bit words from `offset` on.
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8) && offset + 8 * count <= self.len, "words outside the region");
        // SAFETY: the offset lies within the mapping, as just checked.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: inside the mapping, aligned, and only ever used as atomics; they live as long as `self`.
        unsafe { std::slice::from_raw_parts(start.cast().as_ptr(), count) }
    }

    /// Copies `source` to `offset`.
    ///
    /// # Safety
    /// No thread of any process reads or writes the same bytes during the call.
    pub(crate) unsafe fn fill(&self, offset: usize, source: &[u64]) {
        let bytes = size_of_val(source);
        assert!(offset.is_multiple_of(8) && offset + bytes <= self.len, "copy outside the region");
        // SAFETY: the offset lies within the mapping, as just checked.
        let target = unsafe { self.start.add(offset) };
        // SAFETY: both places are valid for as many bytes and can't overlap; the caller ensures that no other
        // thread uses the target.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr().cast(), target.as_ptr(), bytes) };
    }

    /// Returns the `count` 64-bit values from `offset` on.
    ///
    /// # Safety
    /// No thread of any process writes these values as long as the slice lives.
    pub(crate) unsafe fn values(&self, offset: usize, count: usize) -> &[u64] {
        let words = self.words(offset, count);
        // SAFETY: an `AtomicU64` has the layout of a `u64`; the caller ensures that no thread writes there.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and every reference into it borrowed `self`. A failure could
        // only leave it mapped.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
