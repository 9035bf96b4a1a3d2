//! # Safety
//! Address range of an arena, and typed access to the memory mapped in it. Unsafe, because references are
//! made from addresses. Sound, because
//! - nothing is unmapped (an arena lives as long as its process; only an observer's mapping ends, with the
//!   observer), and its file is sealed against shrinking, so every address in it stays valid (named files
//!   can't be sealed: only their user can access them);
//! - the range is reserved as a whole, without access, before anything is mapped into it, and each part of it
//!   is mapped once ([`Mapping::place`]), before any code uses an address in that part;
//! - offsets are checked against the length before they become addresses;
//! - words are only ever accessed as atomics, and plain bytes only through raw pointers, whose users
//!   (storages) prove which other accesses are possible.
//!
//! The table of handles is a large table of words that is private to this process and takes memory only for
//! the parts in use. Unsafe, because it is mapped. Sound, because it is never unmapped, and holds only
//! aligned atomics, for which the zeros of the kernel are valid.
//!
//! A raw `fork` copies a process without notice to this library. The copy is not a member: it must not
//! release the blocks that its parent holds. With `MADV_WIPEONFORK` (Linux 4.14) the table reads 0 in the
//! copy, including the process's identity.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use crate::error::{ByteSize, Error, Result};
use crate::mem::order;
use crate::sync::Ordering;
use crate::sync::shared::{AtomicU32, AtomicU64};
use crate::sys::os;

/// Address range with files mapped shared into it, for the rest of the process's life. Its length is a
/// multiple of the page size. `Copy`, since a copy in a local variable need not be reloaded after each access
/// to shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: the memory is shared between processes by design; it is accessed only as atomics or through raw
// pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Creates the error of a failed mapping of the arena's addresses.
fn mapping(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |e| match e {
        rustix::io::Errno::AGAIN => os(LOCKED)(e),
        _ => os(what)(e),
    }
}

const LOCKED: &str = "mmap of the arena: mlockall(MCL_FUTURE) counts all its addresses against \
RLIMIT_MEMLOCK \
                      (raise it, or set a smaller MP_ARENA_SIZE)";

