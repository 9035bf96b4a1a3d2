//! Linking pages of seats to their block, and freeing them with it.
//!
//! | killed process | remaining state | action of the reclaim, or of the process that frees the block next |
//! |---|---|---|
//! | before the page is linked | the page's seat names the dead process, no chain leads to the page | frees the page |
//! | between linking and handing over | the page's seat names the dead process, the chain leads to the page | hands the page over to the block |
//! | while freeing pages, the last one first | the block is `BUSY(dead)`, its chain leads to all remaining pages | follows the chain again, up to the first page that does not belong to the block |
//!
//! A chain that is being freed may lead to pages that are already free, or belong to another block. So a page
//! belongs to the block only if its seat names the block, or, if its creator died before handing it over, if
//! the page itself names the block. A process that frees a page clears that name first. Otherwise a process
//! could take a freed page away from a process that prepares it for another block, as the model
//! `models::pages` shows.

use super::cursor::{SeatHints, page_next, page_owner, seat_hints};
use super::{BlockAt, FreeCheck, PAGE_HEADER, ReleaseOutcome, UnclaimBlock, link_of, with_link};
use crate::mem::{Mem, Steps, Word};
use crate::words::{BlockId, Member, Seat, SeatAt};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum LinkStep {
    Init(u32),
    Walk,
    Swap(u64),
    HandOver,
    Hints,
    Hint(SeatHints),
}

/// Links a page of seats to a block. The caller holds the block. The page is a live block, and its seat 0
/// names the caller. Ends with `true`. Ends with `false`, which is an error of the caller, if seat 0 no
/// longer names the caller when the page is handed over to the block.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LinkPage<F> {
    block: BlockAt,
    page: BlockAt,
    first: Word,
    me: Member,
    pages: F,
    head: Word,
    at: Word,
    pc: LinkStep,
}

impl<F: Fn(BlockId) -> Option<Word>> LinkPage<F> {
    /// Creates the steps to link `page`, whose memory begins at `first`, to `block`.
    pub fn new(block: BlockAt, page: BlockAt, first: Word, me: Member, pages: F) -> Self {
        Self { block, page, first, me, pages, head: first, at: block.link(), pc: LinkStep::Init(0) }
    }
}

impl<F: Fn(BlockId) -> Option<Word>> Steps for LinkPage<F> {
    type Out = bool;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<bool> {
        match self.pc {
            LinkStep::Init(0) => {
                m.store(page_owner(self.first), u64::from(self.block.id) + 1);
                self.pc = LinkStep::Init(1);
            }
            LinkStep::Init(i) => {
                m.store_relaxed(self.first.plus(i.into()), 0);
                let words = PAGE_HEADER + self.block.per_page;
                let next = i + 1;
                self.pc = if next < words { LinkStep::Init(i + 1) } else { LinkStep::Walk };
            }
            // Walks to the end of the chain, which other holders may lengthen meanwhile.
            LinkStep::Walk => {
                let link = m.load(self.at);
                match link_of(link).and_then(&self.pages) {
                    Some(next) => {
                        if self.head == self.first {
                            self.head = next;
                        }
                        self.at = page_next(next);
                    }
                    None => self.pc = LinkStep::Swap(link),
                }
            }
            LinkStep::Swap(link) => {
                let linked = with_link(link, Some(self.page.id));
                self.pc =
                    if m.cas(self.at, link, linked).is_ok() { LinkStep::HandOver } else { LinkStep::Walk };
            }
            // From now on the page belongs to the block.
            LinkStep::HandOver => {
                let (mine, its) = (Seat::Member(self.me).pack(), Seat::Block(self.block.id).pack());
                if m.cas(self.page.seat(0), mine, its).is_err() {
                    return Some(false);
                }
                self.pc = LinkStep::Hints;
            }
            LinkStep::Hints => {
                self.pc = LinkStep::Hint(SeatHints(m.load_relaxed(seat_hints(self.head))));
            }
            // A hint for the next search of a free seat.
            LinkStep::Hint(hints) => {
                let first_seat = SeatAt::paged(self.page.id, PAGE_HEADER);
                m.store_relaxed(seat_hints(self.head), hints.with_taken(first_seat).0);
                return Some(true);
            }
        }
        None
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Free<F> {
    Chain,
    Seat(BlockId, Word),
    Owner(BlockId, Word, u64),
    TakeOver(BlockId, Word, u64),
    Next(Word),
    Disown,
    GiveUp,
    Check(FreeCheck<F>),
    UnclaimBlock(UnclaimBlock),
    Unlink(u64),
}

/// Frees the pages of seats of a block that the caller has claimed for freeing. The last page is freed first,
/// so that a walk from the start always finds the remaining pages. Ends with the freed pages.
///
/// `at` returns the words of a page, and `pages` returns the first word of its memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FreePages<F, G> {
    block: BlockAt,
    me: Member,
    pages: F,
    at: G,
    found: Vec<(BlockId, Word)>,
    link: u64,
    freed: Vec<BlockId>,
    pc: Free<F>,
}

impl<F: Fn(BlockId) -> Option<Word> + Clone, G: Fn(BlockId) -> BlockAt> FreePages<F, G> {
    /// Creates the steps to free the pages of `block`, for `me`.
    pub fn new(block: BlockAt, me: Member, pages: F, at: G) -> Self {
        Self { block, me, pages, at, found: Vec::new(), link: 0, freed: Vec::new(), pc: Free::Chain }
    }

