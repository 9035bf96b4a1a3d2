//! What is in the arena, counted by looking at it.

use super::Arena;
use super::class::{CLASSES, blocks_of, commits_alone, size_of};
use super::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word};
use crate::sys::memory;
use crate::words::{BlockState, Holder, Life, Owner};

/// Blocks of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ClassStats {
    /// Bytes of a block.
    pub size: u64,
    /// Blocks that somebody holds.
    pub live: u64,
    /// Blocks that nobody holds, but which still have pages, for the next one of that size.
    pub cached: u64,
}

/// What is in the arena. Counted block by block while others go on, so it is exact only when they don't.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes with pages behind them, tables included, as the kernel counts them.
    pub reserved: u64,
    /// Bytes in blocks that somebody holds.
    pub allocated: u64,
    /// Bytes in free blocks that keep their pages.
    pub cached: u64,
    /// Blocks that somebody holds.
    pub live_blocks: u64,
    /// Envelopes on their way: in queues, or leased by a consumer that has not finished yet.
    pub queued: u64,
    /// Envelopes that are some process's: being filled or emptied, or idle.
    pub owned: u64,
    /// Members that are not known to be dead.
    pub members: u64,
    /// How many members were swept so far.
    pub deaths: u64,
    /// The sizes of which there is anything.
    pub classes: Vec<ClassStats>,
}

impl Arena {
    /// Counts what is in the arena.
    #[doc(alias = "memory_allocated")]
    pub fn memory_stats(&self) -> MemoryStats {
        let mut s = MemoryStats { reserved: memory::committed(self.file()), ..MemoryStats::default() };
        let mut classes = vec![ClassStats::default(); CLASSES as usize];
        for slab in 0..self.slab_count() {
            let Some((class, _)) = self.slab(slab) else { continue };
            let committed = self.slab_committed(slab);
            let stats = &mut classes[class as usize];
            stats.size = size_of(class);
            for i in 0..blocks_of(class) {
                let at = self.block_at(slab * SLAB_BLOCKS + i);
                match BlockState::unpack(self.map().load(at.state)).life {
                    Life::Free if committed >> i & 1 == 1 || !commits_alone(class) && committed != 0 => {
                        stats.cached += 1;
                    }
                    Life::Free => {}
                    Life::Live | Life::Busy(_) => stats.live += 1,
                }
            }
        }
        for c in &classes {
            s.allocated += c.live * c.size;
            s.cached += c.cached * c.size;
            s.live_blocks += c.live;
        }
        s.classes = classes.into_iter().filter(|c| c.live + c.cached > 0).collect();
        for e in 0..self.map().load(Word::at(control::ENVELOPES)) as u32 {
            match Owner::unpack(self.map().load(self.owner_words().of(e))).holder {
                Holder::Free => {}
                Holder::Member(_) => s.owned += 1,
                Holder::Queued | Holder::Leased(_) | Holder::Returned | Holder::Undeliverable => {
                    s.queued += 1
                }
            }
        }
        s.members = self.members().iter().filter(|m| m.live).count() as u64;
        s.deaths = self.map().load(Word::at(control::DEATHS));
        s
    }
}
