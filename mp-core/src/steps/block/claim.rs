//! Claiming and publishing a free block.

use super::{BlockAt, generation_of};
use crate::mem::{Mem, Steps, Word};
use crate::words::{BlockKind, BlockLife, BlockState, Member, Seat};

/// Word of a slab with the size and position of the slab's blocks, as the caller read it when it chose a
/// block. The word is constant while any block of the slab is claimed or held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlabSnapshot {
    /// Position of the word.
    pub word: Word,
    /// Value of the word.
    pub value: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Load,
    Swap(u64),
    Check(BlockState),
    UnclaimBlock(BlockState),
}

/// Claims a free block: `FREE → BUSY(me)`. Ends with the block's new state. Ends with `None` if the block was
/// not free, or its slab has changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClaimBlock {
    block: BlockAt,
    me: Member,
    slab: SlabSnapshot,
    pc: Pc,
}

impl ClaimBlock {
    /// Creates the steps to claim `block`, which is in the slab `slab`, for `me`.
    pub fn new(block: BlockAt, me: Member, slab: SlabSnapshot) -> Self {
        Self { block, me, slab, pc: Pc::Load }
    }
}

impl Steps for ClaimBlock {
    type Out = Option<BlockState>;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Self::Out> {
        match self.pc {
            Pc::Load => {
                let found = m.load(self.block.state);
                if BlockState::unpack(found).life != BlockLife::Free {
                    return Some(None);
                }
                self.pc = Pc::Swap(found);
            }
            Pc::Swap(found) => {
                let busy = BlockState::unpack(found).with(BlockLife::Busy(self.me));
                if m.cas(self.block.state, found, busy.pack()).is_err() {
                    return Some(None);
                }
                self.pc = Pc::Check(busy);
            }
            // After the block was claimed: from here on the slab is constant.
            Pc::Check(busy) => {
                if m.load(self.slab.word) == self.slab.value {
                    return Some(Some(busy));
                }
                self.pc = Pc::UnclaimBlock(busy);
            }
            Pc::UnclaimBlock(busy) => {
                UnclaimBlock::new(self.block, busy).step(m);
                return Some(None);
            }
        }
        None
    }
}

/// Makes a claimed block live, with its claimer in seat 0. Ends with the block's generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PublishBlock {
    block: BlockAt,
    me: Member,
    state: BlockState,
    generation: u64,
    pc: u8,
}

impl PublishBlock {
    /// Creates the steps to publish `block`, claimed by `me` with `state`, as a block of kind `kind`.
    pub fn new(block: BlockAt, me: Member, state: BlockState, kind: BlockKind) -> Self {
        Self { block, me, state: BlockState { kind, ..state }, generation: 0, pc: 0 }
    }
}

impl Steps for PublishBlock {
    type Out = u64;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<u64> {
        self.pc += 1;
        match self.pc {
            1 => self.generation = (generation_of(m.load_relaxed(self.block.link())) + 1) & (u64::MAX >> 24),
            2 => m.store_relaxed(self.block.link(), self.generation << 24),
            3 => m.store_relaxed(self.block.seat(0), Seat::Member(self.me).pack()),
            _ => {
                m.store(self.block.state, self.state.with(BlockLife::Live).bumped().pack());
                return Some(self.generation);
            }
        }
        None
    }
}

/// Frees a claimed block: `BUSY(me) → FREE`. This is also the last step of freeing a used block. Resets the
/// block's kind to the default. Otherwise, if the next claimer of the block died, the reclaim would release
/// contents that the block no longer has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnclaimBlock {
    block: BlockAt,
    state: BlockState,
}

impl UnclaimBlock {
    /// Creates the steps to free `block`, which the caller has claimed with `state`.
    pub fn new(block: BlockAt, state: BlockState) -> Self {
        Self { block, state }
    }
}

impl Steps for UnclaimBlock {
    type Out = ();

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        let bumped = self.state.with(BlockLife::Free).bumped();
        let free = BlockState { kind: BlockKind::Data, ..bumped };
        m.store(self.block.state, free.pack());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::HeapMem;
    use crate::mem::run;

    /// Claims a block, publishes it as `kind`, and frees it. Returns the state of the freed block.
    fn freed(kind: BlockKind) -> BlockState {
        let m = HeapMem::new(16);
        let block = BlockAt { id: 0, state: Word::at(0), inline: 6, per_page: 0 };
        let (me, slab) = (Member::new(1, 1), SlabSnapshot { word: Word::at(64), value: 0 });
        let state = run(ClaimBlock::new(block, me, slab), &m).unwrap();
        assert_eq!(run(PublishBlock::new(block, me, state, kind), &m), 1);
        let live = BlockState::unpack(m.load(block.state));
        assert_eq!((live.life, live.kind, live.version), (BlockLife::Live, kind, 1));
        assert_eq!(Seat::unpack(m.load(block.seat(0))), Seat::Member(me));
        let busy = live.with(BlockLife::Busy(me));
        m.store(block.state, busy.pack());
        run(UnclaimBlock::new(block, busy), &m);
        BlockState::unpack(m.load(block.state))
    }

    /// With the previous kind, the reclaim of a dead claimer would release contents that the block no longer
    /// has.
    #[test]
    fn freed_block_has_the_default_kind() {
        for kind in [BlockKind::Data, BlockKind::Ring, BlockKind::Seats, BlockKind::Shared] {
            assert_eq!(freed(kind), BlockState { life: BlockLife::Free, kind: BlockKind::Data, version: 2 });
        }
    }

    #[test]
    fn busy_block_or_stale_slab_is_not_claimed() {
        let m = HeapMem::new(16);
        let block = BlockAt { id: 0, state: Word::at(0), inline: 6, per_page: 0 };
        let (me, slab) = (Member::new(1, 1), SlabSnapshot { word: Word::at(64), value: 7 });
        // The slab has changed since it was read.
        assert_eq!(run(ClaimBlock::new(block, me, slab), &m), None);
        assert_eq!(BlockState::unpack(m.load(block.state)).life, BlockLife::Free);
        for life in [BlockLife::Live, BlockLife::Busy(Member::new(2, 1))] {
            let there = BlockState { life, kind: BlockKind::Data, version: 3 };
            m.store(block.state, there.pack());
            assert_eq!(run(ClaimBlock::new(block, me, SlabSnapshot { value: 0, ..slab }), &m), None);
            assert_eq!(BlockState::unpack(m.load(block.state)), there);
        }
    }
}
