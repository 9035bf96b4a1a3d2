//! Huge pages behind large blocks.

use crate::arena::Arena;
use crate::arena::alloc::size_class::span_of;
use crate::arena::layout::{SLAB_BLOCKS, control};
use crate::error::{Error, Result};
use crate::mem::{Mem, Word};
use crate::sys::huge;

impl Arena {
    /// From now on, asks the kernel for huge pages (2 MiB on x86-64) behind blocks of at least that size, or does so no longer;
    /// for all members.
    ///
    /// ```
    /// let arena = mp_core::Arena::current()?;
    /// match arena.set_huge_pages(true) {
    ///     Ok(()) => println!("tensors from 2 MiB up get huge pages from now on"),
    ///     // Most kernels begin with `never`; the error names the file to write `advise` into.
    ///     Err(why) => println!("{why}"),
    /// }
    /// # arena.set_huge_pages(false)?;
    /// # Ok::<(), mp_core::Error>(())
    /// ```
    ///
    /// Huge pages cost less time at the first touch and fewer TLB misses afterwards. They are a hint (`MADV_HUGEPAGE`): where
    /// memory is too scattered, small pages are taken. What has pages already, cached blocks included, keeps them (see
    /// [`empty_cache`](Self::empty_cache)). Each run of up to 64 blocks of one size counts as one more mapping in the
    /// process that allocated it.
    ///
    /// Only pages of a hugetlbfs are certainly huge: mount one, and set it with
    /// [`set_sharing_directory`](crate::set_sharing_directory).
    ///
    /// On which NUMA node a page lies is decided when it is made, by the policy of the thread that allocates (`numactl`,
    /// `set_mempolicy(2)`): children inherit it as other processes do.
    ///
    /// # Errors
    /// [`Error::Os`], if this kernel gives shared memory no huge pages; nothing is changed then.
    /// [`Error::Local`] for an arena of this process alone.
    pub fn set_huge_pages(&self, on: bool) -> Result<()> {
        if on {
            self.file().map_err(|_| Error::Local)?;
            huge::allowed()?;
        }
        self.map().store(Word::at(control::HUGE), u64::from(on));
        Ok(())
    }

    /// Tells the kernel that a slab of large blocks should have huge pages, if that is wanted, and makes those of a block
    /// that has no pages yet. If that fails, small ones follow.
    pub(in crate::arena) fn ask_for_huge_pages(&self, slab: u32, class: u32, at: u64, len: u64) {
        if len < huge::SIZE || self.map().load(Word::at(control::HUGE)) == 0 {
            return;
        }
        // The whole slab, so that many blocks are one more mapping, not one each.
        self.map().ask_for_huge_pages(self.data_of(slab * SLAB_BLOCKS).0, span_of(class));
        // Pages are huge if a process makes them by touching them; `fallocate`, which follows, would make small ones.
        self.map().populate(at, len);
    }
}
