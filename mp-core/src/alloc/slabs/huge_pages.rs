//! Huge pages for large blocks.

use crate::alloc::Allocator;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::size_class::span_of;
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word};
use crate::sys::huge_pages;

impl Allocator {
    /// Sets the use of huge pages: see [`Arena::set_huge_pages`](crate::Arena::set_huge_pages).
    pub(crate) fn set_huge_pages(self, on: bool) -> Result<()> {
        if on {
            self.0.file().map_err(|_| Error::Local)?;
            huge_pages::allowed()?;
        }
        self.map().store(Word::at(control::HUGE), u64::from(on));
        Ok(())
    }

    /// Requests huge pages for a slab of large blocks, if enabled, and creates them for a block that has no
    /// pages yet. If that fails, the block gets small pages.
    pub(crate) fn ask_for_huge_pages(self, slab: u32, class: u32, at: u64, len: u64) {
        if len < huge_pages::SIZE || self.map().load(Word::at(control::HUGE)) == 0 {
            return;
        }
        // For the whole slab, so that many blocks are one more mapping, not one each.
        self.map().ask_for_huge_pages(Blocks(self.0).data_of(slab * SLAB_BLOCKS).0, span_of(class));
        // Pages are huge if a process creates them by touching them. The `fallocate` that follows would
        // create small ones.
        self.map().populate(at, len);
    }
}
