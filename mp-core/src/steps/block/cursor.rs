//! Walk through the pages of seats of a block: a circle that begins at one of two hints.
//!
//! Both hints are in one word of the block's first page: the seat that was *taken* last, and a seat that a
//! walk over free seats found *held*. Neither is trusted. A process that has released its seat may write the
//! second hint late, when the block was freed and its page belongs to another block. So each walk checks to
//! which block the page of its first seat belongs.

use super::{BlockAt, PAGE_HEADER};
use crate::mem::Word;
use crate::words::{BlockId, SeatAt};

/// Seat in a page: the page's block, the first word of its memory, and the seat's number in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PagedSeat {
    pub(super) page: BlockId,
    pub(super) first: Word,
    pub(super) seat: u32,
}

impl PagedSeat {
    #[inline(always)]
    pub(super) const fn word(self) -> Word {
        self.first.plus((PAGE_HEADER + self.seat) as u64)
    }

    #[inline(always)]
    pub(super) const fn at(self) -> SeatAt {
        SeatAt::paged(self.page, PAGE_HEADER + self.seat)
    }
}

/// Returns the word with the block that a page belongs to.
pub(crate) const fn page_owner(page: Word) -> Word {
    page
}

/// Returns the word with the link to the next page.
pub(crate) const fn page_next(page: Word) -> Word {
    page.plus(1)
}

/// Returns the word of a block's first page with both hints ([`SeatHints`]).
pub(crate) const fn seat_hints(first_page: Word) -> Word {
    first_page.plus(2)
}

/// Hints for the start of a walk: `held 32, taken 32`, positions of seats in pages, or 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct SeatHints(pub(crate) u64);

impl SeatHints {
    /// Returns the seat that was taken last.
    #[inline(always)]
    pub(super) const fn taken(self) -> SeatAt {
        SeatAt::from_raw(self.0 as u32)
    }

    /// Returns the seat that a walk over free seats found held.
    #[inline(always)]
    pub(super) const fn held(self) -> SeatAt {
        SeatAt::from_raw((self.0 >> 32) as u32)
    }

    /// Returns the hints after this seat was taken.
    #[inline(always)]
    pub(super) const fn with_taken(self, at: SeatAt) -> Self {
        Self(self.0 >> 32 << 32 | at.raw() as u64)
    }

    /// Returns the hints after a walk found this seat held.
    #[inline(always)]
    pub(super) const fn with_held(self, at: SeatAt) -> Self {
        Self((at.raw() as u64) << 32 | self.0 as u32 as u64)
    }
}

/// Walk through all pages of a chain, in a circle.
///
/// The walk ends where it began. If it never returns there, it ends when it reaches the end of the chain for
/// the second time. In both cases it has read the whole chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct SeatCursor {
    head: PagedSeat,
    start: PagedSeat,
    now: PagedSeat,
    wrapped: bool,
}

/// Successor of a seat.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum NextSeat {
    /// A seat, which the cursor has reached.
    Seat,
    /// A seat in another page. The link of the present page has to be read first.
    Link,
    /// No seat: the walk has ended.
    End,
}

// Inlined into all callers: the address of a step's state, passed to a call, would keep all of the state in
// memory, also on the common path, which never gets here.
impl SeatCursor {
    /// Begins a walk of the chain whose first page is `head` at the hint `at`, or at the first seat if the
    /// hint names none.
    #[inline(always)]
    pub(super) fn new(
        block: &BlockAt,
        (page, first): (BlockId, Word),
        at: SeatAt,
        pages: impl Fn(BlockId) -> Option<Word>,
    ) -> Self {
        let head = PagedSeat { page, first, seat: 0 };
        let start = at.page().ok().and_then(|(page, word)| {
            let seat = word.checked_sub(PAGE_HEADER).filter(|&seat| seat < block.per_page)?;
            Some(PagedSeat { page, first: pages(page)?, seat })
        });
        let start = start.unwrap_or(head);
        Self { head, start, now: start, wrapped: false }
    }

    #[inline(always)]
    pub(super) const fn now(&self) -> PagedSeat {
        self.now
    }

    /// Begins at the chain's first page instead.
    #[inline(always)]
    pub(super) fn restart(&mut self) {
        *self = Self { head: self.head, start: self.head, now: self.head, wrapped: false };
    }

    /// Returns `true` if the walk has passed at most an eighth of a page since its start.
    #[inline(always)]
    pub(super) fn passed_few(&self, block: &BlockAt) -> bool {
        let passed = self.now.seat.wrapping_sub(self.start.seat);
        self.now.page == self.start.page && passed <= block.per_page / 8
    }

    #[inline(always)]
    fn arrive(&mut self, at: PagedSeat) -> NextSeat {
        self.now = at;
        if at == self.start { NextSeat::End } else { NextSeat::Seat }
    }

    #[inline(always)]
    pub(super) fn advance(&mut self, block: &BlockAt) -> NextSeat {
        if self.now.seat + 1 < block.per_page {
            return self.arrive(PagedSeat { seat: self.now.seat + 1, ..self.now });
        }
        NextSeat::Link
    }

    /// Continues with the page that the present page's link leads to, or with the first page after the last
    /// one.
    #[inline(always)]
    pub(super) fn enter(&mut self, next: Option<(BlockId, Word)>) -> NextSeat {
        match next {
            Some((page, first)) => self.arrive(PagedSeat { page, first, seat: 0 }),
            None if self.wrapped => NextSeat::End,
            None => {
                self.wrapped = true;
                self.arrive(self.head)
            }
        }
    }
}
