//! Return of memory to the kernel: on demand, when memory is exhausted, and when too much of it is idle.
//!
//! Free blocks keep their pages, because the next tensor of that size then fills warm memory, at five times
//! the speed. Large blocks are returned when all of them together exceed the limit of the cache. A
//! thread that has freed an eighth of the limit checks for an excess. It then returns blocks, from the end of
//! the arena, until three quarters of the limit remain.
//!
//! | word | change | killed | consequence |
//! |---|---|---|---|
//! | state of a block | the block is claimed, as if to allocate it | after the claim: `BUSY(dead)` | the reclaim frees the block |
//! | bit of a block that has pages | cleared before the pages are released | after clearing, before the release | the pages stay, and the next owner reserves them again |
//! | number of trims | incremented after the pages were released | before the increment | other processes keep page tables of these addresses until the next trim |
//!
//! The kernel removes the pages from every process's page tables, but not the tables themselves, each for 2
//! MiB of addresses. Each process drops the tables for the blocks that it had mapped, after it detects a
//! trim.

use std::collections::HashMap;

use crate::alloc::Allocator;
use crate::blocks::{Blocks, described};
use crate::envelopes::Envelopes;
use crate::error::Result;
use crate::layout::size_class::{CLASSES, blocks_of, commits_alone, size_of};
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, run};
use crate::members::Members;
use crate::setup::Backing;
use crate::steps::{ClaimBlock, UnclaimBlock};
use crate::words::{BlockId, BlockLife, BlockState, Member};

/// Minimum size in bytes of a large block. When too much memory is idle, only the pages of large blocks are
/// returned to the kernel.
pub(crate) const LARGE: u64 = 2 << 20;

impl Allocator {
    /// Returns the pages of free memory to the kernel: see [`Arena::empty_cache`](crate::Arena::empty_cache).
    pub(crate) fn empty_cache(self) -> Result<u64> {
        let me = self.me()?;
        let before = Backing(self.0).committed();
        for slab in 0..Blocks(self.0).slab_count() {
            self.each_cached(slab, |block| _ = self.trim_block(block, me));
        }
        Envelopes(self.0).free_idle();
        Envelopes(self.0).trim_envelopes(me, 0, u32::MAX);
        self.map().add(Word::at(control::TRIMS), 1);
        Ok(before.saturating_sub(Backing(self.0).committed()))
    }

    /// Returns the excess of cached pages to the kernel, if this thread has freed enough since its last
    /// check. Returns `true` if the thread checked.
    pub(crate) fn trim_if_due(self, me: Member, returned: u64) -> bool {
        let limit = self.0.cache_limit();
        if returned < limit / 8 {
            return false;
        }
        let mut cached = self.cached_large();
        let bytes: u64 = cached.iter().map(|&block| Blocks(self.0).data_of(block).1).sum();
        if bytes <= limit {
            return true;
        }
        // Memory is used from the start of the arena on: blocks at its end are needed last.
        cached.sort_unstable_by_key(|&block| std::cmp::Reverse(Blocks(self.0).data_of(block).0));
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
    fn cached_large(self) -> Vec<BlockId> {
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

    /// Calls `f` with each free block of a slab that has pages, if the pages of each block can be returned
    /// separately.
    fn each_cached(self, slab: u32, mut f: impl FnMut(BlockId)) {
        let Some((class, _)) = Blocks(self.0).slab(slab).filter(|&(class, _)| commits_alone(class)) else {
            return;
        };
        let committed = Blocks(self.0).slab_committed(slab);
        for i in (0..blocks_of(class)).filter(|i| committed >> i & 1 == 1) {
            let block = slab * SLAB_BLOCKS + i;
            let free = BlockState::unpack(self.map().load(Blocks(self.0).block_at(block).state)).life
                == BlockLife::Free;
            if free {
                f(block);
            }
        }
    }

    /// Returns the pages of a free block to the kernel. The result is the number of bytes, or 0 if another
    /// process claims the block first.
    fn trim_block(self, block: BlockId, me: Member) -> u64 {
        let (at, slab, bit) =
            (Blocks(self.0).block_at(block), block / SLAB_BLOCKS, 1 << (block % SLAB_BLOCKS));
        Members(self.0).touch(me, slab);
        let seen = Blocks(self.0).slab_seen(slab);
        let is_one = |class| commits_alone(class) && block % SLAB_BLOCKS < blocks_of(class);
        if !described(seen.value).is_some_and(|(class, _)| is_one(class)) {
            return 0;
        }
        let Some(state) = run(ClaimBlock::new(at, me, seen), self.map()) else { return 0 };
        let (offset, len) = Blocks(self.0).data_of(block);
        self.map().and(Blocks(self.0).slab_word(slab, 2), !bit);
        Backing(self.0).punch_at(offset, len);
        run(UnclaimBlock::new(at, state), self.map());
        self.hint_free(block);
        len
    }

    /// Drops this process's page tables for blocks that have new addresses or no pages. Removes these blocks
    /// from `mapped`.
    pub(crate) fn forget_trimmed(self, mapped: &mut HashMap<BlockId, (u64, u64)>) {
        mapped.retain(|&block, &mut (at, len)| {
            let has_pages =
                Blocks(self.0).slab_committed(block / SLAB_BLOCKS) >> (block % SLAB_BLOCKS) & 1 == 1;
            let stays = has_pages && Blocks(self.0).data_of(block) == (at, len);
            // The memory of a local arena has no file: dropping its page tables would discard the data.
            if !stays && !self.0.is_local() {
                self.map().drop_page_tables(at, len);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    /// Checks that a search finds the trimmed block, although the block's hint was cleared before, and that
    /// this process drops its mapping of the block.
    #[test]
    #[cfg_attr(miri, ignore = "needs a larger arena than Miri's")]
    fn trimmed_block_gets_a_hint_and_loses_its_mapping() {
        let arena = Arena::current().unwrap();
        let block = Allocator(arena).alloc(23 << 20).unwrap().block();
        let (hints, bit) = (Blocks(arena).slab_word(block / SLAB_BLOCKS, 1), 1 << (block % SLAB_BLOCKS));
        let mut mapped = HashMap::from([(block, Blocks(arena).data_of(block))]);
        Allocator(arena).forget_trimmed(&mut mapped);
        assert_eq!(mapped.len(), 1, "the block still has its pages");
        arena.map().and(hints, !bit);
        assert!(Allocator(arena).trim_block(block, arena.me().unwrap()) >= 23 << 20);
        assert_ne!(arena.map().load(hints) & bit, 0);
        Allocator(arena).forget_trimmed(&mut mapped);
        assert!(mapped.is_empty());
    }
}
