//! Blocks whose pages are reserved as they grow: unbounded rings.
//!
//! Such a block has addresses for its maximum size, and pages for the part that it has used. Its bit among
//! the blocks with pages is never set, so the process that claims the block next reserves pages as for a new
//! block. The block begins with zeros everywhere, and so does every part that it grows by.
//!
//! | killed | state left behind | consequence |
//! |---|---|---|
//! | at any step of its creation | the block is `BUSY(dead)`, some pages may be reserved | freed by the reclaim |
//! | while it grows | reserved pages that no process uses yet | the next process reserves them once more, which changes nothing |
//! | while it is freed | `BUSY(dead)`, some pages returned | returned once more |
//!
//! In an arena of private memory, the whole block is present from the start.

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::arena::no_memory;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::size_class::{commits_alone, size_of};
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, raise};
use crate::setup::Backing;
use crate::sys::memory;
use crate::words::{BlockId, BlockKind};

impl Allocator {
    /// Number of bytes of a growing block that have pages from the start.
    pub const GROWING_START: u64 = 4096;

    /// Allocates a zeroed block of `len` bytes, of which the first 4 KiB have pages. [`grow`](Self::grow)
    /// adds pages. The block is a ring without a header.
    ///
    /// # Errors
    /// Same as for [`alloc`](Self::alloc).
    pub fn alloc_growing(self, len: u64) -> Result<Hold> {
        // Smaller blocks share their pages with others.
        let least = crate::layout::size_class::SLAB_COMMIT;
        self.alloc_kind(len.max(least), BlockKind::Ring)
    }

    /// Ensures that `len` bytes of a growing block have pages, beginning at byte `from`. New pages read as
    /// zero. Any number of processes may call this at once.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or [`Error::OutOfBounds`] if the block is shorter.
    pub fn grow(self, hold: &Hold, from: u64, len: u64) -> Result<()> {
        let (at, size) = hold.memory();
        if from.checked_add(len).is_none_or(|end| end > size) {
            let why = format!("bytes {from} to {from}+{len} of a block of {size}");
            return Err(Error::OutOfBounds(why));
        }
        if self.0.is_local() {
            return Ok(());
        }
        match self.reserve_pages(at + from, len) {
            Err(Error::OutOfMemory { .. }) if self.empty_cache()? > 0 => self.reserve_pages(at + from, len),
            done => done,
        }
    }

    fn reserve_pages(self, at: u64, len: u64) -> Result<()> {
        self.reserve(at, len)?;
        Backing(self.0).commit_at(at, len)?;
        raise(self.map(), Word::at(control::PEAK_RESERVED), Backing(self.0).committed());
        Ok(())
    }

    /// Releases the previous pages of a claimed block, and reserves its first pages.
    pub(crate) fn commit_start(self, block: BlockId, class: u32) -> Result<()> {
        debug_assert!(commits_alone(class), "blocks of {} bytes share pages", size_of(class));
        let (at, len) = Blocks(self.0).data_of(block);
        if self.0.is_local() {
            // Private memory has no pages to add later: it is reserved at once, and retained as in any other
            // block.
            self.commit_block(block, class)?;
            (0..len / 8).for_each(|i| self.map().store_relaxed(Word::at(at).plus(i), 0));
            return Ok(());
        }
        let (slab, bit) = (block / SLAB_BLOCKS, 1 << (block % SLAB_BLOCKS));
        // In this order: a set bit promises pages.
        self.map().and(Blocks(self.0).slab_word(slab, 2), !bit);
        // Not `punch_at`, which ignores errors: the block begins with zeros only if the pages are gone.
        memory::punch(self.0.file()?, at, len).map_err(|e| no_memory(self.0, len, e))?;
        self.reserve_pages(at, Self::GROWING_START)
    }

    /// Returns the pages of a claimed block that got them as it grew. Other blocks keep their pages for the
    /// next tensor.
    pub(crate) fn shrink(self, block: BlockId) {
        let (slab, bit) = (block / SLAB_BLOCKS, 1_u64 << (block % SLAB_BLOCKS));
        let alone = Blocks(self.0).slab(slab).is_some_and(|(class, _)| commits_alone(class));
        if alone && Blocks(self.0).slab_committed(slab) & bit == 0 {
            let (at, len) = Blocks(self.0).data_of(block);
            // If the kernel refuses, the next owner releases them.
            Backing(self.0).punch_at(at, len);
        }
    }
}