/// Makes addresses accessible that were mapped without access. `private` is `true` for private memory.
///
/// The range is sparse, and under `mlockall(MCL_FUTURE)` the kernel would populate all of it if it were
/// mapped with access from the beginning. For the same reason, private memory is unlocked before it becomes
/// writable.
///
/// # Safety
/// The range is a mapping of the caller's, and nothing refers to it yet.
pub(super) unsafe fn open(at: *mut std::ffi::c_void, len: usize, private: bool) -> rustix::io::Result<()> {
    if private {
        // SAFETY: unlocking changes no contents. It fails on no mapped range.
        _ = unsafe { rustix::mm::munlock(at, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { rustix::mm::mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE) }
}

/// Panics because `offset` is outside of the arena. Out of line, and takes the offset by value, so that
/// callers need not keep the offset in memory: one allocation has dozens of these checks.
#[cold]
#[inline(never)]
fn outside(offset: u64) -> ! {
    panic!("offset {offset:#x} is outside of the arena");
}

/// Creates the error of a failed reservation of `space` bytes of addresses.
fn refused_addresses(error: rustix::io::Errno, space: u64) -> Error {
    let (left, limit) = crate::sys::limits::address_space();
    if error != rustix::io::Errno::NOMEM || left == u64::MAX {
        return mapping("reserving addresses for the arena (see RLIMIT_AS)")(error);
    }
    Error::LimitExceeded(format!(
        "the arena takes {} of addresses, and {limit} leaves {} to this process: raise the limit, or have \
        a smaller arena in the \
         program that makes it (Arena::configure with ArenaOptions::size, MP_ARENA_SIZE)",
        ByteSize(space),
        ByteSize(left)
    ))
}

impl Mapping {
    /// Reserves `space` bytes of addresses, and maps the first `len` bytes of `fd` at their start. The range
    /// is not inherited by `fork` and not written to core dumps.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: u64, space: u64) -> Result<Self> {
        let map = Self::reserve(space)?;
        map.place(fd, 0, len)?;
        Ok(map)
    }

    /// Maps the first `len` bytes of `fd` without write access, until [`unmap`](Self::unmap).
    pub(crate) fn read_only(fd: BorrowedFd<'_>, len: u64) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; no existing memory is touched.
        let at =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len as usize, ProtFlags::READ, flags, fd, 0) }
                .map_err(mapping("mmap of another program's arena (see RLIMIT_AS)"))?;
        let base = NonNull::new(at.cast()).ok_or(Error::Unsupported("a mapping at address 0".into()))?;
        Ok(Self { base, len })
    }

    /// Unmaps a [`read_only`](Self::read_only) mapping, which the caller no longer uses.
    pub(crate) fn unmap(&self) {
        // SAFETY: the whole of that mapping; by the caller's promise nothing refers to it.
        _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len as usize) };
    }

    /// Reserves addresses without memory, aligned to the largest pages that are likely to be mapped there.
    fn reserve(space: u64) -> Result<Self> {
        let too_large = || Error::LimitExceeded(format!("{space} bytes can't be mapped"));
        let align: u64 = if space >= 16 << 30 { 1 << 30 } else { 2 << 20 };
        let total = space.checked_add(align).ok_or_else(too_large)?;
        let total = usize::try_from(total).map_err(|_| too_large())?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; no existing memory is touched.
        let at =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), total, ProtFlags::empty(), flags) }
                .map_err(|error| refused_addresses(error, space))?;
        let before = at.align_offset(align as usize);
        let (first, len) = (at.wrapping_byte_add(before), space as usize);
        for (at, len) in [(at, before), (first.wrapping_byte_add(len), total - before - len)] {
            if len > 0 {
                // SAFETY: a part of the reservation just made, which no other code knows yet.
                unsafe { rustix::mm::munmap(at, len) }.map_err(os("munmap of spare addresses"))?;
            }
        }
        let base = NonNull::new(first.cast()).ok_or(Error::Unsupported("a mapping at address 0".into()))?;
        // SAFETY: the range is the reservation just made, and the advice doesn't change its contents.
        unsafe { rustix::mm::madvise(first, len, Advice::LinuxDontFork) }
            .map_err(os("madvise of the arena"))?;
        Ok(Self { base, len: space })
    }

    /// Maps the first `len` bytes of a file at byte `offset`. The caller maps each part at most once.
    pub(crate) fn place(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
        let at = self.bytes(offset, len).as_ptr().cast();
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the range is a part of our own reservation (checked by `bytes`) that has no memory yet, by
        // the caller's promise; so nothing refers to it.
        unsafe { rustix::mm::mmap(at, len as usize, ProtFlags::empty(), flags, fd, 0) }
            .map_err(mapping("mmap of the arena (see RLIMIT_AS, vm.max_map_count)"))?;
        // SAFETY: the range is the mapping just made.
        unsafe { open(at, len as usize, false) }.map_err(os("mprotect of the arena"))?;
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the range is the mapping just made, and the advice doesn't change its contents.
            unsafe { rustix::mm::madvise(at, len as usize, advice) }.map_err(os("madvise of the arena"))?;
        }
        Ok(())
    }

    /// Reserves the addresses in a forked copy, where the arena is not mapped (`MADV_DONTFORK`), so that no
    /// other mapping gets these addresses. An access to them raises SIGSEGV.
    pub(crate) fn reserve_in_copy(&self) -> Result<()> {
        reserve_at(self.base.as_ptr() as usize, self.len as usize)
    }

    /// Maps the first `len` bytes of a file at byte `offset` of the reservation, in a forked copy, for
    /// private writes. Maps them for reading only if the kernel refuses private writes
    /// (`vm.overcommit_memory` of 2). Called after [`reserve_in_copy`](Self::reserve_in_copy).
    pub(crate) fn place_in_copy(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
        let at = self.bytes(offset, len).as_ptr().cast();
        let map = |prot| {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: the range is a part of our own reservation (checked by `bytes`). The file keeps
            // the data of the range, and private writes don't change the file.
            unsafe { rustix::mm::mmap(at, len as usize, prot, flags, fd, 0) }
        };
        map(ProtFlags::READ | ProtFlags::WRITE)
            .or_else(|_| map(ProtFlags::READ))
            .map_err(mapping("mmap of the arena in a forked process"))?;
        // SAFETY: the range is the mapping just made, and the advice doesn't change its contents.
        unsafe { rustix::mm::madvise(at, len as usize, Advice::LinuxDontDump) }
            .map_err(os("madvise of the arena"))
    }

    /// Creates a mapping of private memory.
    #[cfg(not(miri))]
    pub(crate) fn local(len: u64) -> Result<Self> {
        let map = Self::reserve(len)?;
        let at = map.base.as_ptr().cast();
        // SAFETY: the whole of our own reservation, which has no memory yet.
        unsafe { open(at, len as usize, true) }
            .map_err(os("mprotect of a local arena (see RLIMIT_AS, vm.overcommit_memory)"))?;
        // SAFETY: the range is that mapping, and the advice doesn't change its contents.
        unsafe { rustix::mm::madvise(at, len as usize, Advice::LinuxDontFork) }
            .map_err(os("madvise of a local arena"))?;
        Ok(map)
    }

    /// Creates a mapping of private memory: under Miri an allocation, which Miri supports best.
    #[cfg(miri)]
    pub(crate) fn local(len: u64) -> Result<Self> {
        let none = || Error::OutOfMemory { asked: len, left: 0, limit: "the heap".into() };
        let layout = std::alloc::Layout::from_size_align(len as usize, 4096).map_err(|_| none())?;
        // SAFETY: `len` is not 0: an arena has a smallest size.
        let at = unsafe { std::alloc::alloc_zeroed(layout) };
        Ok(Self { base: NonNull::new(at).ok_or_else(none)?, len })
    }

    /// Returns the memory of a range of a [`local`](Self::local) mapping to the kernel. The range reads as
    /// zero afterwards.
    pub(crate) fn forget(&self, offset: u64, len: u64) {
        let at = self.bytes(offset, len).as_ptr().cast();
        // SAFETY: inside of the mapping, and a free block's: nothing refers to it. It reads as zeros
        // afterwards.
        _ = unsafe { rustix::mm::madvise(at, len as usize, Advice::LinuxDontNeed) };
    }

    /// Returns the address of byte `offset`, followed by at least `len` bytes of the mapping.
    ///
    /// # Panics
    /// If the range exceeds the mapping. Offsets come from this arena's own tables, so this means that the
    /// arena is corrupt.
    #[inline]
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> NonNull<u8> {
        if offset > self.len || len > self.len - offset {
            outside(offset);
        }
        // SAFETY: the offset is inside of the mapping (checked above).
        unsafe { self.base.add(offset as usize) }
    }

    /// Returns the 64-bit word at byte `offset`, a multiple of 8.
    ///
    /// # Panics
    /// The same as for [`bytes`](Self::bytes).
    #[inline]
    pub(crate) fn u64_at(&self, offset: u64) -> &'static AtomicU64 {
        let at = offset & !7;
        // One comparison: the length is also a multiple of 8, so the whole word is inside if its first byte
        // is.
        if at >= self.len {
            outside(offset);
        }
        // SAFETY: the offset is inside of the mapping (checked above).
        let at = unsafe { self.base.add(at as usize) };
        // SAFETY: aligned (the base is page aligned, the offset a multiple of 8), inside of the mapping,
        // valid for the life of the process; every process reaches the arena's words as atomics.
        unsafe { at.cast().as_ref() }
    }

    /// Returns two neighboring words, the first at byte `offset`, a multiple of 16.
    ///
    /// # Panics
    /// The same as for [`bytes`](Self::bytes).
    #[inline]
    fn pair_at(&self, offset: u64) -> &'static [AtomicU64; 2] {
        let at = offset & !15;
        // As above: the length is also a multiple of 16.
        if at >= self.len {
            outside(offset);
        }
        // SAFETY: the offset is inside of the mapping (checked above).
        let at = unsafe { self.base.add(at as usize) };
        // SAFETY: as for `u64_at`, for two words: the second one ends at the next multiple of 16.
        unsafe { at.cast().as_ref() }
    }

    /// Returns the low half of a word, on which threads sleep.
    #[inline]
    pub(crate) fn futex_at(&self, w: crate::mem::Word) -> &'static AtomicU32 {
        let low = if cfg!(target_endian = "big") { 4 } else { 0 };
        let at = self.bytes(w.offset() + low, 4);
        // SAFETY: aligned, inside of the mapping, which is never unmapped; reached as atomics only.
        unsafe { at.cast().as_ref() }
    }

    /// Copies `data` to byte `offset`.
    ///
    /// # Safety
    /// The caller owns these bytes: no other thread or process reads or writes them meanwhile.
    #[inline]
    pub(crate) unsafe fn write(&self, offset: u64, data: &[u8]) {
        let to = self.bytes(offset, data.len() as u64);
        // SAFETY: the target is inside of the mapping and the caller's; a slice of ours can't overlap it.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to.as_ptr(), data.len()) }
    }

    /// Maps the pages of a range into this process's page tables in one call, instead of by a fault for each
    /// page. Has no effect on kernels without support for it (before 5.14, gVisor).
    #[cfg(not(miri))]
    pub(crate) fn populate(&self, offset: u64, len: u64) {
        let at = self.bytes(offset, len);
        // SAFETY: the range is inside of the mapping, and populating doesn't change its contents.
        _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), len as usize, Advice::LinuxPopulateWrite) };
    }

    /// Has no effect: under Miri, memory needs no population.
    #[cfg(miri)]
    pub(crate) fn populate(&self, _: u64, _: u64) {}

    /// Advises the kernel to use huge pages for a range. Kernels without huge pages ignore the advice.
    pub(crate) fn ask_for_huge_pages(&self, offset: u64, len: u64) {
        let at = self.bytes(offset, len);
        // SAFETY: the range is inside of the mapping, and the advice doesn't change its contents.
        _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), len as usize, Advice::LinuxHugepage) };
    }

    /// Drops this process's page tables of a range whose pages were returned. The next access maps the pages
    /// that the file has by then.
    pub(crate) fn drop_page_tables(&self, offset: u64, len: u64) {
        let at = self.bytes(offset, len);
        // SAFETY: the range is inside of the mapping, which is shared: its contents are in the file, and
        // stay.
        _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), len as usize, Advice::LinuxDontNeed) };
    }
}

