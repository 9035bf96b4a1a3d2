//! # Safety
//! Compare-and-swap of two neighboring words. Unsafe, because an instruction writes 16 bytes. Sound, because
//! both words are borrowed as atomics, in an array of two at a multiple of 16, and the processor is known to
//! have the instruction. Words are also accessed individually, by instructions of 8 bytes: the processor
//! keeps all of them atomic with respect to each other (Intel SDM vol. 3, 9.1: a locked instruction on
//! aligned 16 bytes excludes other processors from its cache line).

#![allow(unsafe_code)]

use crate::sync::shared::AtomicU64;

/// Returns `true` if the processor has the instruction.
#[inline]
pub(crate) fn is_supported() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return std::arch::is_x86_feature_detected!("cmpxchg16b");
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Compares and swaps two neighboring words, the first at a multiple of 16. Always fails if the processor
/// does not have the instruction.
#[inline]
pub(in crate::sys) fn compare_exchange(pair: &[AtomicU64; 2], old: [u64; 2], new: [u64; 2]) -> bool {
    let at = std::ptr::from_ref(pair);
    if !at.addr().is_multiple_of(16) || !is_supported() {
        return false;
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let swapped: u64;
        // SAFETY: both words are atomics that are borrowed as neighbors, aligned to 16; the processor has
        // the instruction (both just checked). The compiler reserves `rbx`, which is restored afterwards.
        // (Without optimization, the function of the standard library for this calls a library that is not
        // linked.)
        unsafe {
            std::arch::asm!(
                "xchg {low}, rbx",
                "lock cmpxchg16b [rdi]",
                "mov rbx, {low}",
                "sete cl",
                "movzx rcx, cl",
                low = inout(reg) new[0] => _,
                in("rdi") at,
                inout("rcx") new[1] => swapped,
                inout("rax") old[0] => _,
                inout("rdx") old[1] => _,
                options(nostack),
            );
        }
        swapped != 0
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        let _ = (old, new);
        false
    }
}

#[cfg(all(test, target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;
    use crate::sync::Ordering::Relaxed;

    #[repr(align(16))]
    struct Pair([AtomicU64; 3]);

    #[test]
    fn double_word_exchange_is_all_or_nothing() {
        let pair = Pair([AtomicU64::new(1), AtomicU64::new(2), AtomicU64::new(3)]);
        let [a, b, c] = &pair.0;
        let (first, second) = (&pair.0[..2], &pair.0[1..]);
        let [first, second] = [first, second].map(|two| <&[AtomicU64; 2]>::try_from(two).unwrap());
        assert!(is_supported(), "this processor has no cmpxchg16b");
        for wrong in [[1, 0], [0, 2]] {
            assert!(!compare_exchange(first, wrong, [7, 8]));
        }
        assert_eq!((a.load(Relaxed), b.load(Relaxed)), (1, 2));
        assert!(compare_exchange(first, [1, 2], [7, 8]));
        assert_eq!((a.load(Relaxed), b.load(Relaxed), c.load(Relaxed)), (7, 8, 3));
        assert!(!compare_exchange(second, [8, 3], [0, 0]), "not aligned");
    }
}
