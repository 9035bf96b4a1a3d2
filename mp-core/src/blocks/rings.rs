//! Blocks that are rings, and the calls of the layer that implements rings.

use crate::blocks::Blocks;
use crate::layout::SLAB_BLOCKS;
use crate::layout::size_class::{blocks_of, size_of};
use crate::mem::{Mem, Word};
use crate::members::Members;
use crate::parking::detach_notice::DetachedProcess;
use crate::ring_layer::RINGS;
use crate::words::{BlockId, BlockKind, BlockLife, BlockState, Member, Seat};

impl Blocks {
    /// Returns the first word and the length in bytes of a ring's memory, or `None` if the block is not a
    /// ring.
    ///
    /// The block remains a ring only as long as it has a holder.
    pub fn ring_memory(self, block: BlockId) -> Option<(Word, u64)> {
        // Read once: if the block has no holder, its slab's class may be about to change.
        let slab = block / SLAB_BLOCKS;
        let (class, base) = (slab < self.slab_count()).then(|| self.slab(slab)).flatten()?;
        let (i, len) = (block % SLAB_BLOCKS, size_of(class));
        if i >= blocks_of(class) {
            return None;
        }
        let at = base + u64::from(i) * len;
        let state = BlockState::unpack(self.map().load(self.block_at(block).state));
        (state.life != BlockLife::Free && (state.kind == BlockKind::Ring)).then_some((Word::at(at), len))
    }

    /// Drains a ring that is about to be freed. Returns `false` if this process has no ring layer.
    pub(crate) fn finalize_ring(self, block: BlockId) -> bool {
        let Some(rings) = RINGS.get() else {
            // Only a process with a ring layer may reclaim this process.
            if let Ok(me) = self.me() {
                Members(self.0).note_rings(me);
            }
            return false;
        };
        let (at, len) = self.data_of(block);
        rings.drain(self.0, (Word::at(at), len), block);
        true
    }

    /// Records in a ring that a holder has died, releases the ring, or never received it. This process must
    /// hold the ring.
    pub(crate) fn ring_holder_gone(self, block: BlockId, gone: DetachedProcess, pid: u32) {
        if let Some(rings) = RINGS.get() {
            let (at, len) = self.data_of(block);
            rings.holder_gone(self.0, (Word::at(at), len), block, gone, pid);
        }
    }

    /// Wakes the sleepers of a ring that is held by a dead member, which this process recovers.
    pub(crate) fn wake_ring(self, block: BlockId) {
        if let Some(rings) = RINGS.get() {
            let (at, len) = self.data_of(block);
            rings.wake(self.0, (Word::at(at), len), block);
        }
    }

    /// Returns `true` if a member holds the ring in `block`, by a seat or because it has claimed the ring to
    /// free it. For a dead member, the result is exact if this process recovers the member and has not yet
    /// released its seats in rings.
    pub fn ring_is_held_by(self, block: BlockId, member: Member) -> bool {
        if self.ring_memory(block).is_none() {
            return false;
        }
        let mut held =
            BlockState::unpack(self.map().load(self.block_at(block).state)).life == BlockLife::Busy(member);
        self.each_seat(block, |seat| held |= self.map().load(seat) == Seat::Member(member).pack());
        held
    }
}
