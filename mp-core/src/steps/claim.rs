//! A free block becomes a live one.

use super::{BlockAt, generation_of};
use crate::mem::{Mem, Steps};
use crate::words::{BlockState, Kind, Life, Member, Seat};

/// Claims a free block: `FREE → BUSY(me)`. Ends with its state, or `None` if it was not free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Claim {
    block: BlockAt,
    me: Member,
    found: Option<u64>,
}

impl Claim {
    /// To claim `block` for `me`.
    pub fn new(block: BlockAt, me: Member) -> Self {
        Self { block, me, found: None }
    }
}

impl Steps for Claim {
    type Out = Option<BlockState>;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Self::Out> {
        let Some(found) = self.found else {
            self.found = Some(m.load(self.block.state));
            return None;
        };
        let state = BlockState::unpack(found);
        if state.life != Life::Free {
            return Some(None);
        }
        let busy = state.with(Life::Busy(self.me));
        Some(m.cas(self.block.state, found, busy.pack()).ok().map(|()| busy))
    }
}

/// Makes a claimed block live, with its claimer in seat 0. Ends with its generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Publish {
    block: BlockAt,
    me: Member,
    state: BlockState,
    generation: u64,
    pc: u8,
}

impl Publish {
    /// To publish `block`, claimed by `me` with `state`, as a block of this kind.
    pub fn new(block: BlockAt, me: Member, state: BlockState, kind: Kind) -> Self {
        Self { block, me, state: BlockState { kind, ..state }, generation: 0, pc: 0 }
    }
}

impl Steps for Publish {
    type Out = u64;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<u64> {
        self.pc += 1;
        match self.pc {
            1 => self.generation = (generation_of(m.load_relaxed(self.block.link())) + 1) & (u64::MAX >> 24),
            2 => m.store_relaxed(self.block.link(), self.generation << 24),
            3 => m.store_relaxed(self.block.seat(0), Seat::Member(self.me).pack()),
            _ => {
                m.store(self.block.state, self.state.with(Life::Live).bumped().pack());
                return Some(self.generation);
            }
        }
        None
    }
}

/// Gives a claimed block back: `BUSY(me) → FREE`. Also the last step of freeing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Unclaim {
    block: BlockAt,
    state: BlockState,
}

impl Unclaim {
    /// To give back `block`, which the caller has claimed with `state`.
    pub fn new(block: BlockAt, state: BlockState) -> Self {
        Self { block, state }
    }
}

impl Steps for Unclaim {
    type Out = ();

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<()> {
        m.store(self.block.state, self.state.with(Life::Free).bumped().pack());
        Some(())
    }
}
