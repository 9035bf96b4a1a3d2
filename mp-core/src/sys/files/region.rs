//! # Safety
//! Mapping of a file from another program, for the life of the value. Unsafe, because references are made
//! from addresses. Sound, because
//! - the mapping lives as long as the `Region`, and every access borrows it;
//! - offsets are checked against its length;
//! - the only references are to 64-bit atomics, of which the mapping consists: concurrent writes are no data
//!   race. (Elements of other sizes are parts of such words.)
//!
//! The length of the file is not guaranteed. If the file shrinks, an access after its new end raises SIGBUS,
//! which ends the process, and accesses no other memory. [`foreign`](crate::sys::foreign) reports which files
//! are sealed against shrinking.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Error, Result};
use crate::mem::{Mem, Word, atomic_accesses, order};
use crate::sync::Ordering;
use crate::sync::shared::{AtomicU64, fence};
use crate::sys::{foreign, os};

/// Purpose of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapMode {
    /// Reading and writing, visible to other processes.
    ReadWrite,
    /// Reading the writes of other processes.
    ReadShared,
    /// Reading data that no process can change.
    ReadPrivate,
}

/// Mapped file.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    /// Number of bytes of the file that are mapped.
    len: u64,
}

// SAFETY: it is accessed as atomics, or through raw pointers whose users prove which other accesses are
// possible.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the first `len` bytes of a file. The caller ensures that the file does not shrink: see
    /// [`seals`](crate::foreign::seals).
    ///
    /// # Errors
    /// [`Error::NotShareable`] if the file is shorter, or not regular; [`Error::Os`] if it can't be mapped.
    pub fn new(fd: BorrowedFd<'_>, len: u64, mode: MapMode) -> Result<Self> {
        // Never empty, and always whole words: the rest of the last page is mapped as well.
        let size = usize::try_from(len.max(1))
            .map_err(|_| Error::LimitExceeded(format!("{len} bytes can't be mapped")))?;
        let (prot, flags) = match mode {
            MapMode::ReadWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            MapMode::ReadShared => (ProtFlags::READ, MapFlags::SHARED),
            // Private: kernels before 6.7 refuse a shared mapping of a file that is sealed against writing.
            MapMode::ReadPrivate => (ProtFlags::READ, MapFlags::PRIVATE),
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice; no existing memory is touched.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, flags, fd, 0) }
            .map_err(os("mmap of a foreign file (see RLIMIT_AS, vm.max_map_count)"))?;
        let base = NonNull::new(at.cast()).ok_or(Error::Unsupported("a mapping at address 0".into()))?;
        let mapped = Self { base, len };
        // Checked after the mapping: from now on the caller is responsible for the length.
        let has = foreign::length(fd)?;
        if has < len {
            let why = format!(
                "{len} bytes of a file are to be mapped, which has {has}: an access behind its end would \
                be a SIGBUS"
            );
            return Err(Error::NotShareable(why));
        }
        Ok(mapped)
    }

    /// Maps `len` bytes of a file from byte `offset` on, a multiple of the page size, for reading and
    /// writing. Writes copy the page and are not visible to other processes. Forked processes inherit the
    /// mapping, which keeps the open file description, only if `inherited` is `true`. The caller ensures that
    /// the file has the bytes.
    ///
    /// # Errors
    /// [`Error::Os`] if it can't be mapped.
    pub(crate) fn copy_on_write(fd: BorrowedFd<'_>, offset: u64, len: u64, inherited: bool) -> Result<Self> {
        let size = usize::try_from(len.max(1))
            .map_err(|_| Error::LimitExceeded(format!("{len} bytes can't be mapped")))?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice; no existing memory is touched.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, flags, fd, offset) }
            .map_err(os("mmap for private writes (see RLIMIT_AS, vm.max_map_count)"))?;
        let base = NonNull::new(at.cast()).ok_or(Error::Unsupported("a mapping at address 0".into()))?;
        let mapped = Self { base, len };
        let advice = if inherited { Advice::LinuxDoFork } else { Advice::LinuxDontFork };
        // SAFETY: the range is the mapping just made, and the advice doesn't change its contents.
        unsafe { rustix::mm::madvise(at, size, advice) }
            .map_err(os("madvise of a mapping for private writes"))?;
        Ok(mapped)
    }

    /// Returns the number of bytes of the file that are mapped.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline]
    pub(crate) fn word(&self, w: Word) -> &AtomicU64 {
        let at = w.offset();
        assert!(at < self.len, "word {at} is outside of a region of {} bytes", self.len);
        // SAFETY: inside of the mapping (checked above; pages are whole words).
        let p = unsafe { self.base.add(at as usize) };
        // SAFETY: aligned (the base is page aligned, the offset a multiple of 8), inside of the mapping,
        // borrowed from `self`; reached as atomics of this width only.
        unsafe { p.cast().as_ref() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made by the constructor, with the same length; no borrow of it is left.
        _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len.max(1) as usize) };
    }
}

impl Mem for Region {
    atomic_accesses!(word);
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn region_longer_than_its_file_is_refused() {
        let file = foreign::memfd_of(&[7; 5000]).unwrap();
        for mode in [MapMode::ReadWrite, MapMode::ReadShared, MapMode::ReadPrivate] {
            let region = Region::new(file.as_fd(), 5000, mode).unwrap();
            assert_eq!(region.load(Word::at(4992)), u64::from_ne_bytes([7; 8]));
            // Lengths that end in the last page of the file, and after that page.
            for len in [5001, 8193, u64::MAX] {
                let error = Region::new(file.as_fd(), len, mode).unwrap_err();
                let said = error.to_string();
                assert!(said.contains("5000") && said.contains("SIGBUS") || len == u64::MAX, "{said}");
            }
        }
    }
}