/// Reserves addresses in a forked copy. An access there raises SIGSEGV.
pub(crate) fn reserve_at(address: usize, len: usize) -> Result<()> {
    let at = std::ptr::without_provenance_mut(address);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: replaces nothing: an existing mapping stays, and causes an error. Kernels without that flag
    // treat the address as a hint.
    let got = unsafe { rustix::mm::mmap_anonymous(at, len, ProtFlags::empty(), flags) };
    let got = got.map_err(os("reserving addresses (see RLIMIT_AS)"))?;
    if got == at {
        return Ok(());
    }
    // SAFETY: the mapping just made, which no other code knows.
    _ = unsafe { rustix::mm::munmap(got, len) };
    Err(os("reserving addresses")(rustix::io::Errno::EXIST))
}

/// Unmaps a mapping for private writes that a forked copy has inherited and doesn't use.
pub(crate) fn unmap_inherited(address: usize, len: usize) -> Result<()> {
    let at = std::ptr::without_provenance_mut(address);
    // SAFETY: the mapping is listed as this process's own, and the copy uses no reference into it.
    unsafe { rustix::mm::munmap(at, len) }.map_err(os("munmap of an inherited mapping"))
}

#[inline]
fn hook(changes: bool) {
    #[cfg(feature = "inject")]
    crate::sys::inject::access(changes);
    #[cfg(not(feature = "inject"))]
    let _ = changes;
}

