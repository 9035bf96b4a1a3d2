//! Holders of a block: the members, messages and parts that its seats name.

use crate::blocks::Blocks;
use crate::mem::{Mem, Word};
use crate::members::Members;
use crate::steps::{INLINE_SEATS, PAGE_HEADER, link_of, page_next};
use crate::words::{BlockId, Seat};

/// Maximum number of pages of seats that a walk follows. More mean that the links form a cycle.
const MOST_PAGES: u32 = 1 << 16;

impl Blocks {
    /// Calls `f` with each seat word of a block. The links may change meanwhile, but always lead to seats.
    ///
    /// Reads the seats in the same order as `FreeCheck`: a dead member may have taken a second seat in the
    /// header without incrementing the version (`steps::part`). That seat is released before its first one,
    /// if a check has already passed it (`tools/models/tests/models/parts.rs`).
    pub(crate) fn each_seat(self, block: BlockId, mut f: impl FnMut(Word)) {
        let at = self.block_at(block);
        (0..INLINE_SEATS).for_each(|i| f(at.seat(i)));
        let mut link = self.map().load(at.link());
        for _ in 0..MOST_PAGES {
            let Some(first) = link_of(link).and_then(|page| self.seat_page(page)) else { return };
            (0..at.per_page).for_each(|i| f(first.plus((PAGE_HEADER + i).into())));
            link = self.map().load(page_next(first));
        }
    }

    /// Calls `f` with each seat of a member, a message or a block. Seats of dead members count like in
    /// [`other_holders`](crate::Hold::other_holders).
    pub(crate) fn each_holder(self, block: BlockId, mut f: impl FnMut(Seat)) {
        self.each_seat(block, |word| match Seat::unpack(self.map().load(word)) {
            Seat::Free => {}
            Seat::Member(m) if Members(self.0).has_left(m, block) => {}
            holder @ (Seat::Member(_) | Seat::Envelope(_) | Seat::Block(_)) => f(holder),
        });
    }
}
