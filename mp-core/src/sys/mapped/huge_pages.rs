//! Huge pages of shared memory (`Documentation/admin-guide/mm/transhuge.rst`) and of the process's own
//! allocator.
//!
//! # Safety
//! - Advice to the kernel takes addresses. They belong to a slice that the caller borrows exclusively, and
//!   the advice changes no byte of the slice.
//! - `mallopt` takes no address. It writes words of the allocator that other threads may read at the same
//!   time, as `free` itself does, which raises both thresholds without a lock (glibc, `__libc_free`): each
//!   word is aligned, is written once, and either value is valid.
#![allow(unsafe_code)]

use rustix::mm::Advice;

use crate::error::{Error, Result};

/// Minimum size in bytes of memory for which huge pages are worthwhile. NumPy uses the same limit for its
/// arrays.
const LARGE: usize = 4 << 20;
const PAGE: usize = 4096;

/// Advises the kernel to use huge pages for newly allocated memory that the caller will fill (madvise(2),
/// `MADV_HUGEPAGE`). Has no effect on memory of less than 4 MiB. Without huge pages, each 4 KiB cost a page
/// fault, which takes longer than copying 4 KiB.
pub fn advise_huge_pages<T>(memory: &mut [T]) {
    let bytes = size_of_val(memory);
    if bytes < LARGE || cfg!(miri) {
        return;
    }
    let start = memory.as_mut_ptr().cast::<u8>();
    let first = start.align_offset(PAGE);
    let len = bytes.saturating_sub(first) / PAGE * PAGE;
    // SAFETY: the range is inside of the slice, and the advice doesn't change its contents. Kernels without
    // huge pages ignore it.
    _ = unsafe { rustix::mm::madvise(start.wrapping_add(first).cast(), len, Advice::LinuxHugepage) };
}

/// Configures the C library's allocator to keep up to `most` free bytes at the end of a heap instead of
/// returning them to the kernel, and to allocate blocks shorter than `mapped` from its heaps instead of
/// mapping each one (mallopt(3)). Returns `true` on success. Only glibc has such settings. Invalid values of
/// `most` or `mapped` change nothing.
pub fn set_malloc_thresholds(most: usize, mapped: usize) -> bool {
    #[cfg(all(target_env = "gnu", not(miri)))]
    if let (Ok(most), Ok(mapped)) = (i32::try_from(most), i32::try_from(mapped)) {
        // SAFETY: a known option and a number. 1 means success, here and below.
        let is_set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, mapped) };
        // SAFETY: as above.
        return is_set == 1 && unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, most) } == 1;
    }
    _ = (most, mapped);
    false
}

/// Size of a huge page, on all processors that have them by default.
pub(crate) const SIZE: u64 = 2 << 20;
const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
const OF_SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";

/// Checks that the kernel provides huge pages to shared memory on advice.
pub(crate) fn allowed() -> Result<()> {
    let chosen = |path: &str| {
        let all = std::fs::read_to_string(path).ok()?;
        Some(all.split_once('[')?.1.split_once(']')?.0.to_owned())
    };
    let gives = |setting: &str| matches!(setting, "always" | "advise" | "within_size" | "force");
    // Since Linux 6.10 each size has a setting, which may be `inherit`.
    match (chosen(SETTING), chosen(OF_SIZE)) {
        (_, Some(size)) if gives(&size) => Ok(()),
        (Some(all), None) if gives(&all) => Ok(()),
        (Some(all), Some(size)) if size == "inherit" && gives(&all) => Ok(()),
        (all, size) => {
            let now = |setting: Option<String>| setting.unwrap_or_else(|| "not there".to_owned());
            let source = format!(
                "{SETTING} is {}, {OF_SIZE} is {}: write `advise` into one of them, or use a hugetlbfs",
                now(all),
                now(size)
            );
            let source = std::io::Error::new(std::io::ErrorKind::Unsupported, source);
            Err(Error::Os { what: "this kernel gives shared memory no huge pages", source })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_malloc_thresholds_are_refused() {
        assert!(!set_malloc_thresholds(1 << 26, usize::MAX));
        assert!(!set_malloc_thresholds(usize::MAX, 1 << 20));
    }

    #[test]
    fn huge_page_advice_keeps_the_bytes() {
        for len in [0, 1, PAGE, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE + 77] {
            let mut memory = vec![7; len];
            advise_huge_pages(&mut memory);
            assert!(memory.iter().all(|byte| *byte == 7), "{len}");
        }
    }
}
