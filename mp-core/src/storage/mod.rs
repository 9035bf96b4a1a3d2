//! # Safety
//! A storage: a block's bytes, as memory of this process. Unsafe, because it makes pointers from the mapping; sound, because
//! - the block is held as long as the storage (a [`Hold`] in it), and stays where it is; the storage of a tensor that is in a
//!   message holds none, and has no bytes;
//! - pointers are checked against its length, and no reference is made here: which access is allowed follows from the type
//!   that keeps the storage;
//! - what a caller that moves it into a message must keep is declared ([`Attached::attach_own`]).
#![allow(unsafe_code)]

pub(crate) mod weak;

use std::num::NonZero;
use std::ptr::NonNull;

use bytemuck::Pod;

use crate::arena::{Arena, Hold};
use crate::error::{Bytes, Error, Result};
use crate::message::Attached;
use crate::words::{Grant, Kind};

/// A piece of shared memory, held by this process; what a tensor is a view of.
///
/// Cloning counts. Two storages are equal if they are the same memory: a storage received twice is one storage.
#[derive(Clone)]
pub struct Storage {
    hold: Hold,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is shared between processes; the tensor types decide which access is allowed, and
// a storage alone gives none.
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

impl PartialEq for Storage {
    fn eq(&self, other: &Self) -> bool {
        self.hold.block() == other.hold.block() && self.hold.arena() == other.hold.arena()
    }
}
impl Eq for Storage {}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Storage({} in {:?})", Bytes(self.bytes as u64), self.hold)
    }
}

/// Out of the way, so that what is left of an access is the access.
#[cold]
#[inline(never)]
fn outside(first: usize, len: usize, all: usize) -> ! {
    panic!("elements {first} + {len} of a storage that has {all}");
}

impl Storage {
    /// New memory for `len` elements of `size` bytes. Its contents are whatever they were.
    pub fn new(arena: Arena, len: usize, size: usize) -> Result<Self> {
        let bytes = len.checked_mul(size).ok_or_else(|| arena.too_large(u64::MAX))?;
        Ok(Self::of(arena.alloc_by_strategy(bytes as u64)?, bytes))
    }

    /// The memory of a held block.
    pub fn of(hold: Hold, bytes: usize) -> Self {
        let (at, len) = hold.memory();
        Self::in_range(hold, at, bytes.min(len as usize))
    }

    #[inline]
    fn in_range(hold: Hold, at: u64, bytes: usize) -> Self {
        let base = hold.arena().map().bytes(at, bytes as u64);
        Self { hold, base, bytes }
    }

    /// The memory of a held block, all of it; its pages are mapped in bulk.
    #[inline]
    pub fn received(hold: Hold) -> Self {
        let (at, len) = hold.memory();
        hold.arena().populate(hold.block(), at, len);
        Self::in_range(hold, at, len as usize)
    }

    /// As long as its sender's: `bytes`, or without them up to `end`, the end of the view that it came with.
    ///
    /// # Errors
    /// When these bytes are fewer than the view has, or more than the block.
    #[inline]
    pub fn ends_at(&mut self, end: usize, bytes: Option<NonZero<u64>>) -> Result<()> {
        let wanted = bytes.map_or(end as u64, NonZero::get);
        if wanted < end as u64 || wanted > self.bytes as u64 {
            return Err(Error::Malformed(format!(
                "a storage of {wanted} bytes, in a block of {}, with a view that ends at byte {end}",
                self.bytes
            )));
        }
        self.bytes = wanted as usize;
        Ok(())
    }

    /// Moves its handle into a message; its number there, and how many bytes it had. What is left has none.
    ///
    /// # Errors
    /// As [`Attached::attach_own`]; then it stays as it is.
    ///
    /// # Safety
    /// As for [`Attached::attach_own`], of the value whose storage this is.
    pub unsafe fn lend(&mut self, out: &mut Attached, grant: Grant) -> Result<(u32, usize)> {
        // SAFETY: the caller's promise.
        let attachment = unsafe { out.attach_own(&mut self.hold, grant) }?;
        self.base = NonNull::dangling();
        Ok((attachment, std::mem::take(&mut self.bytes)))
    }

    /// Lets any process read, or read and write: the block remembers it as long as it lives, so that no process
    /// receives it as an exclusive tensor's any more, and an exclusive tensor of it that lives can't be sent. A block is opened in one of the two ways, and stays so; memory that
    /// is for no elements, a queue's say, is opened in none.
    ///
    /// # Panics
    /// If `kind` is none of [`Kind::Frozen`] and [`Kind::Shared`].
    pub fn open_to_others(&self, kind: Kind) {
        assert!(matches!(kind, Kind::Frozen | Kind::Shared), "{kind:?} is not for elements");
        if self.hold.arena().is_here() && !self.hold.is_nowhere() {
            self.hold.arena().open_to_others(self.hold.block(), kind);
        }
    }

    /// Its length in bytes: in each process what was asked for when it was made. (Of one that
    /// [`storage_from_cache`](crate::storage_from_cache) found: the length of its block.)
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its handle.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// The address of its first byte, in this process.
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// The first of some elements, counted from the first byte on. What may be done with it, the tensor knows whose storage it is.
    ///
    /// # Panics
    /// If some of them are outside.
    #[inline]
    pub fn at<T: Pod>(&self, first: usize, len: usize) -> NonNull<T> {
        let all = self.bytes / size_of::<T>().max(1);
        if first > all || len > all - first {
            outside(first, len, all);
        }
        // SAFETY: inside of the block (checked above).
        let p = unsafe { self.base.add(first * size_of::<T>()) };
        // Blocks are 64-byte aligned, and `first` counts whole elements.
        p.cast()
    }
}
