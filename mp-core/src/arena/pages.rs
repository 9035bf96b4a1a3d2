//! Pages of seats: room for more holders than a block's header has seats for.
//!
//! A page is a block of its own. Its first word says whose it is, its second links the next page, the third is a hint;
//! the others are seats. It is linked while its maker still holds it, and only then handed over to the block: killed
//! in between, the sweep finds it linked and hands it over.

use super::Arena;
use super::class::SEAT_PAGE;
use super::layout::SLAB_BLOCKS;
use crate::error::Result;
use crate::mem::{Mem, Word, run};
use crate::steps::{
    FreeCheck, PAGE_HEADER, Released, Unclaim, last_taken, link_of, page_next, page_owner, with_link,
};
use crate::words::{BlockId, Kind, Seat, SeatAt};

impl Arena {
    /// Frees the pages of seats of a block, the last one first, so that a walk from the start always finds the rest.
    pub(super) fn free_seat_pages(&self, block: BlockId, link: u64) {
        let Ok(me) = self.me() else { return };
        let owned = Seat::Block(block).pack();
        let mut pages = Vec::new();
        let mut next = link_of(link);
        while let Some(page) = next.filter(|&p| self.seat_page(p).is_some() && !pages.contains(&p)) {
            let seat = self.block_at(page).seat(0);
            match Seat::unpack(self.map().load(seat)) {
                Seat::Block(b) if b == block => {}
                // Linked by somebody who died before handing it over; a living one would still hold the block.
                found @ Seat::Member(_) if self.page_is_linked(page) == Some(block) => {
                    if self.map().cas(seat, found.pack(), owned).is_err() {
                        break;
                    }
                }
                _ => break,
            }
            pages.push(page);
            next = link_of(self.map().load(page_next(Word::at(self.data_of(page).0))));
        }
        for page in pages.into_iter().rev() {
            let at = self.block_at(page);
            self.touch(me, page / SLAB_BLOCKS);
            if self.map().cas(at.seat(0), owned, Seat::Free.pack()).is_ok()
                && let Released::ToFree(state) = run(FreeCheck::new(at, self.pages(), me), self.map())
            {
                run(Unclaim::new(at, state), self.map());
                self.hint_free(page);
                self.count_free(SEAT_PAGE);
            }
        }
    }

    /// Links one more page of seats to a block that this process holds.
    pub(crate) fn add_seat_page(&self, block: BlockId) -> Result<()> {
        let hold = self.alloc_kind(SEAT_PAGE, Kind::Seats)?;
        let page = hold.block();
        let first = Word::at(self.data_of(page).0);
        self.map().store(page_owner(first), u64::from(block) + 1);
        for i in 1..SEAT_PAGE / 8 {
            self.map().store_relaxed(first.plus(i), 0);
        }
        // The last link of the chain, which others may lengthen meanwhile.
        let mut at = self.block_at(block).link();
        let mut head = first;
        loop {
            let link = self.map().load(at);
            match link_of(link) {
                Some(next) => {
                    let next = Word::at(self.data_of(next).0);
                    if head == first {
                        head = next;
                    }
                    at = page_next(next);
                }
                None => match self.map().cas(at, link, with_link(link, Some(page))) {
                    Ok(()) => break,
                    Err(_) => continue,
                },
            }
        }
        // Linked: from now on the page belongs to the block. Killed before this line, the sweep does it.
        if let Ok(seat) = self.take_seat(hold)
            && let Some(word) = self.seat_word(page, seat)
        {
            self.map().store(word, Seat::Block(block).pack());
        }
        // Here the next one finds a free seat.
        self.map().store_relaxed(last_taken(head), SeatAt::paged(page, PAGE_HEADER).raw().into());
        Ok(())
    }

    /// Whether a page of seats is linked to its block.
    pub(crate) fn page_is_linked(&self, page: BlockId) -> Option<BlockId> {
        let owner = self.map().load(page_owner(Word::at(self.data_of(page).0))).checked_sub(1)? as BlockId;
        if !self.block_exists(owner) {
            return None;
        }
        let mut link = self.map().load(self.block_at(owner).link());
        for _ in 0..1 << 16 {
            match link_of(link)? {
                p if p == page => return Some(owner),
                p if self.seat_page(p).is_some() => {
                    link = self.map().load(page_next(Word::at(self.data_of(p).0)))
                }
                _ => return None,
            }
        }
        None
    }
}
