//! Memory of client processes that the device accesses. The engine maps the same files.
//!
//! # Safety
//! Unsafe, because it maps files and accesses words that other processes change at any time. Sound, because
//! - a [`HostMemory`] contains the length of its mapping, and unmaps it when it is dropped;
//! - every access is checked against the length, and is made by atomics of 8 bytes or single volatile bytes;
//! - a file that its owner shortens ends the engine, which is a process of tests, by SIGBUS.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::sync::{AtomicU64, Ordering};

/// Range of memory that a client has registered, mapped by the engine.
#[derive(Debug)]
pub(crate) struct HostMemory {
    at: NonNull<u8>,
    pub(crate) bytes: u64,
    /// Identity of the file, and offset of the range in the file. Registrations of different processes with
    /// equal values refer to the same memory.
    pub(crate) file: (u64, u64),
    pub(crate) offset: u64,
}

impl HostMemory {
    /// Maps `bytes` of a file from `offset`, which is a multiple of the page size.
    pub(crate) fn map(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<Self> {
        let stat = rustix::fs::fstat(file)?;
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        if length == 0 || offset.checked_add(bytes).is_none_or(|end| end > stat.st_size.cast_unsigned()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe { mmap(ptr::null_mut(), length, protection, MapFlags::SHARED, file, offset) }?;
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { at, bytes, file: (stat.st_dev, stat.st_ino), offset })
    }

    fn byte(&self, offset: u64, length: usize) -> *mut u8 {
        assert!(
            offset.checked_add(length as u64).is_some_and(|end| end <= self.bytes),
            "checked by the caller"
        );
        self.at.as_ptr().wrapping_add(usize::try_from(offset).unwrap_or(0))
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        let at = self.byte(offset, 8).cast::<u64>();
        assert!(at.is_aligned(), "checked by the caller");
        // SAFETY: aligned, and inside the mapping, which lives as long as `self`. All accesses to words are
        // atomic.
        unsafe { AtomicU64::from_ptr(at) }
    }

    pub(crate) fn load(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::SeqCst)
    }

    pub(crate) fn store(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::SeqCst);
    }

    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) {
        let from = self.byte(offset, to.len());
        for (i, byte) in to.iter_mut().enumerate() {
            // SAFETY: checked by `byte`. Concurrent writes of other processes give some value.
            *byte = unsafe { from.wrapping_add(i).read_volatile() };
        }
    }

    pub(crate) fn write(&self, offset: u64, from: &[u8]) {
        let to = self.byte(offset, from.len());
        for (i, byte) in from.iter().enumerate() {
            // SAFETY: checked by `byte`.
            unsafe { to.wrapping_add(i).write_volatile(*byte) };
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let length = usize::try_from(self.bytes).unwrap_or(0);
        // SAFETY: this value's own mapping. No code accesses it after the drop.
        _ = unsafe { munmap(self.at.as_ptr().cast(), length) };
    }
}
