//! Marks: which block, in which of its lives, as one word. Whoever has a mark can ask whether the block still lives,
//! without holding it.

use super::{Arena, Hold};
use crate::mem::Mem;
use crate::steps::generation_of;
use crate::words::{BlockId, BlockState, Life};

impl Arena {
    /// The mark of a held block, never 0: `block + 1` in 24 bits, generation in 40.
    pub fn mark(&self, hold: &Hold) -> u64 {
        let generation = generation_of(self.map().load(self.block_at(hold.block()).link()));
        generation << 24 | (u64::from(hold.block()) + 1)
    }

    /// Whether a marked block is still held by anybody: a process, or a message on its way. Once it is not, it never is
    /// again. A holder that was killed counts until it is swept.
    pub fn lives(&self, mark: u64) -> bool {
        let Some(block) = (mark & 0xff_ffff).checked_sub(1).map(|b| b as BlockId) else { return false };
        if !self.block_exists(block) {
            return false;
        }
        let at = self.block_at(block);
        // The state after the generation: if the block was freed and claimed in between, the state that is read is
        // a later one, or the generation another.
        let same = generation_of(self.map().load(at.link())) == mark >> 24;
        same && BlockState::unpack(self.map().load(at.state)).life == Life::Live
            && generation_of(self.map().load(at.link())) == mark >> 24
    }
}
