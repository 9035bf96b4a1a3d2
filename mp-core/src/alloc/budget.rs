//! Limit of the memory that one process holds.
//!
//! A process with a limit counts the bytes of all blocks that it has handles to, each block once,
//! regardless of the number of handles. The count and the limit are in private memory of the process. No
//! other process changes them, nothing remains after a death, and a process without a limit counts nothing.
//!
//! | event | effect on the count | check of the limit |
//! |---|---|---|
//! | a tensor's memory is allocated | the block is added before the allocator searches for it | the allocation fails and changes nothing if the limit would be exceeded |
//! | other memory is allocated: a queue, a lock, a long message | the block is added | none, so a process can always answer |
//! | a block arrives to which the process had no handle | the block is added | none, so no message is lost |
//! | the last handle is dropped, or its seat moves into a message | the block is subtracted | none |
//! | a message that could not be sent returns a block | the block is added | none |
//!
//! Memory thus counts for each process that holds it, and memory in a queue counts for no process. The count
//! equals [`MemberStats::bytes`](crate::MemberStats::bytes), except for messages that the process is filling
//! or emptying.
//!
//! Threads that allocate at the same time change the count one after the other. So an allocation never raises
//! the sum above the limit, except by the difference between the requested size and a larger block that was
//! found.

use crate::Hold;
use crate::alloc::Allocator;
use crate::arena::CURRENT;
use crate::arena::state::Budget;
use crate::blocks::Blocks;
use crate::error::{ByteSize, Error, Result};
use crate::layout::size_class::size_of;
use crate::process::{PerProcess, per_process};
use crate::sync::Ordering;
use crate::sync::shared::AtomicU64;
use crate::words::{BlockId, BlockKind};

/// Limit of this process in bytes, valid even before the process joins an arena. 0 means no limit.
static LIMIT: PerProcess<AtomicU64> = per_process!(AtomicU64::new(0));

impl Budget {
    /// Creates the budget of the process that creates or joins an arena.
    pub(crate) fn of_this_process() -> Budget {
        Budget { limit: AtomicU64::new(LIMIT.load(Ordering::Relaxed)), held: AtomicU64::new(0) }
    }

    #[inline(always)]
    fn is_limited(&self) -> bool {
        self.limit.load(Ordering::Relaxed) != 0
    }
}

/// Limits the memory that this process holds: an allocation of a tensor beyond the limit fails. Call this
/// before other threads use shared memory.
#[doc(hidden)]
pub fn limit_held_memory(bytes: u64) {
    LIMIT.store(bytes.max(1), Ordering::Relaxed);
    let Some(arena) = CURRENT.get().copied() else { return };
    let is_held = |(_, at): &(BlockId, &AtomicU64)| at.load(Ordering::Acquire) != 0;
    let held =
        (0..).zip(arena.holds()).filter(is_held).map(|(block, _)| Blocks(arena).data_of(block).1).sum();
    arena.alloc_state().budget.held.store(held, Ordering::Relaxed);
    arena.alloc_state().budget.limit.store(bytes.max(1), Ordering::Relaxed);
}

/// Returns the limit of the memory that this process may hold, if any.
#[doc(hidden)]
#[must_use]
pub fn held_memory_limit() -> Option<u64> {
    Some(LIMIT.load(Ordering::Relaxed)).filter(|limit| *limit != 0)
}

impl Allocator {
    /// Adds the size of a block to the held bytes. Called when this process gets its first handle to the
    /// block.
    #[inline(always)]
    pub(crate) fn charge(self, block: BlockId) {
        if self.0.alloc_state().budget.is_limited() {
            self.count_block(block, 1);
        }
    }

    /// Subtracts the size of a block from the held bytes. Called when the last handle is dropped, while this
    /// process still holds the block.
    #[inline(always)]
    pub(crate) fn credit(self, block: BlockId) {
        if self.0.alloc_state().budget.is_limited() {
            self.count_block(block, -1);
        }
    }

    /// Adds the size of a block to the held bytes, multiplied by `times`. Not inlined, so a process without a
    /// limit only loads the limit.
    #[cold]
    #[inline(never)]
    fn count_block(self, block: BlockId, times: i64) {
        self.add_held(Blocks(self.0).data_of(block).1.wrapping_mul(times.cast_unsigned()));
    }

    fn add_held(self, bytes: u64) {
        self.0.alloc_state().budget.held.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Allocates a block for a tensor, and returns an error if the limit would be exceeded.
    #[inline]
    pub(crate) fn alloc_in_budget(self, class: u32) -> Result<Hold> {
        if self.0.alloc_state().budget.is_limited() {
            self.alloc_limited(class)
        } else {
            self.alloc_uncounted(class, BlockKind::Data)
        }
    }

    #[cold]
    #[inline(never)]
    fn alloc_limited(self, class: u32) -> Result<Hold> {
        let (asked, limit) = (size_of(class), self.0.alloc_state().budget.limit.load(Ordering::Relaxed));
        let used = |held: u64| u64::try_from(held.cast_signed()).unwrap_or(0);
        let left = |held| limit.saturating_sub(used(held));
        let take = |held: u64| (asked <= left(held)).then(|| held.wrapping_add(asked));
        let held = &self.0.alloc_state().budget.held;
        if let Err(held) = held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            let (left, limit, used) = (left(held), ByteSize(limit), ByteSize(used(held)));
            let limit =
                format!("the {limit} that this process may hold (Limits::shared_memory; it holds {used})");
            return Err(Error::OutOfMemory { asked, left, limit });
        }
        let hold = self.alloc_uncounted(class, BlockKind::Data);
        let bytes = hold.as_ref().map_or(0, |hold| Blocks(self.0).data_of(hold.block()).1);
        self.add_held(bytes.wrapping_sub(asked));
        hold
    }
}