    fn follow(&self, link: u64) -> Free<F> {
        let page = link_of(link).filter(|page| self.found.iter().all(|(found, _)| found != page));
        match page.and_then(|page| Some((page, (self.pages)(page)?))) {
            Some((page, first)) => Free::Seat(page, first),
            None => Free::Disown,
        }
    }
}

impl<F: Fn(BlockId) -> Option<Word> + Clone, G: Fn(BlockId) -> BlockAt> Steps for FreePages<F, G> {
    type Out = Vec<BlockId>;

    #[inline(always)]
    fn step<M: Mem + ?Sized>(&mut self, m: &M) -> Option<Vec<BlockId>> {
        let its = Seat::Block(self.block.id);
        let next = match &mut self.pc {
            Free::Chain => {
                self.link = m.load(self.block.link());
                if link_of(self.link).is_none() {
                    return Some(Vec::new());
                }
                self.follow(self.link)
            }
            &mut Free::Seat(page, first) => match m.load((self.at)(page).seat(0)) {
                found if found == its.pack() => {
                    self.found.push((page, first));
                    Free::Next(first)
                }
                found if matches!(Seat::unpack(found), Seat::Member(_)) => Free::Owner(page, first, found),
                _ => Free::Disown,
            },
            // Linked by a process that died before it handed the page over. A live one would hold the block.
            &mut Free::Owner(page, first, found) => {
                let ours = m.load(page_owner(first)) == u64::from(self.block.id) + 1;
                if ours { Free::TakeOver(page, first, found) } else { Free::Disown }
            }
            &mut Free::TakeOver(page, first, found) => {
                match m.cas((self.at)(page).seat(0), found, its.pack()) {
                    Ok(()) => {
                        self.found.push((page, first));
                        Free::Next(first)
                    }
                    // A process that reclaims the creator has handed it over meanwhile.
                    Err(_) => Free::Seat(page, first),
                }
            }
            &mut Free::Next(first) => {
                let link = m.load(page_next(first));
                self.follow(link)
            }
            Free::Disown => match self.found.last() {
                Some(&(_, first)) => {
                    m.store(page_owner(first), 0);
                    Free::GiveUp
                }
                None => Free::Unlink(self.link),
            },
            Free::GiveUp => {
                let Some((page, _)) = self.found.pop() else { return Some(Vec::new()) };
                let at = (self.at)(page);
                match m.cas(at.seat(0), its.pack(), Seat::Free.pack()) {
                    Ok(()) => Free::Check(FreeCheck::new(at, self.pages.clone(), self.me)),
                    Err(_) => Free::Disown,
                }
            }
            Free::Check(check) => match check.step(m)? {
                ReleaseOutcome::MustFree(state) => {
                    self.freed.push(check.block().id);
                    Free::UnclaimBlock(UnclaimBlock::new(check.block(), state))
                }
                ReleaseOutcome::Held => Free::Disown,
            },
            Free::UnclaimBlock(unclaim) => {
                unclaim.step(m);
                Free::Disown
            }
            &mut Free::Unlink(link) => {
                m.store(self.block.link(), with_link(link, None));
                return Some(std::mem::take(&mut self.freed));
            }
        };
        self.pc = next;
        None
    }
}
