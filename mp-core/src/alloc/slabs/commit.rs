//! Reservation of pages for blocks. Pages are reserved before a block is handed out, so exhausted memory is
//! reported as an error and not later as a SIGBUS.

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::size_class::{POPULATE, commits_alone, span_of};
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word, raise};
use crate::process::{GENERATIONS, PerProcess};
use crate::setup::Backing;
use crate::sync::Ordering;
use crate::sync::shared::AtomicU64;
use crate::words::BlockId;

/// Number of bytes by which a process may grow the arena before it checks the machine's memory again.
const LOOK_EVERY: u64 = 16 << 20;
/// Number of bytes by which this process has grown the arena since the last check.
static UNSEEN: PerProcess<AtomicU64> = PerProcess::new([const { AtomicU64::new(LOOK_EVERY) }; GENERATIONS]);

impl Allocator {
    /// Reserves pages for a claimed block, if it has none. Returns `true` if it had none.
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

    /// Checks a large growth against the budget, the cgroup and the machine, and against the file system if
    /// `at` is in a file.
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

    /// Maps the pages of a block of `len` bytes at `at` into this process: all at once, only once, and only
    /// if the block is large.
    #[inline]
    pub(crate) fn populate(self, block: BlockId, at: u64, len: u64) {
        if len >= POPULATE {
            self.populate_once(block, at, len);
        }
    }

    fn populate_once(self, block: BlockId, at: u64, len: u64) {
        let trims = self.map().load(Word::at(control::TRIMS));
        let mut known = self.0.alloc_state().populated.lock();
        if known.trims != trims {
            known.trims = trims;
            self.forget_trimmed(&mut known.blocks);
        }
        if known.blocks.insert(block, (at, len)) != Some((at, len)) {
            drop(known);
            self.map().populate(at, len);
        }
    }
}
