//! Return of memory to the kernel: on demand, when memory is exhausted, and when too much of it is idle.
//!
//! Free blocks keep their pages, because the next tensor of that size then fills warm memory, at five times
//! the speed. Large blocks are returned when all of them together exceed the limit of the cache. A thread
//! that has freed an eighth of the limit checks, and returns blocks from the end of the arena until three
//! quarters of the limit remain.
//!
//! | word | changed by | killed | consequence |
//! |---|---|---|---|
//! | state of a block | the trimmer claims it, as if to allocate it | `BUSY(dead)` | the sweep frees it |
//! | pages bit | cleared before the pages are released | in between | the pages stay, and the next owner reserves them again |
//! | trims | incremented after the pages were released | before | others keep page tables of that range until the next trim |
//!
//! The kernel removes the pages from every process's page tables, but not the tables themselves, each for 2
//! MiB of addresses. Each process drops the tables for the blocks that it had mapped, after it detects a
//! trim.

use std::collections::HashMap;

use crate::alloc::slabs::carve::described;
use crate::arena::Arena;
use crate::error::Result;
use crate::layout::size_class::{CLASSES, blocks_of, commits_alone, size_of};
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, run};
use crate::steps::{ClaimBlock, UnclaimBlock};
use crate::words::{BlockId, BlockLife, BlockState, Member};

/// Minimum size of blocks that are returned when too many of them are idle.
pub(crate) const LARGE: u64 = 2 << 20;

impl Arena {
    /// Returns the pages of free blocks to the kernel, and returns their number of bytes.
    ///
    /// The next tensors of these sizes fill cold memory again, at a fifth of the speed. Blocks below 16 KiB
    /// share their pages, and keep them. The memory of messages (256 bytes each) is returned in runs of 16
    /// KiB that no process uses. While any process of the program waits, that also happens automatically,
    /// some seconds after a burst.
    ///
    /// # Errors
    /// [`Error::Forked`](crate::Error::Forked).
    pub fn empty_cache(&self) -> Result<u64> {
        let me = self.me()?;
        let before = self.committed();
        for slab in 0..self.slab_count() {
            self.each_cached(slab, |block| _ = self.trim_block(block, me));
        }
        self.free_idle();
        self.trim_envelopes(me, 0, u32::MAX);
        self.map().add(Word::at(control::TRIMS), 1);
        Ok(before.saturating_sub(self.committed()))
    }

    /// Limits the number of bytes of large free blocks (2 MiB and more) that may keep their pages, for all
    /// members.
    ///
    /// ```
    /// use mp_core::{Arena, Storage};
    ///
    /// let arena = Arena::current()?;
    /// arena.set_cache_limit(8 << 20);
    /// drop(Storage::new(arena, 64 << 20, 1)?); // too large to be kept
    /// assert!(arena.memory_stats().cached <= 8 << 20);
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// The default is a quarter of the memory that was available when the arena was created. With 0, nothing
    /// is cached, and every large tensor fills cold memory. With `u64::MAX`, everything is cached until
    /// memory is exhausted or [`empty_cache`](Self::empty_cache) is called. The thread that drops a tensor
    /// returns the excess, which takes some milliseconds for 64 MiB. A thread checks after it has freed an
    /// eighth of the limit, so each thread that frees may exceed the limit by that much.
    #[doc(alias = "garbage_collection_threshold")]
    pub fn set_cache_limit(&self, bytes: u64) {
        self.map().store(Word::at(control::CACHE_LIMIT), bytes);
    }

    /// Returns the number of bytes of large free blocks that may keep their pages.
    pub fn cache_limit(&self) -> u64 {
        self.map().load(Word::at(control::CACHE_LIMIT))
    }

    /// Returns the excess to the kernel, if this thread has freed enough since its last check. Returns `true`
    /// if it checked.
    pub(crate) fn trim_if_due(&self, me: Member, returned: u64) -> bool {
        let limit = self.cache_limit();
        if returned < limit / 8 {
            return false;
        }
        let mut cached = self.cached_large();
        let bytes: u64 = cached.iter().map(|&block| self.data_of(block).1).sum();
        if bytes <= limit {
            return true;
        }
        // Memory is used from the start of the arena on: blocks at its end are needed last.
        cached.sort_unstable_by_key(|&block| std::cmp::Reverse(self.data_of(block).0));
        let mut surplus = bytes - limit / 4 * 3;
        for block in cached {
            surplus = surplus.saturating_sub(self.trim_block(block, me));
            if surplus == 0 {
                break;
            }
        }
        self.map().add(Word::at(control::TRIMS), 1);
        true
    }

