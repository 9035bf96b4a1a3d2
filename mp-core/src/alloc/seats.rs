//! Seats that an envelope holds for the attachments of its message, and pages of seats, for blocks with more
//! holders than their headers have seats.
//!
//! A page of seats is a separate block. Its words are: the block that it belongs to, a link to the next page,
//! a hint, and the seats. The maker of a page first links the page to the block, and then hands the page over
//! to the block. Until the handover, the maker holds the page. If the maker is killed after the link and
//! before the handover, the reclaim hands the page over.

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::envelopes::Envelopes;
use crate::envelopes::{INLINE, Meta};
use crate::error::Result;
use crate::layout::size_class::SEAT_PAGE;
use crate::layout::{SLAB_BLOCKS, envelope as field};
use crate::mem::{Mem, Word, run};
use crate::members::Members;
use crate::steps::{FreePages, LinkPage, ReleaseOutcome, link_of, page_next, page_owner};
use crate::words::{Attachment, BlockId, BlockKind, EnvelopeId, Seat};

impl Allocator {
    /// Returns the position of an envelope's list of attachments, and the number of entries, limited to the
    /// available space.
    pub(crate) fn attachments_at(self, id: EnvelopeId, meta: Meta) -> (Word, u64) {
        let spill =
            Attachment::unpack(self.map().load_relaxed(Envelopes(self.0).envelope_word(id, field::SPILL)));
        let (at, room) = match spill.filter(|a| meta.spilled && Blocks(self.0).block_exists(a.block)) {
            Some(attach) => Blocks(self.0).memory_of(attach.block),
            None => (Envelopes(self.0).envelope_word(id, field::INLINE), INLINE as u64),
        };
        (at, (meta.attachments as u64).min(room / 8))
    }

    /// Returns the attachments that an envelope lists, with the position of each in the list.
    pub(crate) fn attachments(self, id: EnvelopeId) -> impl Iterator<Item = (Word, Attachment)> + use<> {
        let map = self.map();
        let meta = Meta::of_any_version(map.load(Envelopes(self.0).envelope_word(id, field::META)));
        let (entries, n) = self.attachments_at(id, meta);
        (0..n).filter_map(move |k| Some((entries.plus(k), Attachment::unpack(map.load(entries.plus(k)))?)))
    }

    /// Releases every seat that an envelope of this process holds, even if its message has another wire
    /// version.
    pub(crate) fn empty_envelope(self, id: EnvelopeId) {
        let map = self.map();
        let meta_word = Envelopes(self.0).envelope_word(id, field::META);
        let meta = Meta::of_any_version(map.load_relaxed(meta_word));
        let spill_word = Envelopes(self.0).envelope_word(id, field::SPILL);
        let spill = Attachment::unpack(map.load_relaxed(spill_word));
        for (entry, attach) in self.attachments(id) {
            self.release_attachment(id, attach);
            map.store(entry, 0);
        }
        if meta.attachments != 0 || meta.spilled {
            map.store(meta_word, Meta::default().pack());
        }
        // The spill may contain the list of attachments. Their number is 0 by now.
        if let Some(attach) = spill {
            self.release_attachment(id, attach);
            map.store(spill_word, 0);
        }
    }

    fn release_attachment(self, e: EnvelopeId, attach: Attachment) {
        let Ok(me) = self.me() else { return };
        if !Blocks(self.0).block_exists(attach.block) {
            return;
        }
        let Some(word) = Blocks(self.0).seat_word(attach.block, attach.seat) else { return };
        // This process may have to free the block.
        Members(self.0).touch(me, attach.block / SLAB_BLOCKS);
        let release = Blocks(self.0).release(attach.block, me, (word, Seat::Envelope(e)));
        if let ReleaseOutcome::MustFree(state) = run(release, self.map()) {
            self.finish_free(attach.block, state);
        }
    }
}

impl Allocator {
    /// Frees the pages of seats of a block that this process has claimed for freeing.
    #[inline]
    pub(crate) fn free_seat_pages(self, block: BlockId) {
        // Most blocks have no pages of seats.
        if link_of(self.map().load(Blocks(self.0).block_at(block).link())).is_none() {
            return;
        }
        self.free_pages_of(block);
    }

    #[inline(never)]
    fn free_pages_of(self, block: BlockId) {
        let Ok(me) = self.me() else { return };
        let at = |page| {
            // This process has to free the page.
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
        let first = Blocks(self.0).memory_of(page).0;
        // The handle is consumed: its seat is handed over to the block.
        if self.take_seat(&mut hold).is_some() {
            let (at, page) = (Blocks(self.0).block_at(block), Blocks(self.0).block_at(page));
            run(LinkPage::new(at, page, first, me, Blocks(self.0).pages()), self.map());
        }
        Ok(())
    }

    /// Returns the block to which a page of seats belongs. Returns `None` if the page is not linked to that
    /// block.
    pub(crate) fn page_is_linked(self, page: BlockId) -> Option<BlockId> {
        let owner = page_owner(Blocks(self.0).memory_of(page).0);
        let owner = self.map().load(owner).checked_sub(1)? as BlockId;
        if !Blocks(self.0).block_exists(owner) {
            return None;
        }
        let mut link = self.map().load(Blocks(self.0).block_at(owner).link());
        for _ in 0..1 << 16 {
            match link_of(link)? {
                p if p == page => return Some(owner),
                p => link = self.map().load(page_next(Blocks(self.0).seat_page(p)?)),
            }
        }
        None
    }
}
