//! # Safety
//! Who this process is, in a page that `fork` wipes. Unsafe, because the page is mapped and reached by
//! address; sound, because it is never unmapped, and holds one aligned atomic word.
//!
//! A raw `fork` copies a process without telling this library. The copy is not a member: it must not release
//! what its parent holds. `MADV_WIPEONFORK` (Linux 4.14) makes the word read 0 in the copy.
#![allow(unsafe_code)]

#[cfg(not(miri))]
use rustix::mm::{Advice, MapFlags, ProtFlags};

#[cfg(not(miri))]
use super::os;
use crate::error::Result;
use crate::sync::Ordering;
use crate::sync::shared::AtomicU64;

/// A word that is 0 in a forked copy of the process.
#[derive(Debug)]
pub(crate) struct Identity(&'static AtomicU64);

impl Identity {
    /// A word holding `value`, under Miri: there are no forks.
    #[cfg(miri)]
    pub(crate) fn new(value: u64) -> Result<Self> {
        Ok(Self(Box::leak(Box::new(AtomicU64::new(value)))))
    }

    /// A new page, holding `value`, which is not 0.
    #[cfg(not(miri))]
    pub(crate) fn new(value: u64) -> Result<Self> {
        let len = rustix::param::page_size();
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }
            .map_err(os("mmap of the identity page"))?;
        // SAFETY: the range is the mapping just made.
        unsafe { rustix::mm::madvise(at, len, Advice::LinuxWipeOnFork) }.map_err(os("MADV_WIPEONFORK"))?;
        // SAFETY: page aligned, zeroed, never unmapped, reached only as this atomic.
        let word = unsafe { &*at.cast::<AtomicU64>() };
        word.store(value, Ordering::Release);
        Ok(Self(word))
    }

    /// Changes the value.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// The value, or 0 in a forked copy.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The kernel's number of this process.
#[inline]
pub(crate) fn process() -> u32 {
    IDS.try_with(|ids| ids.0).unwrap_or_else(|_| std::process::id())
}

/// The kernel's number of this thread.
#[inline]
pub(crate) fn thread() -> u32 {
    IDS.try_with(|ids| ids.1).unwrap_or_else(|_| ids().1)
}

fn ids() -> (u32, u32) {
    (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
}

thread_local! {
    /// Asked once: a forked copy, whose numbers are others, is no member and locks nothing.
    static IDS: (u32, u32) = ids();
}