    /// Returns the large free blocks that have pages, in slabs with a hint for a free block.
    fn cached_large(&self) -> Vec<BlockId> {
        let mut blocks = Vec::new();
        for class in (0..CLASSES).filter(|&class| size_of(class) >= LARGE) {
            let end = self.map().load(Word::at(control::CLASS_ENDS + 8 * u64::from(class))) as u32;
            for first in (0..end).step_by(64) {
                let mut hinted = self.map().load(self.class_map(class, first).0);
                while hinted != 0 {
                    let slab = first + hinted.trailing_zeros();
                    hinted &= hinted - 1;
                    self.each_cached(slab, |block| blocks.push(block));
                }
            }
        }
        blocks
    }

    /// Calls `f` with each free block of a slab that has separate pages.
    fn each_cached(&self, slab: u32, mut f: impl FnMut(BlockId)) {
        let Some((class, _)) = self.slab(slab).filter(|&(class, _)| commits_alone(class)) else { return };
        let committed = self.slab_committed(slab);
        for i in (0..blocks_of(class)).filter(|i| committed >> i & 1 == 1) {
            let block = slab * SLAB_BLOCKS + i;
            let free =
                BlockState::unpack(self.map().load(self.block_at(block).state)).life == BlockLife::Free;
            if free {
                f(block);
            }
        }
    }

    /// Returns the pages of a free block to the kernel, unless another process claims it first. Returns the
    /// number of bytes.
    fn trim_block(&self, block: BlockId, me: Member) -> u64 {
        let (at, slab, bit) = (self.block_at(block), block / SLAB_BLOCKS, 1 << (block % SLAB_BLOCKS));
        self.touch(me, slab);
        let seen = self.slab_seen(slab);
        let is_one = |class| commits_alone(class) && block % SLAB_BLOCKS < blocks_of(class);
        if !described(seen.value).is_some_and(|(class, _)| is_one(class)) {
            return 0;
        }
        let Some(state) = run(ClaimBlock::new(at, me, seen), self.map()) else { return 0 };
        let (offset, len) = self.data_of(block);
        self.map().and(self.slab_word(slab, 2), !bit);
        self.punch_at(offset, len);
        run(UnclaimBlock::new(at, state), self.map());
        self.hint_free(block);
        len
    }

    /// Drops this process's page tables for blocks that have moved or have no pages any more, and forgets
    /// that it mapped them.
    pub(crate) fn forget_trimmed(&self, mapped: &mut HashMap<BlockId, (u64, u64)>) {
        mapped.retain(|&block, &mut (at, len)| {
            let has_pages = self.slab_committed(block / SLAB_BLOCKS) >> (block % SLAB_BLOCKS) & 1 == 1;
            let stays = has_pages && self.data_of(block) == (at, len);
            // Private memory is in these tables only.
            if !stays && !self.is_local() {
                self.map().drop_page_tables(at, len);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next process finds the block, even if it searched in vain meanwhile, and this process no longer
    /// maps it.
    #[test]
    #[cfg_attr(miri, ignore = "needs a larger arena than Miri's")]
    fn a_block_without_pages_is_found_and_not_mapped() {
        let arena = Arena::current().unwrap();
        let block = arena.alloc(23 << 20).unwrap().block();
        let (hints, bit) = (arena.slab_word(block / SLAB_BLOCKS, 1), 1 << (block % SLAB_BLOCKS));
        let mut mapped = HashMap::from([(block, arena.data_of(block))]);
        arena.forget_trimmed(&mut mapped);
        assert_eq!(mapped.len(), 1, "it has its pages");
        arena.map().and(hints, !bit);
        assert!(arena.trim_block(block, arena.me().unwrap()) >= 23 << 20);
        assert_ne!(arena.map().load(hints) & bit, 0);
        arena.forget_trimmed(&mut mapped);
        assert!(mapped.is_empty());
    }
}