impl crate::mem::Mem for Mapping {
    #[inline(always)]
    fn load(&self, w: crate::mem::Word) -> u64 {
        hook(false);
        self.u64_at(w.offset()).load(order::load())
    }
    #[inline(always)]
    fn load_relaxed(&self, w: crate::mem::Word) -> u64 {
        hook(false);
        self.u64_at(w.offset()).load(order::HINT)
    }
    #[inline(always)]
    fn store(&self, w: crate::mem::Word, v: u64) {
        hook(true);
        self.u64_at(w.offset()).store(v, order::store());
    }
    #[inline(always)]
    fn store_relaxed(&self, w: crate::mem::Word, v: u64) {
        hook(true);
        self.u64_at(w.offset()).store(v, order::HINT);
    }
    #[inline(always)]
    fn cas(&self, w: crate::mem::Word, old: u64, new: u64) -> Result<(), u64> {
        hook(true);
        self.u64_at(w.offset()).compare_exchange(old, new, order::cas(), order::cas_failure()).map(drop)
    }
    #[inline(always)]
    fn add(&self, w: crate::mem::Word, v: u64) -> u64 {
        hook(true);
        self.u64_at(w.offset()).fetch_add(v, order::add())
    }
    #[inline(always)]
    fn or(&self, w: crate::mem::Word, v: u64) -> u64 {
        hook(true);
        self.u64_at(w.offset()).fetch_or(v, order::or())
    }
    #[inline(always)]
    fn and(&self, w: crate::mem::Word, v: u64) -> u64 {
        hook(true);
        self.u64_at(w.offset()).fetch_and(v, order::and())
    }
    #[inline(always)]
    fn has_pairs(&self) -> bool {
        crate::sys::cmpxchg16b::is_supported()
    }
    #[inline(always)]
    fn cas_pair(&self, w: crate::mem::Word, old: [u64; 2], new: [u64; 2]) -> bool {
        hook(true);
        w.offset().is_multiple_of(16)
            && crate::sys::cmpxchg16b::compare_exchange(self.pair_at(w.offset()), old, new)
    }
    #[inline(always)]
    fn will_write(&self, w: crate::mem::Word) {
        #[cfg(target_arch = "x86_64")]
        {
            let word = std::ptr::from_ref(self.u64_at(w.offset()));
            // SAFETY: it reads and writes nothing, and has no effect on processors without it. (The
            // compiler's own intrinsic would fetch the line for reading, since not all of its target
            // processors have this instruction.)
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) word, options(nostack, preserves_flags, readonly));
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = w;
    }
    #[inline(always)]
    fn will_read(&self, w: crate::mem::Word) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let word = std::ptr::from_ref(self.u64_at(w.offset()));
            // SAFETY: it reads and writes nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(word.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = w;
    }
    #[inline(always)]
    fn lost(&self) {
        crate::sys::backoff::back_off();
    }
    #[inline(always)]
    fn ticks(&self) -> u32 {
        crate::sys::monotonic().as_nanos() as u32
    }
    fn fence_after_rmw(&self) {
        // On x86-64 a locked instruction is a full barrier already (Intel SDM vol. 3, 9.2.3.9); only the
        // compiler has to be kept from moving the loads that follow.
        #[cfg(target_arch = "x86_64")]
        crate::sync::compiler_fence(Ordering::SeqCst);
        #[cfg(not(target_arch = "x86_64"))]
        crate::sync::shared::fence(Ordering::SeqCst);
    }
}

/// Allocates `len` words, initially zero. Miri has no sparse mappings, so memory is allocated for all words.
#[cfg(miri)]
pub(crate) fn private_table(len: usize) -> Result<&'static [AtomicU64]> {
    Ok(Vec::leak((0..len).map(|_| AtomicU64::new(0)).collect()))
}

/// Allocates `len` words, initially zero, and zero in a forked copy of the process.
#[cfg(not(miri))]
pub(crate) fn private_table(len: usize) -> Result<&'static [AtomicU64]> {
    let bytes = len * size_of::<AtomicU64>();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) }
        .map_err(os("mmap of the table of handles (see RLIMIT_AS, and RLIMIT_MEMLOCK after mlockall)"))?;
    // SAFETY: the range is the mapping just made.
    unsafe { open(at, bytes, true) }.map_err(os("mprotect of the table of handles"))?;
    // SAFETY: the range is the mapping just made.
    unsafe { rustix::mm::madvise(at, bytes, Advice::LinuxWipeOnFork) }
        .map_err(os("madvise(MADV_WIPEONFORK) of the table of handles"))?;
    // SAFETY: page aligned, zeroed, `bytes` long, never unmapped, reached only as atomics.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), len) })
}
