//! A seat is given up, and whoever sees that it was the last frees the block.

use super::{BlockAt, Cursor, link_of};
use crate::mem::{Mem, Steps, Word};
use crate::words::{BlockId, BlockState, Life, Member, Seat};

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Released {
    /// The block is still held, or somebody else frees it.
    Held,
    /// The block is the caller's to free: its state is `BUSY(me)`, this one.
    ToFree(BlockState),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    State,
    Look,
    Link,
    Swap,
}

/// Frees a live block if nobody holds it: `LIVE → BUSY(me)`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FreeCheck<F> {
    block: BlockAt,
    pages: F,
    me: Member,
    seen: u64,
    at: Cursor,
    pc: Pc,
}

impl<F: Fn(BlockId) -> Option<Word>> FreeCheck<F> {
    /// To look at `block`, for `me`.
    pub fn new(block: BlockAt, pages: F, me: Member) -> Self {
        Self { block, pages, me, seen: 0, at: Cursor::START, pc: Pc::State }
    }
}

impl<F: Fn(BlockId) -> Option<Word>> Steps for FreeCheck<F> {
    type Out = Released;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Released> {
        match self.pc {
            Pc::State => {
                self.seen = m.load(self.block.state);
                if BlockState::unpack(self.seen).life != Life::Live {
                    return Some(Released::Held);
                }
                self.at = Cursor::START;
                self.pc = Pc::Look;
            }
            Pc::Look => {
                let Some(seat) = self.at.word(&self.block) else {
                    self.pc = Pc::Swap;
                    return None;
                };
                if Seat::unpack(m.load(seat)) != Seat::Free {
                    return Some(Released::Held);
                }
                self.pc = if self.at.advance(&self.block) { Pc::Link } else { Pc::Look };
            }
            Pc::Link => {
                let link = link_of(m.load(self.at.link(&self.block)));
                match link.and_then(&self.pages) {
                    Some(page) => {
                        self.at.page = Some(page);
                        self.pc = Pc::Look;
                    }
                    None => self.pc = Pc::Swap,
                }
            }
            Pc::Swap => {
                let busy = BlockState::unpack(self.seen).with(Life::Busy(self.me));
                match m.cas(self.block.state, self.seen, busy.pack()) {
                    Ok(()) => return Some(Released::ToFree(busy)),
                    Err(_) => self.pc = Pc::State,
                }
            }
        }
        None
    }
}

/// Gives up one seat that `holder` holds, then runs a [`FreeCheck`].
///
/// If the seat doesn't name `holder` (any more), nothing happens: an attachment that was noted but not yet taken
/// when its sender died is released like that.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Release<F> {
    seat: Word,
    holder: Seat,
    given_up: bool,
    check: FreeCheck<F>,
}

impl<F: Fn(BlockId) -> Option<Word>> Release<F> {
    /// To give up the seat at `seat`, which is one of `block`'s.
    pub fn new(block: BlockAt, pages: F, me: Member, seat: Word, holder: Seat) -> Self {
        Self { seat, holder, given_up: false, check: FreeCheck::new(block, pages, me) }
    }
}

impl<F: Fn(BlockId) -> Option<Word>> Steps for Release<F> {
    type Out = Released;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Released> {
        if self.given_up {
            return self.check.step(m);
        }
        self.given_up = true;
        match m.cas(self.seat, self.holder.pack(), Seat::Free.pack()) {
            // Two holders that give up the last two seats at once must not both see the other's still taken.
            Ok(()) => {
                m.fence_after_rmw();
                None
            }
            Err(_) => Some(Released::Held),
        }
    }
}
