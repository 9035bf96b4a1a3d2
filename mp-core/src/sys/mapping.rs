//! # Safety
//! The shared mapping of an arena, and typed access to it. Unsafe, because it makes references from
//! addresses; sound, because
//! - the mapping is never unmapped (an arena lives as long as its process), and its file is sealed against
//!   shrinking, so that every address in it stays valid;
//! - offsets are checked against the length before they become addresses;
//! - words are only ever reached as atomics, and plain bytes only as raw pointers, whose users (storages)
//!   prove who else may reach them.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::os;
use crate::error::{Error, Result};
use crate::sync::Ordering;
use crate::sync::shared::{AtomicU32, AtomicU64};

/// A file mapped shared, for the rest of the process's life.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: the memory behind it is shared between processes by design; it is reached as atomics or raw pointers only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd`, not inherited by `fork` and not written to core dumps.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: u64) -> Result<Self> {
        let size =
            usize::try_from(len).map_err(|_| Error::NotAnArena(format!("{len} bytes can't be mapped")))?;
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the kernel's choice; no existing memory is touched.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, flags, fd, 0) }
            .map_err(os("mmap of the arena (see RLIMIT_AS, vm.max_map_count)"))?;
        let base = NonNull::new(at.cast()).ok_or(Error::NotAnArena("mmap gave address 0".into()))?;
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the range is the mapping just made, and the advice doesn't change its contents.
            unsafe { rustix::mm::madvise(at, size, advice) }.map_err(os("madvise of the arena"))?;
        }
        Ok(Self { base, len })
    }

    /// The address of byte `offset`, of which `len` bytes follow in the mapping.
    ///
    /// # Panics
    /// If they don't: offsets come from this arena's own tables, so that means that the arena is corrupt.
    #[inline]
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> NonNull<u8> {
        assert!(offset <= self.len && len <= self.len - offset, "offset {offset:#x} is outside of the arena");
        // SAFETY: the offset is inside of the mapping (checked above).
        unsafe { self.base.add(offset as usize) }
    }

    /// The 64-bit word at byte `offset`, a multiple of 8.
    #[inline]
    pub(crate) fn u64_at(&self, offset: u64) -> &AtomicU64 {
        let at = self.bytes(offset & !7, 8);
        // SAFETY: aligned (the base is page aligned, the offset a multiple of 8), inside of the mapping, valid for
        // the life of the process; every process reaches the arena's words as atomics.
        unsafe { at.cast().as_ref() }
    }

    /// The 32-bit word at byte `offset`, a multiple of 4: for futexes, which are in words of their own.
    #[inline]
    pub(crate) fn u32_at(&self, offset: u64) -> &AtomicU32 {
        let at = self.bytes(offset & !3, 4);
        // SAFETY: as for `u64_at`. Only the kernel reads a parking word in this size (futex), its lower half; processes
        // change it as a whole.
        unsafe { at.cast().as_ref() }
    }

    /// Copies `data` to byte `offset`.
    ///
    /// # Safety
    /// The caller owns these bytes: nobody else reads or writes them meanwhile.
    #[inline]
    pub(crate) unsafe fn write(&self, offset: u64, data: &[u8]) {
        let to = self.bytes(offset, data.len() as u64);
        // SAFETY: the target is inside of the mapping and the caller's; a slice of ours can't overlap it.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to.as_ptr(), data.len()) }
    }

    /// Copies bytes from byte `offset` to `data`.
    ///
    /// # Safety
    /// Nobody writes these bytes meanwhile.
    #[inline]
    pub(crate) unsafe fn read(&self, offset: u64, data: &mut [u8]) {
        let from = self.bytes(offset, data.len() as u64);
        // SAFETY: the source is inside of the mapping and nobody writes it; `data` is ours.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), data.as_mut_ptr(), data.len()) }
    }

    /// Maps the pages of a range into this process's page tables in one go, instead of by a fault a page.
    /// Kernels that don't know how (before 5.14, gVisor) leave it to the faults.
    pub(crate) fn populate(&self, offset: u64, len: u64) {
        let at = self.bytes(offset, len);
        // SAFETY: the range is inside of the mapping, and populating doesn't change its contents.
        _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), len as usize, Advice::LinuxPopulateWrite) };
    }

    /// Drops this process's page tables of a range whose pages were given back. What is there again by now is mapped by the
    /// next access, as it is.
    pub(crate) fn drop_page_tables(&self, offset: u64, len: u64) {
        let at = self.bytes(offset, len);
        // SAFETY: the range is inside of the mapping, which is shared: its contents are the file's, and stay.
        _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), len as usize, Advice::LinuxDontNeed) };
    }
}

#[inline]
fn hook() {
    #[cfg(feature = "inject")]
    crate::inject::access();
}

impl crate::mem::Mem for Mapping {
    #[inline]
    fn load(&self, w: crate::mem::Word) -> u64 {
        hook();
        self.u64_at(w.offset()).load(Ordering::SeqCst)
    }
    #[inline]
    fn load_relaxed(&self, w: crate::mem::Word) -> u64 {
        hook();
        self.u64_at(w.offset()).load(Ordering::Relaxed)
    }
    #[inline]
    fn store(&self, w: crate::mem::Word, v: u64) {
        hook();
        self.u64_at(w.offset()).store(v, Ordering::Release);
    }
    #[inline]
    fn store_relaxed(&self, w: crate::mem::Word, v: u64) {
        hook();
        self.u64_at(w.offset()).store(v, Ordering::Relaxed);
    }
    #[inline]
    fn cas(&self, w: crate::mem::Word, old: u64, new: u64) -> Result<(), u64> {
        hook();
        self.u64_at(w.offset()).compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).map(drop)
    }
    #[inline]
    fn add(&self, w: crate::mem::Word, v: u64) -> u64 {
        hook();
        self.u64_at(w.offset()).fetch_add(v, Ordering::SeqCst)
    }
    #[inline]
    fn or(&self, w: crate::mem::Word, v: u64) -> u64 {
        hook();
        self.u64_at(w.offset()).fetch_or(v, Ordering::SeqCst)
    }
    #[inline]
    fn and(&self, w: crate::mem::Word, v: u64) -> u64 {
        hook();
        self.u64_at(w.offset()).fetch_and(v, Ordering::SeqCst)
    }
    #[inline]
    fn will_write(&self, w: crate::mem::Word) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            let word = std::ptr::from_ref(self.u64_at(w.offset()));
            // SAFETY: prefetching reads and writes nothing; processors that don't know the hint ignore it.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(word.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = w;
    }
    #[inline]
    fn fence_after_rmw(&self) {
        // On x86-64 a locked instruction is a full barrier already (Intel SDM vol. 3, 9.2.3.9); only the compiler
        // has to be kept from moving the loads that follow.
        #[cfg(target_arch = "x86_64")]
        crate::sync::compiler_fence(Ordering::SeqCst);
        #[cfg(not(target_arch = "x86_64"))]
        crate::sync::shared::fence(Ordering::SeqCst);
    }
}
