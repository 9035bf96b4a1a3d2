//! # Safety
//! Bulk access to elements of a shared tensor. Unsafe, because it is assembly: the compiler turns a loop of
//! atomic loads into one load for each element, while the processor's string instructions reach the speed of
//! `memcpy`. Sound, because
//! - `rep movs` of the element's width is defined as a sequence of loads and stores of that width (Intel SDM
//!   vol. 2B, MOVS; AMD APM vol. 3, MOVS). Each load or store is aligned to its size, and therefore a relaxed
//!   atomic access on x86-64 (Intel SDM vol. 3A, 9.1.1). The sequence is equivalent to the loop that other
//!   processors run;
//! - the compiler treats the assembly as opaque accesses, not as a data race;
//! - source and target are in bounds: `Storage::at` checks the part of the storage, and the other side is a
//!   slice. They don't overlap, since no code has a slice of a shared tensor's memory.
#![allow(unsafe_code)]

use mp_core::Storage;

use super::{load, store};
use crate::element::Element;

/// Number of bytes below which a loop is faster than the string instruction.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT: usize = 256;

/// Copies elements by `rep movs` of the size of `T`.
///
/// # Safety
/// `from` and `to` are valid for reading and writing `len` elements, by accesses that may race with relaxed
/// atomics of the same width.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn move_elements<T: Element>(from: *const T, to: *mut T, len: usize) {
    macro_rules! movs {
        ($instruction:literal, $n:expr) => {
            // SAFETY: the caller's promise. The direction flag is clear by the ABI, and the flags stay
            // unchanged.
            unsafe {
                std::arch::asm!(
                    $instruction,
                    inout("rcx") $n => _,
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    options(nostack, preserves_flags)
                )
            }
        };
    }
    match size_of::<T>() {
        1 => movs!("rep movsb", len),
        2 => movs!("rep movsw", len),
        4 => movs!("rep movsd", len),
        8 => movs!("rep movsq", len),
        // Two numbers of 8 bytes.
        _ => movs!("rep movsq", len * 2),
    }
}

/// Reads elements of a storage into `to`, from index `first` on, each by a relaxed load.
#[inline]
pub(crate) fn load_all<T: Element>(storage: &Storage, first: usize, to: &mut [T]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if size_of_val(to) >= SHORT {
        let from = storage.at::<T>(first, to.len());
        // SAFETY: `from` is checked, `to` is a slice; see above.
        return unsafe { move_elements(from.as_ptr(), to.as_mut_ptr(), to.len()) };
    }
    to.iter_mut().zip(first..).for_each(|(to, i)| *to = load(storage, i));
}

/// Writes `from` into elements of a storage, from index `first` on, each by a relaxed store.
#[inline]
pub(crate) fn store_all<T: Element>(storage: &Storage, first: usize, from: &[T]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if size_of_val(from) >= SHORT {
        let to = storage.at::<T>(first, from.len());
        // SAFETY: `to` is checked, `from` is a slice; see above.
        return unsafe { move_elements(from.as_ptr(), to.as_ptr(), from.len()) };
    }
    from.iter().zip(first..).for_each(|(v, i)| store(storage, i, *v));
}
