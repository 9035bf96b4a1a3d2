//! Releasing a seat; the process that finds that it was the last one frees the block.

use super::cursor::{Circle, Onward, last_taken, page_next};
use super::{BlockAt, link_of};
use crate::mem::{Mem, Steps, Word};
use crate::words::{BlockId, BlockState, Life, Member, Seat};

/// Result of a release.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Released {
    /// The block is still held, or another process frees it.
    Held,
    /// The caller must free the block: its state is `BUSY(me)`, with this value.
    ToFree(BlockState),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    State,
    Inline(u32),
    Head,
    Last,
    Look,
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
    circle: Option<Circle>,
    pc: Pc,
}

impl<F: Fn(BlockId) -> Option<Word>> FreeCheck<F> {
    /// Creates the steps to check `block`, for `me`.
    pub fn new(block: BlockAt, pages: F, me: Member) -> Self {
        let head = (0, Word::at(0));
        Self { block, pages, me, seen: 0, head, circle: None, pc: Pc::State }
    }

    pub(super) fn block(&self) -> BlockAt {
        self.block
    }

    fn onward(onward: Onward) -> Pc {
        match onward {
            Onward::Seat => Pc::Look,
            Onward::Link => Pc::Link,
            Onward::End => Pc::Swap,
        }
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
                self.pc = Pc::Inline(0);
            }
            Pc::Inline(i) => {
                if !Seat::is_free(m.load(self.block.seat(i))) {
                    return Some(Released::Held);
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
                self.circle = Some(Circle::new(&self.block, self.head, last, &self.pages));
                self.pc = Pc::Look;
            }
            Pc::Look => {
                let Some(circle) = &mut self.circle else { return Some(Released::Held) };
                if !Seat::is_free(m.load(circle.now().word())) {
                    return Some(Released::Held);
                }
                let onward = circle.advance(&self.block);
                self.pc = Self::onward(onward);
            }
            Pc::Link => {
                let Some(circle) = &mut self.circle else { return Some(Released::Held) };
                let link = link_of(m.load(page_next(circle.now().first)));
                let onward = circle.enter(link.and_then(|page| Some((page, (self.pages)(page)?))));
                self.pc = Self::onward(onward);
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

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Give {
    Up,
    Beside,
    Check,
}

/// Releases one seat held by `holder`, then runs a [`FreeCheck`].
///
/// If the seat doesn't name `holder` (any more), nothing happens: this is how an attachment is released that
/// was recorded but not yet taken when its sender died.
///
/// A seat in a page is checked together with a neighbor on the same cache line, which is already in the
/// cache: if the neighbor is taken, its holder checks when it releases it, and the block's own line is not
/// accessed. With messages in flight, that is the usual case.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Release<F> {
    seat: Word,
    beside: Option<Word>,
    holder: Seat,
    pc: Give,
    check: FreeCheck<F>,
}

impl<F: Fn(BlockId) -> Option<Word>> Release<F> {
    /// Creates the steps to release the seat at `seat`, which belongs to `block`.
    pub fn new(block: BlockAt, pages: F, me: Member, seat: Word, holder: Seat) -> Self {
        Self { seat, beside: None, holder, pc: Give::Up, check: FreeCheck::new(block, pages, me) }
    }

    /// Sets a neighbor of the seat, in the same block ([`BlockAt::beside`]).
    pub fn beside(self, beside: Option<Word>) -> Self {
        Self { beside, ..self }
    }
}

impl<F: Fn(BlockId) -> Option<Word>> Steps for Release<F> {
    type Out = Released;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Released> {
        match self.pc {
            Give::Up => match m.cas(self.seat, self.holder.pack(), Seat::Free.pack()) {
                // Two holders that release the last two seats at once must not both find the other's taken.
                Ok(()) => {
                    m.fence_after_rmw();
                    self.pc = if self.beside.is_some() { Give::Beside } else { Give::Check };
                }
                Err(_) => return Some(Released::Held),
            },
            Give::Beside => {
                self.pc = Give::Check;
                if self.beside.is_some_and(|beside| !Seat::is_free(m.load(beside))) {
                    return Some(Released::Held);
                }
            }
            Give::Check => return self.check.step(m),
        }
        None
    }
}
