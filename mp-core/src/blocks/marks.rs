//! Marks: a block and its generation in one word. A process with a mark can check whether the block still
//! lives, without holding it.

use crate::blocks::Blocks;
use crate::mem::Mem;
use crate::steps::generation_of;
use crate::words::{BlockId, BlockLife, BlockState};

impl Blocks {
    /// Same as [`mark`](crate::Hold::mark), for a block that stays alive during the call.
    #[inline]
    pub(crate) fn mark_of(self, block: BlockId) -> u64 {
        self.generation(block) << 24 | (u64::from(block) + 1)
    }

    /// Returns the block of a mark.
    pub(crate) fn marked(mark: u64) -> Option<BlockId> {
        (mark & 0xff_ffff).checked_sub(1).map(|block| block as BlockId)
    }

    /// Returns `true` if a marked block still has a holder: a process, a message in flight, or a part. A
    /// block without a holder never has one again. A killed holder counts until another process has released
    /// everything it held.
    #[inline]
    pub fn lives(self, mark: u64) -> bool {
        let Some(block) = Self::marked(mark) else { return false };
        // A block in no slab has words too, and is not live.
        if !self.0.is_here() || block as usize >= self.0.holds().len() {
            return false;
        }
        let (map, at) = (self.map(), self.block_at(block));
        let is_same = || generation_of(map.load(at.link())) == mark >> 24;
        // The state is read between two reads of the generation, which differ if the block was freed and
        // claimed meanwhile.
        let same = is_same();
        let state = BlockState::unpack(map.load(at.state));
        same && state.life == BlockLife::Live && is_same()
    }
}
