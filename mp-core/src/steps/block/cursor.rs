//! Walk through the pages of seats of a block: a circle that begins at the seat taken last.

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

/// Returns the word of a block's first page with the seat taken last.
pub(crate) const fn last_taken(first_page: Word) -> Word {
    first_page.plus(2)
}

/// Walk through all pages of a chain, in a circle.
///
/// The walk ends where it began, or, if it never returns there, at the second end of the chain. It has read
/// the whole chain in both cases.
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
    /// The next seat of the same page.
    Seat,
    /// Another page: the link has to be read first.
    Link,
    /// None.
    End,
}

// Inlined into all callers: the address of a step's state, passed to a call, would keep all of the state in
// memory, also on the common path, which never gets here.
impl SeatCursor {
    /// Begins a walk of the chain whose first page is `head` at `last`, the word in the first page, or at the
    /// first seat if that names none.
    #[inline(always)]
    pub(super) fn new(
        block: &BlockAt,
        (page, first): (BlockId, Word),
        last: u64,
        pages: impl Fn(BlockId) -> Option<Word>,
    ) -> Self {
        let head = PagedSeat { page, first, seat: 0 };
        let noted = u32::try_from(last).ok().and_then(|raw| SeatAt::from_raw(raw).page().ok());
        let start = noted.and_then(|(page, word)| {
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
    pub(super) fn restart(&mut self) {
        *self = Self { head: self.head, start: self.head, now: self.head, wrapped: false };
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
