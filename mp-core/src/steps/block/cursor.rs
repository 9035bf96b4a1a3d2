//! Search through the pages of seats of a block. The pages form a circle, and the search begins at one of two
//! hints.
//!
//! Both hints are in one word of the block's first page: the seat that was *taken* last, and a seat that a
//! walk over free seats found *held*. A hint may be wrong. A process that has released its seat may write the
//! second hint after the block was freed, when the page already belongs to another block. So each walk checks
//! that the page of its first seat belongs to the block.

use super::{BlockAt, PAGE_HEADER};
use crate::mem::Word;
use crate::words::{BlockId, SeatAt};

/// Seat in a page of seats: the block of the page, the first word of the page's memory, and the number of the
/// seat in the page.
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

/// Two hints for the start of a walk: `held 32, taken 32`. Each is the position of a seat in a page, or 0.
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
/// The walk ends when it returns to its first seat. If the chain does not lead back to that seat, the walk
/// ends when it reaches the end of the chain for the second time. In both cases the walk has read the whole
/// chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct SeatCursor {
    head: PagedSeat,
    start: PagedSeat,
    now: PagedSeat,
    wrapped: bool,
}

/// Successor of a seat in a walk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum NextSeat {
    /// The cursor has moved to the next seat.
    Seat,
    /// The next seat is in another page. The caller reads the link of the present page, and passes it to
    /// [`enter`](SeatCursor::enter).
    Link,
    /// The walk has ended.
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

    /// Begins the walk again, at the first seat of the chain.
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

    /// Continues with the first seat of `next`, the page to which the present page is linked. `None`: the
    /// present page is the last one, and the walk continues with the first page of the chain.
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
