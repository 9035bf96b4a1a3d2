//! The way through the pages of seats of a block: a circle, from the seat that was taken last.

use super::{BlockAt, PAGE_HEADER};
use crate::mem::Word;
use crate::words::{BlockId, SeatAt};

/// A seat in a page: the page's block, the first word of its memory, and the seat's number in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Paged {
    pub(super) page: BlockId,
    pub(super) first: Word,
    pub(super) seat: u32,
}

impl Paged {
    #[inline(always)]
    pub(super) const fn word(self) -> Word {
        self.first.plus((PAGE_HEADER + self.seat) as u64)
    }

    #[inline(always)]
    pub(super) const fn at(self) -> SeatAt {
        SeatAt::paged(self.page, PAGE_HEADER + self.seat)
    }
}

/// Where the block that a page belongs to is noted.
pub(crate) const fn page_owner(page: Word) -> Word {
    page
}

/// Where the link to the next page is.
pub(crate) const fn page_next(page: Word) -> Word {
    page.plus(1)
}

/// Where a block's first page notes the seat that was taken last.
pub(crate) const fn last_taken(first_page: Word) -> Word {
    first_page.plus(2)
}

/// A walk through all pages of a chain, in a circle.
///
/// It ends where it began, or, if it never comes back there, at the second end of the chain: then it has seen all of the
/// chain as well.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Circle {
    head: Paged,
    start: Paged,
    now: Paged,
    wrapped: bool,
}

/// What comes after a seat.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Onward {
    /// The next seat of the same page.
    Seat,
    /// Another page: the link has to be read first.
    Link,
    /// Nothing.
    End,
}

// Inlined wherever they are called: the address of a step's state, given to a call, would keep all of it in memory, also on
// the usual way, which never comes here.
impl Circle {
    /// Around the chain whose first page is `head`, from `last` on, which is what the first page notes; from the
    /// first seat on, if that names none.
    #[inline(always)]
    pub(super) fn new(
        block: &BlockAt,
        (page, first): (BlockId, Word),
        last: u64,
        pages: impl Fn(BlockId) -> Option<Word>,
    ) -> Self {
        let head = Paged { page, first, seat: 0 };
        let noted = u32::try_from(last).ok().and_then(|raw| SeatAt::from_raw(raw).page().ok());
        let start = noted.and_then(|(page, word)| {
            let seat = word.checked_sub(PAGE_HEADER).filter(|&seat| seat < block.per_page)?;
            Some(Paged { page, first: pages(page)?, seat })
        });
        let start = start.unwrap_or(head);
        Self { head, start, now: start, wrapped: false }
    }

    #[inline(always)]
    pub(super) const fn now(&self) -> Paged {
        self.now
    }

    /// Begins at the chain's first page instead.
    pub(super) fn restart(&mut self) {
        *self = Self { head: self.head, start: self.head, now: self.head, wrapped: false };
    }

    #[inline(always)]
    fn arrive(&mut self, at: Paged) -> Onward {
        self.now = at;
        if at == self.start { Onward::End } else { Onward::Seat }
    }

    #[inline(always)]
    pub(super) fn advance(&mut self, block: &BlockAt) -> Onward {
        if self.now.seat + 1 < block.per_page {
            return self.arrive(Paged { seat: self.now.seat + 1, ..self.now });
        }
        Onward::Link
    }

    /// Goes on to the page that the present page's link leads to; from the last one to the first.
    #[inline(always)]
    pub(super) fn enter(&mut self, next: Option<(BlockId, Word)>) -> Onward {
        match next {
            Some((page, first)) => self.arrive(Paged { page, first, seat: 0 }),
            None if self.wrapped => Onward::End,
            None => {
                self.wrapped = true;
                self.arrive(self.head)
            }
        }
    }
}
