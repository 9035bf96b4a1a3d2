//! # Safety
//! Storage: the bytes of a block, as memory of this process. Unsafe, because pointers are made from the
//! mapping. Sound, because
//! - the block is held and not moved while the storage exists (it contains a [`Hold`]); after a tensor has
//!   moved into a message, its storage holds no block and has no bytes;
//! - pointers are checked against the length, and no reference is made here: the type that contains the
//!   storage decides which access is allowed;
//! - the obligations of a caller that moves a storage into a message are declared ([`Attached::attach_own`]).
#![allow(unsafe_code)]

pub(crate) mod copy_on_write;
pub(crate) mod weak;

use std::num::NonZero;
use std::ptr::NonNull;

use bytemuck::Pod;

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::arena::Arena;
use crate::blocks::Blocks;
use crate::error::{ByteSize, Error, Result};
use crate::message::Attached;
use crate::words::{BlockKind, Grant};

/// A block of shared memory held by this process. Tensors are views of a storage.
///
/// Cloning increments a counter. Two storages are equal if they are the same memory: receiving a storage
/// twice yields equal storages.
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
        write!(f, "Storage({} in {:?})", ByteSize(self.bytes as u64), self.hold)
    }
}

/// Panics because some elements are outside of the storage. Out of line, so that the check stays small.
#[cold]
#[inline(never)]
fn outside(first: usize, len: usize, all: usize) -> ! {
    panic!("elements {first} + {len} of a storage that has {all}");
}

impl Storage {
    /// Allocates a storage for `len` elements of `size` bytes. Its contents are unspecified.
    pub fn new(arena: Arena, len: usize, size: usize) -> Result<Self> {
        let bytes = len.checked_mul(size).ok_or_else(|| Allocator(arena).too_large(u64::MAX))?;
        Ok(Self::from_hold(Allocator(arena).alloc_by_strategy(bytes as u64)?, bytes))
    }

    /// Creates a storage of the first `bytes` bytes of a held block. If the block is shorter, the storage has
    /// all its bytes.
    #[inline]
    pub fn from_hold(hold: Hold, bytes: usize) -> Self {
        let (at, len) = hold.memory();
        Self::in_range(hold, at, bytes.min(len as usize))
    }

    #[inline]
    fn in_range(hold: Hold, at: u64, bytes: usize) -> Self {
        let base = hold.arena().map().bytes(at, bytes as u64);
        Self { hold, base, bytes }
    }

    /// Creates a storage of all bytes of a held block, and maps its pages in bulk.
    #[inline]
    pub fn received(hold: Hold) -> Self {
        let (at, len) = hold.memory();
        Allocator(hold.arena()).populate(hold.block(), at, len);
        Self::in_range(hold, at, len as usize)
    }

    /// Sets the length of a received storage to the length that it had at the sender. `bytes` is that length.
    /// If `bytes` is `None`, the storage ends with the received view, at byte `end`.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the length is less than `end`, or greater than the block.
    #[inline]
    pub fn set_end(&mut self, end: usize, bytes: Option<NonZero<u64>>) -> Result<()> {
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

    /// Moves the storage's handle into a message. Returns the number of the attachment, and the previous
    /// length in bytes. The storage has no bytes afterwards.
    ///
    /// # Errors
    /// The same as for [`Attached::attach_own`]. After an error, the storage is unchanged.
    ///
    /// # Safety
    /// The same as for [`Attached::attach_own`], for the value that contains this storage.
    pub unsafe fn attach_to(&mut self, out: &mut Attached, grant: Grant) -> Result<(u32, usize)> {
        // SAFETY: the caller's promise.
        let attachment = unsafe { out.attach_own(&mut self.hold, grant) }?;
        self.base = NonNull::dangling();
        Ok((attachment, std::mem::take(&mut self.bytes)))
    }

    /// Allows any process to read (`Frozen`), or to read and write (`Shared`), the block as long as the block
    /// lives. Afterwards no process receives the block as an exclusive tensor, and existing exclusive tensors
    /// of it can't be sent. A second call does not change the kind. The call has no effect on blocks without
    /// elements, for example a queue's.
    ///
    /// # Panics
    /// If `kind` is neither [`BlockKind::Frozen`] nor [`BlockKind::Shared`].
    pub fn share_as(&self, kind: BlockKind) {
        assert!(matches!(kind, BlockKind::Frozen | BlockKind::Shared), "{kind:?} is not for elements");
        if self.hold.arena().is_here() && !self.hold.is_nowhere() {
            Blocks(self.hold.arena()).share_as(self.hold.block(), kind);
        }
    }

    /// Returns the length in bytes. All processes see the length that was requested at the allocation. A
    /// storage returned by [`storage_from_cache`](crate::storage_from_cache) has the length of its block.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns `true` if the storage has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the handle of the block.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Returns the address of the first byte in this process.
    pub fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Returns a pointer to element `first` of `len` elements, counted from the first byte. The tensor that
    /// contains the storage decides which access is allowed.
    ///
    /// # Panics
    /// If some of the elements are outside of the storage.
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
