//! Release of a seat. The process that releases the last seat frees the block.

use super::cursor::{NextSeat, SeatCursor, last_taken, page_next};
use super::{BlockAt, link_of};
use crate::mem::{Mem, Steps, Word};
use crate::words::{BlockId, BlockLife, BlockState, Member, Seat};

/// Result of a release.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReleaseOutcome {
    /// The block is still held, or another process frees it.
    Held,
    /// The caller must free the block: its state is `BUSY(me)`, with this value.
    MustFree(BlockState),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    State,
    Inline(u32),
    Head,
    Last,
    Probe,
    Link,
    Swap,
}

/// Frees a live block without holders: `LIVE → BUSY(me)`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FreeCheck<F> {
    block: BlockAt,
    pages: F,
    me: Member,
    seen: u64,
    /// First page of seats.
    head: (BlockId, Word),
    /// Position in the pages of seats. Separate from `pc`, so that the compiler can optimize the common path,
    /// which has none.
    cursor: Option<SeatCursor>,
    pc: Pc,
}

impl<F: Fn(BlockId) -> Option<Word>> FreeCheck<F> {
    /// Creates the steps to check `block`, for `me`.
    pub fn new(block: BlockAt, pages: F, me: Member) -> Self {
        let head = (0, Word::at(0));
        Self { block, pages, me, seen: 0, head, cursor: None, pc: Pc::State }
    }

    pub(super) fn block(&self) -> BlockAt {
        self.block
    }

    fn after(after: NextSeat) -> Pc {
        match after {
            NextSeat::Seat => Pc::Probe,
            NextSeat::Link => Pc::Link,
            NextSeat::End => Pc::Swap,
        }
    }
}

impl<F: Fn(BlockId) -> Option<Word>> Steps for FreeCheck<F> {
    type Out = ReleaseOutcome;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<ReleaseOutcome> {
        match self.pc {
            Pc::State => {
                self.seen = m.load(self.block.state);
                if BlockState::unpack(self.seen).life != BlockLife::Live {
                    return Some(ReleaseOutcome::Held);
                }
                self.pc = Pc::Inline(0);
            }
            Pc::Inline(i) => {
                if !Seat::is_free(m.load(self.block.seat(i))) {
                    return Some(ReleaseOutcome::Held);
                }
                let more = i + 1;
                self.pc = if more < self.block.inline { Pc::Inline(i + 1) } else { Pc::Head };
            }
            Pc::Head => {
                let link = link_of(m.load(self.block.link()));
                self.pc = match link.and_then(|page| Some((page, (self.pages)(page)?))) {
                    Some(head) => {
                        self.head = head;
                        Pc::Last
                    }
                    None => Pc::Swap,
                };
            }
            Pc::Last => {
                let last = m.load_relaxed(last_taken(self.head.1));
                self.cursor = Some(SeatCursor::new(&self.block, self.head, last, &self.pages));
                self.pc = Pc::Probe;
            }
            Pc::Probe => {
                let Some(cursor) = &mut self.cursor else { return Some(ReleaseOutcome::Held) };
                if !Seat::is_free(m.load(cursor.now().word())) {
                    return Some(ReleaseOutcome::Held);
                }
                let after = cursor.advance(&self.block);
                self.pc = Self::after(after);
            }
            Pc::Link => {
                let Some(cursor) = &mut self.cursor else { return Some(ReleaseOutcome::Held) };
                let link = link_of(m.load(page_next(cursor.now().first)));
                let after = cursor.enter(link.and_then(|page| Some((page, (self.pages)(page)?))));
                self.pc = Self::after(after);
            }
            Pc::Swap => {
                let busy = BlockState::unpack(self.seen).with(BlockLife::Busy(self.me));
                match m.cas(self.block.state, self.seen, busy.pack()) {
                    Ok(()) => return Some(ReleaseOutcome::MustFree(busy)),
                    Err(_) => self.pc = Pc::State,
                }
            }
        }
        None
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReleasePc {
    Swap,
    Neighbor,
    Check,
}

/// Releases one seat held by `holder`, then runs a [`FreeCheck`].
///
/// If the seat doesn't name `holder`, nothing happens: this is how an attachment is released that was
/// recorded but not yet taken when its sender died.
///
/// A seat in a page is checked together with a neighbor on the same cache line, which is already in the
/// cache: if the neighbor is taken, its holder checks when it releases it, and the block's own line is not
/// accessed. With messages in flight, that is the usual case.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReleaseSeat<F> {
    seat: Word,
    neighbor: Option<Word>,
    holder: Seat,
    pc: ReleasePc,
    check: FreeCheck<F>,
}

impl<F: Fn(BlockId) -> Option<Word>> ReleaseSeat<F> {
    /// Creates the steps to release the seat at `seat`, which belongs to `block`.
    pub fn new(block: BlockAt, pages: F, me: Member, seat: Word, holder: Seat) -> Self {
        Self { seat, neighbor: None, holder, pc: ReleasePc::Swap, check: FreeCheck::new(block, pages, me) }
    }

    /// Sets a neighbor of the seat, in the same block ([`BlockAt::neighbor`]).
    pub fn neighbor(self, neighbor: Option<Word>) -> Self {
        Self { neighbor, ..self }
    }
}

impl<F: Fn(BlockId) -> Option<Word>> Steps for ReleaseSeat<F> {
    type Out = ReleaseOutcome;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<ReleaseOutcome> {
        match self.pc {
            ReleasePc::Swap => match m.cas(self.seat, self.holder.pack(), Seat::Free.pack()) {
                // Two holders that release the last two seats at once must not both find the other's taken.
                Ok(()) => {
                    m.fence_after_rmw();
                    self.pc = if self.neighbor.is_some() { ReleasePc::Neighbor } else { ReleasePc::Check };
                }
                Err(_) => return Some(ReleaseOutcome::Held),
            },
            ReleasePc::Neighbor => {
                self.pc = ReleasePc::Check;
                if self.neighbor.is_some_and(|neighbor| !Seat::is_free(m.load(neighbor))) {
                    return Some(ReleaseOutcome::Held);
                }
            }
            ReleasePc::Check => return self.check.step(m),
        }
        None
    }
}
