//! # Safety
//! Advice to the kernel about memory of the process's own allocator. Unsafe, because the call takes addresses; sound, because
//! they are those of a slice that the caller has for itself, and the advice changes no byte of it.
#![allow(unsafe_code)]

use rustix::mm::Advice;

/// From how many bytes on huge pages pay; NumPy does the same for its arrays from there on.
const LARGE: usize = 4 << 20;
const PAGE: usize = 4096;

/// Says that memory which was just allocated is filled next: a large piece gets huge pages, if the kernel has any and gives them on
/// advice (madvise(2), `MADV_HUGEPAGE`). Without them each 4 KiB of it cost a page fault, which takes longer than the copy into it.
pub fn will_fill(memory: &mut [u8]) {
    if memory.len() < LARGE || cfg!(miri) {
        return;
    }
    let first = memory.as_ptr().align_offset(PAGE);
    let Some(pages) = memory.get_mut(first..) else { return };
    let len = pages.len() - pages.len() % PAGE;
    // SAFETY: the range is inside of the slice, and the advice doesn't change its contents. Kernels that have no huge pages leave
    // it as it is.
    _ = unsafe { rustix::mm::madvise(pages.as_mut_ptr().cast(), len, Advice::LinuxHugepage) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_stay() {
        for len in [0, 1, PAGE, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE + 77] {
            let mut memory = vec![7; len];
            will_fill(&mut memory);
            assert!(memory.iter().all(|byte| *byte == 7), "{len}");
        }
    }
}
