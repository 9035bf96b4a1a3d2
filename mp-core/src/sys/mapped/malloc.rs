//! Memory of the process's own allocator: its pages, and their return to the kernel.
//!
//! # Safety
//! - Advice to the kernel takes addresses. They are those of a slice that the caller has exclusively, and the
//!   advice changes no byte of it.
//! - `mallopt` takes no address. It writes words of the allocator that other threads may read at the same
//!   time, as `free` itself does, which raises both thresholds without a lock (glibc, `__libc_free`): each
//!   word is aligned, is written once, and either value is valid.
#![allow(unsafe_code)]

use rustix::mm::Advice;

/// Size in bytes from which huge pages are worthwhile; NumPy uses the same limit for its arrays.
const LARGE: usize = 4 << 20;
const PAGE: usize = 4096;

/// Announces that newly allocated memory will be filled. A large piece gets huge pages, if the kernel has any
/// and provides them on advice (madvise(2), `MADV_HUGEPAGE`). Without them each 4 KiB cost a page fault,
/// which takes longer than the copy into it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_thresholds_are_refused() {
        assert!(!set_malloc_thresholds(1 << 26, usize::MAX));
        assert!(!set_malloc_thresholds(usize::MAX, 1 << 20));
    }

    #[test]
    fn reallocation_keeps_the_bytes() {
        for len in [0, 1, PAGE, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE + 77] {
            let mut memory = vec![7; len];
            advise_huge_pages(&mut memory);
            assert!(memory.iter().all(|byte| *byte == 7), "{len}");
        }
    }
}
