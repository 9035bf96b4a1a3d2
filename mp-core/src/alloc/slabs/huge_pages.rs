//! Huge pages for large blocks.

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::layout::size_class::span_of;
use crate::layout::{SLAB_BLOCKS, control};
use crate::mem::{Mem, Word};
use crate::sys::huge_pages;

impl Arena {
    /// Enables or disables requests for huge pages (2 MiB on x86-64) for blocks of at least that size, for
    /// all members.
    ///
    /// ```
    /// let arena = mp_core::Arena::current()?;
    /// match arena.set_huge_pages(true) {
    ///     Ok(()) => println!("tensors from 2 MiB up get huge_pages pages from now on"),
    ///     // Most kernels begin with `never`; the error names the file to write `advise` into.
    ///     Err(why) => println!("{why}"),
    /// }
    /// # arena.set_huge_pages(false)?;
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// Huge pages take less time at the first touch and cause fewer TLB misses afterwards. They are a hint
    /// (`MADV_HUGEPAGE`): if memory is too fragmented, the kernel uses small pages. Existing pages, including
    /// those of cached blocks, are unchanged (see [`empty_cache`](Self::empty_cache)). Each run of up to 64
    /// blocks of one size counts as one more mapping in the process that allocated it.
    ///
    /// Only pages of a hugetlbfs are certainly huge: mount one, and select it with
    /// [`set_sharing_directory`](crate::set_sharing_directory).
    ///
    /// The NUMA node of a page is chosen when the page is created, by the policy of the allocating thread
    /// (`numactl`, `set_mempolicy(2)`). Children inherit the policy as usual.
    ///
    /// # Errors
    /// [`Error::Os`] if this kernel does not support huge pages for shared memory. Nothing is changed then.
    /// [`Error::Local`] for an arena of this process alone.
    pub fn set_huge_pages(&self, on: bool) -> Result<()> {
        if on {
            self.file().map_err(|_| Error::Local)?;
            huge_pages::allowed()?;
        }
        self.map().store(Word::at(control::HUGE), u64::from(on));
        Ok(())
    }

    /// Requests huge pages for a slab of large blocks, if enabled, and creates them for a block that has no
    /// pages yet. If that fails, the block gets small pages.
    pub(crate) fn ask_for_huge_pages(&self, slab: u32, class: u32, at: u64, len: u64) {
        if len < huge_pages::SIZE || self.map().load(Word::at(control::HUGE)) == 0 {
            return;
        }
        // For the whole slab, so that many blocks are one more mapping, not one each.
        self.map().ask_for_huge_pages(self.data_of(slab * SLAB_BLOCKS).0, span_of(class));
        // Pages are huge if a process creates them by touching them. The `fallocate` that follows would
        // create small ones.
        self.map().populate(at, len);
    }
}
