//! Private views of storages: a process changes the bytes without changing the storage.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::mem::bytes;
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::setup::Backing;
use crate::storage::Storage;
use crate::sync::shared::{AtomicBool, Ordering};
use crate::sys::region::Region;
use crate::sys::{self, directory, futex, limits};

/// Mappings of this process for private writes, by address.
pub(crate) static MAPPED: PerProcess<Mutex<BTreeMap<usize, MappedRange>>> =
    per_process!(Mutex::new(BTreeMap::new()));

/// `true` if [`keep_memory_readable`](crate::fork::keep_memory_readable) was called: raw forks of this
/// process then inherit the mappings.
// fork: applies to the copies of a copy as well.
pub(crate) static ARE_INHERITED: AtomicBool = AtomicBool::new(false);

/// Mapping of this process for private writes.
#[derive(Debug)]
pub(crate) struct MappedRange {
    len: usize,
    /// `true` if forked processes inherit the mapping.
    is_inherited: bool,
}

impl MappedRange {
    /// Replaces the mapping by reserved addresses, in a forked process, which must not access the memory.
    pub(crate) fn reserve_in_copy(&self, address: usize) -> Result<()> {
        if self.is_inherited {
            sys::unmap_inherited(address, self.len)?;
        }
        sys::reserve_at(address, self.len)
    }
}

/// Maximum number of mappings: a quarter of the default of `vm.max_map_count`. The allocator and the stacks
/// of threads need mappings, too.
const MOST: usize = 16 << 10;

/// Alignment of the bytes. Blocks have the same alignment.
const ALIGN: usize = 64;

/// Private view of bytes of a [`Storage`], which this process may change.
///
/// Writes are not visible to other processes, nor through the storage. A page is copied when it is written.
/// Until then, a write to the storage may be visible in the view, so the bytes are constant only as long as
/// nothing writes to the storage. The storage lives as long as this value.
///
/// In a forked process, the bytes must not be accessed, except after
/// [`keep_memory_readable`](crate::fork::keep_memory_readable).
#[derive(Debug)]
pub struct CopyOnWrite {
    memory: Memory,
    storage: Storage,
    /// Position of the view's first byte in `memory`.
    skip: usize,
    len: usize,
}

#[derive(Debug)]
enum Memory {
    Mapped(Region),
    Copied(Vec<u8>),
}

impl Storage {
    /// Returns a private view of `len` bytes from byte `from` on, which this process may change. Copies the
    /// bytes at once if they can't be mapped.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not enough memory for a copy, [`Error::Forked`] in a forked copy of
    /// the process that has the storage.
    ///
    /// # Panics
    /// If the range exceeds the storage.
    pub fn copy_on_write(&self, from: usize, len: usize) -> Result<CopyOnWrite> {
        let arena = self.hold().arena();
        arena.me()?;
        assert!(from <= self.len() && len <= self.len() - from, "{len} bytes from {from} of {self:?}");
        let at = self.hold().words().0.offset() + from as u64;
        let (memory, skip) = match map(arena, at, len) {
            Some((region, skip)) => (Memory::Mapped(region), skip),
            None => copy(self, from, len)?,
        };
        Ok(CopyOnWrite { memory, storage: self.clone(), skip, len })
    }
}

/// Maps the pages of a range of the arena. Returns the mapping, and the position of the range's first byte in
/// it.
fn map(arena: Arena, at: u64, len: usize) -> Option<(Region, usize)> {
    if cfg!(miri) || len == 0 {
        return None;
    }
    Backing(arena).with_unlocked_file_at(at, |file, at| map_file(file, at, len)).ok()?
}

/// Maps the pages of a range of a file. Returns the mapping, and the position of the range's first byte in
/// it.
fn map_file(file: BorrowedFd<'_>, at: u64, len: usize) -> Option<(Region, usize)> {
    // Locked until the mapping is listed, so that no fork happens in between.
    let mut mapped = MAPPED.lock();
    if mapped.len() >= MOST {
        return None;
    }
    // A write would need another huge page for the copy. If none is free, the process gets a SIGBUS.
    if directory::huge_page_of(file).is_some() {
        return None;
    }
    let skip = at % futex::page_size();
    let is_inherited = ARE_INHERITED.load(Ordering::Relaxed);
    let region = Region::copy_on_write(file, at - skip, skip + len as u64, is_inherited).ok()?;
    let range = MappedRange { len: region.size() as usize, is_inherited };
    mapped.insert(region.base().as_ptr() as usize, range);
    Some((region, skip as usize))
}

/// Copies a range of a storage. Returns the copy, and the position of the range's first byte in it.
fn copy(storage: &Storage, from: usize, len: usize) -> Result<(Memory, usize)> {
    let mut copied = Vec::new();
    if copied.try_reserve_exact(len + ALIGN).is_err() {
        let (left, limit) = limits::memory_left();
        return Err(Error::OutOfMemory { asked: len as u64, left, limit });
    }
    copied.resize(len + ALIGN, 0);
    let skip = copied.as_ptr().align_offset(ALIGN).min(ALIGN);
    let (first, _) = storage.hold().words();
    bytes::read(storage.hold().arena().map(), first, from as u64, &mut copied[skip..skip + len]);
    Ok((Memory::Copied(copied), skip))
}

impl CopyOnWrite {
    /// Returns the address of the first byte. The bytes may be read and written through it as long as this
    /// value lives, no other thread accesses them, and nothing writes to the storage.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        match &mut self.memory {
            Memory::Mapped(region) => region.base().as_ptr().wrapping_add(self.skip),
            Memory::Copied(copied) => copied.as_mut_ptr().wrapping_add(self.skip),
        }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns `true` if the bytes were mapped, `false` if they were copied.
    pub fn is_mapped(&self) -> bool {
        matches!(self.memory, Memory::Mapped(_))
    }
}

impl Drop for CopyOnWrite {
    fn drop(&mut self) {
        let memory = std::mem::replace(&mut self.memory, Memory::Copied(Vec::new()));
        let Memory::Mapped(region) = memory else { return };
        if self.storage.hold().arena().is_here() {
            // Locked until the region is unmapped, so that no fork happens in between.
            let mut mapped = MAPPED.lock();
            mapped.remove(&(region.base().as_ptr() as usize));
            drop(region);
        } else {
            // A forked copy has no such mapping. Other memory may be at the address.
            std::mem::forget(region);
        }
    }
}
