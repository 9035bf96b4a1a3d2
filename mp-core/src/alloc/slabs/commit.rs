//! Reservation of pages for blocks. Pages are reserved before a block is handed out, so exhausted memory is
//! reported as an error and not later as a SIGBUS.
//!
//! # Growing blocks
//! Unbounded rings reserve pages as they grow. Such a block has addresses for its maximum size, and pages for
//! the part that it has used. Its bit in the slab's map of blocks with pages is never set. So the next
//! process that claims the block reserves pages as for a new block. Every part of the block reads as zeros
//! until it is written.
//!
//! | a process is killed | state left behind | consequence |
//! |---|---|---|
//! | at any step of the block's creation | the block is `BUSY(dead)`, some pages may be reserved | the reclaim frees the block |
//! | while the block grows | reserved pages that no process uses yet | the next process that grows the block reserves these pages once more, which changes nothing |
//! | while the block is freed | the block is `BUSY(dead)`, some pages were returned | the reclaim returns all pages once more |
//!
//! In an arena of private memory, the whole block has pages from the start.

use crate::alloc::Allocator;
use crate::alloc::handles::Hold;
use crate::arena::no_memory;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::size_class::{POPULATE, commits_alone, size_of, span_of};
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, raise};
use crate::process::{PerProcess, per_process};
use crate::setup::Backing;
use crate::sync::Ordering;
use crate::sync::shared::AtomicU64;
use crate::sys::{huge_pages, memory};
use crate::words::{BlockId, BlockKind};

/// Number of bytes by which a process may grow the arena before it checks the machine's memory again.
const LOOK_EVERY: u64 = 16 << 20;
/// Number of bytes by which this process has grown the arena since the last check.
static UNSEEN: PerProcess<AtomicU64> = per_process!(AtomicU64::new(LOOK_EVERY));

impl Allocator {
    /// Reserves pages for a claimed block that has no pages. Returns `true` if the block had no pages.
    pub(crate) fn commit_block(self, block: BlockId, class: u32) -> Result<bool> {
        let (slab, bit) = (block / SLAB_BLOCKS, 1 << (block % SLAB_BLOCKS));
        let (at, len) = Blocks(self.0).data_of(block);
        Backing(self.0).reach(at)?;
        let fresh = Blocks(self.0).slab_committed(slab) & bit == 0;
        if fresh {
            let ((at, len), bits) = if commits_alone(class) {
                ((at, len), bit)
            } else {
                ((Blocks(self.0).data_of(slab * SLAB_BLOCKS).0, span_of(class)), u64::MAX)
            };
            self.reserve(at, len)?;
            self.ask_for_huge_pages(slab, class, at, len);
            Backing(self.0).commit_at(at, len)?;
            self.map().or(Blocks(self.0).slab_word(slab, 2), bits);
            raise(self.map(), Word::at(control::PEAK_RESERVED), Backing(self.0).committed());
        }
        self.populate(block, at, len);
        Ok(fresh)
    }

    /// Checks that the arena may grow by `len` bytes at offset `at`. The budget is checked each time. The
    /// cgroup, the machine and the file system of a named file are checked once every 16 MiB.
    pub(crate) fn reserve(self, at: u64, len: u64) -> Result<()> {
        let budget = self.map().load(Word::at(control::BUDGET));
        if budget != 0 {
            let left = budget.saturating_sub(Backing(self.0).committed());
            if len > left {
                let limit = "the arena's budget (set_budget)".into();
                return Err(Error::OutOfMemory { asked: len, left, limit });
            }
        }
        // Small growth adds up: it is checked once every 16 MiB.
        let unseen = UNSEEN.fetch_add(len, Ordering::Relaxed) + len;
        if unseen >= LOOK_EVERY {
            UNSEEN.store(0, Ordering::Relaxed);
            let (left, limit) = Backing(self.0).room_at(at);
            if len > left {
                UNSEEN.store(LOOK_EVERY, Ordering::Relaxed);
                return Err(Error::OutOfMemory { asked: len, left, limit });
            }
        }
        Ok(())
    }

    /// Maps all pages of a large block into this process's page tables, unless this was done before. `at` is
    /// the block's offset and `len` its length in bytes. Does nothing for small blocks.
    #[inline]
    pub(crate) fn populate(self, block: BlockId, at: u64, len: u64) {
        if len >= POPULATE {
            self.populate_once(block, at, len);
        }
    }

    fn populate_once(self, block: BlockId, at: u64, len: u64) {
        let trims = self.map().load(Word::at(control::TRIMS));
        let last = &self.0.alloc_state().last_populated;
        let this = trims << 24 | (u64::from(block) + 1);
        if last.load(Ordering::Relaxed) == this {
            return;
        }
        let mut known = self.0.alloc_state().populated.lock();
        if known.trims != trims {
            known.trims = trims;
            self.forget_trimmed(&mut known.blocks);
        }
        if known.blocks.insert(block, (at, len)) != Some((at, len)) {
            drop(known);
            self.map().populate(at, len);
        }
        last.store(this, Ordering::Relaxed);
    }
}

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
        // The bit is cleared first: a set bit means that the block has pages.
        self.map().and(Blocks(self.0).slab_word(slab, 2), !bit);
        // Not `punch_at`, which ignores errors: the block begins with zeros only if the pages are gone.
        memory::punch(self.0.file()?, at, len).map_err(|e| no_memory(self.0, len, e))?;
        self.reserve_pages(at, Self::GROWING_START)
    }

    /// Returns the pages of a claimed growing block to the kernel. Does nothing for other blocks, which
    /// keep their pages for the next tensor.
    pub(crate) fn shrink(self, block: BlockId) {
        let (slab, bit) = (block / SLAB_BLOCKS, 1_u64 << (block % SLAB_BLOCKS));
        let alone = Blocks(self.0).slab(slab).is_some_and(|(class, _)| commits_alone(class));
        if alone && Blocks(self.0).slab_committed(slab) & bit == 0 {
            let (at, len) = Blocks(self.0).data_of(block);
            // If the kernel refuses, the next owner of the block releases its pages.
            Backing(self.0).punch_at(at, len);
        }
    }
}

impl Allocator {
    /// Sets the use of huge pages: see [`Arena::set_huge_pages`](crate::Arena::set_huge_pages).
    pub(crate) fn set_huge_pages(self, on: bool) -> Result<()> {
        if on {
            self.0.file().map_err(|_| Error::Local)?;
            huge_pages::allowed()?;
        }
        self.map().store(Word::at(control::HUGE), u64::from(on));
        Ok(())
    }

    /// Requests huge pages for a slab of large blocks, if enabled, and creates them for a block that has no
    /// pages yet. If that fails, the block gets small pages.
    pub(crate) fn ask_for_huge_pages(self, slab: u32, class: u32, at: u64, len: u64) {
        if len < huge_pages::SIZE || self.map().load(Word::at(control::HUGE)) == 0 {
            return;
        }
        // For the whole slab, so that many blocks are one more mapping, not one each.
        self.map().ask_for_huge_pages(Blocks(self.0).data_of(slab * SLAB_BLOCKS).0, span_of(class));
        // Pages are huge if a process creates them by touching them. The `fallocate` that follows would
        // create small ones.
        self.map().populate(at, len);
    }
}
