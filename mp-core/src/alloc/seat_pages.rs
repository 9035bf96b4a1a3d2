//! Pages of seats, for blocks with more holders than their headers have seats.
//!
//! A page is a separate block. Its first word names its block, its second word links the next page, its third
//! word is a hint, and the others are seats. The page is linked while its maker still holds it, and is then
//! handed over to the block. If the maker is killed in between, the reclaim finds the page linked and hands
//! it over.

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::error::Result;
use crate::layout::SLAB_BLOCKS;
use crate::layout::size_class::SEAT_PAGE;
use crate::mem::{Mem, Word, run};
use crate::members::Members;
use crate::steps::{FreePages, LinkPage, link_of, page_next, page_owner};
use crate::words::{BlockId, BlockKind};

impl Allocator {
    /// Frees the pages of seats of a block that this process has claimed for freeing.
    #[inline]
    pub(crate) fn free_seat_pages(self, block: BlockId) {
        // Most blocks have none.
        if link_of(self.map().load(Blocks(self.0).block_at(block).link())).is_none() {
            return;
        }
        self.free_pages_of(block);
    }

    #[inline(never)]
    fn free_pages_of(self, block: BlockId) {
        let Ok(me) = self.me() else { return };
        let at = |page| {
            // This process has to free it.
            Members(self.0).touch(me, page / SLAB_BLOCKS);
            Blocks(self.0).block_at(page)
        };
        for page in
            run(FreePages::new(Blocks(self.0).block_at(block), me, Blocks(self.0).pages(), at), self.map())
        {
            self.hint_free(page);
            self.count_free(SEAT_PAGE);
        }
    }

    /// Links an additional page of seats to a block that this process holds.
    pub(crate) fn add_seat_page(self, block: BlockId) -> Result<()> {
        let me = self.me()?;
        let mut hold = self.alloc_kind(SEAT_PAGE, BlockKind::Seats)?;
        let page = hold.block();
        let first = Word::at(Blocks(self.0).data_of(page).0);
        // The handle is consumed: its seat is handed over to the block.
        if self.take_seat(&mut hold).is_some() {
            let (at, page) = (Blocks(self.0).block_at(block), Blocks(self.0).block_at(page));
            run(LinkPage::new(at, page, first, me, Blocks(self.0).pages()), self.map());
        }
        Ok(())
    }

    /// Returns the block of a page of seats, if the page is linked to it.
    pub(crate) fn page_is_linked(self, page: BlockId) -> Option<BlockId> {
        let owner =
            self.map().load(page_owner(Word::at(Blocks(self.0).data_of(page).0))).checked_sub(1)? as BlockId;
        if !Blocks(self.0).block_exists(owner) {
            return None;
        }
        let mut link = self.map().load(Blocks(self.0).block_at(owner).link());
        for _ in 0..1 << 16 {
            match link_of(link)? {
                p if p == page => return Some(owner),
                p if Blocks(self.0).seat_page(p).is_some() => {
                    link = self.map().load(page_next(Word::at(Blocks(self.0).data_of(p).0)))
                }
                _ => return None,
            }
        }
        None
    }
}
