//! Blocks that get their pages as they grow: rings that are not bounded.
//!
//! Such a block has addresses for the most that it can ever need, and pages for what it has needed so far.
//! Its bit among the blocks with pages is never set, so that the process that claims it next reserves pages
//! as for a new one. It begins with zeros everywhere, and so does every part that it grows by.
//!
//! | killed | left | consequence |
//! |---|---|---|
//! | anywhere while it is made | the block is `BUSY(dead)`, some pages reserved or not | freed by the sweep |
//! | while it grows | pages reserved that no process uses yet | reserved once more by the next process, which changes nothing |
//! | while it is freed | `BUSY(dead)`, some pages given back | given back once more |
//!
//! In an arena of plain memory, all of the block is there from the start.

use crate::arena::alloc::size_class::{commits_alone, size_of};
use crate::arena::layout::{SLAB_BLOCKS, control};
use crate::arena::{Arena, Hold};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word};
use crate::sys::memory;
use crate::words::{BlockId, Kind};

impl Arena {
    /// How many bytes of a growing block have pages from the start.
    pub const GROWING_START: u64 = 4096;

    /// A block of `len` bytes, zeros, of which the first 4 KiB have pages; [`grow`](Self::grow) gives it more. It is a ring
    /// that has no header yet.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_growing(&self, len: u64) -> Result<Hold> {
        // Blocks below that share their pages with others.
        let least = crate::arena::alloc::size_class::SLAB_COMMIT;
        self.alloc_kind(len.max(least), Kind::Ring)
    }

    /// Makes sure that `len` bytes of a growing block have pages, from byte `from` on. What had none reads as zero. Any
    /// number of processes may do so at once.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::OutOfBounds`] when the block is shorter.
    pub fn grow(&self, hold: &Hold, from: u64, len: u64) -> Result<()> {
        let (at, size) = hold.memory();
        if from.checked_add(len).is_none_or(|end| end > size) {
            let why = format!("bytes {from} to {from}+{len} of a block of {size}");
            return Err(Error::OutOfBounds(why));
        }
        if self.is_local() {
            return Ok(());
        }
        match self.reserve_pages(at + from, len) {
            Err(Error::OutOfMemory { .. }) if self.empty_cache()? > 0 => self.reserve_pages(at + from, len),
            done => done,
        }
    }

    fn reserve_pages(&self, at: u64, len: u64) -> Result<()> {
        self.reserve(at, len)?;
        self.commit_at(at, len)?;
        self.raise(Word::at(control::PEAK_RESERVED), self.committed());
        Ok(())
    }

    /// Gives a claimed block its first pages, and takes away those that it had before.
    pub(in crate::arena) fn commit_start(&self, block: BlockId, class: u32) -> Result<()> {
        debug_assert!(commits_alone(class), "blocks of {} bytes share pages", size_of(class));
        let (at, len) = self.data_of(block);
        if self.is_local() {
            // Plain memory has no pages that come later: all of it at once, and kept as any other block's.
            self.commit_block(block, class)?;
            (0..len / 8).for_each(|i| self.map().store_relaxed(Word::at(at).plus(i), 0));
            return Ok(());
        }
        let (slab, bit) = (block / SLAB_BLOCKS, 1 << (block % SLAB_BLOCKS));
        // In this order: a set bit promises pages.
        self.map().and(self.slab_word(slab, 2), !bit);
        // Not `punch_at`, which ignores errors: unless the pages are gone, the block does not begin with
        // zeros.
        memory::punch(self.file()?, at, len).map_err(|e| self.no_memory(len, e))?;
        self.reserve_pages(at, Self::GROWING_START)
    }

    /// Gives back the pages of a claimed block that got them as it grew. (Others keep theirs for the next tensor.)
    pub(in crate::arena) fn shrink(&self, block: BlockId) {
        let (slab, bit) = (block / SLAB_BLOCKS, 1_u64 << (block % SLAB_BLOCKS));
        let alone = self.slab(slab).is_some_and(|(class, _)| commits_alone(class));
        if alone && self.slab_committed(slab) & bit == 0 {
            let (at, len) = self.data_of(block);
            // If the kernel refuses, the next owner takes them.
            self.punch_at(at, len);
        }
    }

    /// How many messages can be on their way at once, in all queues together: see
    /// [`ArenaOptions::messages`](crate::arena::ArenaOptions::messages).
    pub fn most_messages(&self) -> u32 {
        self.layout().envelopes
    }
}
