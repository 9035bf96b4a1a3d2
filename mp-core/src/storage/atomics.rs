//! # Safety
//! Single elements as atomics of their width. Unsafe, because it makes references to atomics in the mapping; sound,
//! because
//! - the element is inside of the block (`Storage::at` checks), and aligned to its own size: blocks are 64-byte aligned, and
//!   elements have 1, 2, 4, 8 or 16 bytes. One of 16 bytes is two numbers of 8;
//! - elements of a shared tensor are reached in no other way than this, in the same width, by all processes; those of other
//!   modes only by who may read (or write) them plainly as well.
#![allow(unsafe_code)]

use super::Storage;
use crate::sync::shared::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::tensor::Element;

/// Runs code with the element as an atomic of its width; elements of 16 bytes are others' business.
macro_rules! as_atomic {
    ($storage:expr, $i:expr, $T:ty, |$a:ident| $body:expr) => {
        as_atomic!(@widths $storage, $i, $T, |$a| $body, 1 AtomicU8, 2 AtomicU16, 4 AtomicU32)
    };
    (@widths $storage:expr, $i:expr, $T:ty, |$a:ident| $body:expr, $($size:literal $atomic:ty),*) => {
        match size_of::<$T>() {
            $($size => {
                // SAFETY: in bounds, aligned to its size, held; see above.
                let $a = unsafe { $storage.at::<$T>($i, 1).cast::<$atomic>().as_ref() };
                $body
            })*
            _ => {
                // SAFETY: as above.
                let $a = unsafe { $storage.at::<$T>($i, 1).cast::<AtomicU64>().as_ref() };
                $body
            }
        }
    };
}

impl Storage {
    /// Both halves of an element of 16 bytes.
    #[inline]
    fn halves<T: Element>(&self, i: usize) -> &[AtomicU64; 2] {
        // SAFETY: in bounds, aligned to 8 bytes, held; see above.
        unsafe { self.at::<T>(i, 1).cast::<[AtomicU64; 2]>().as_ref() }
    }

    /// Reads one element.
    #[inline]
    pub(crate) fn load<T: Element>(&self, i: usize) -> T {
        if size_of::<T>() == 16 {
            return bytemuck::cast(self.halves::<T>(i).each_ref().map(|half| half.load(Relaxed)));
        }
        as_atomic!(self, i, T, |a| bytemuck::cast(a.load(Relaxed)))
    }

    /// Writes one element.
    #[inline]
    pub(crate) fn store<T: Element>(&self, i: usize, v: T) {
        if size_of::<T>() == 16 {
            let values: [u64; 2] = bytemuck::cast(v);
            return self.halves::<T>(i).iter().zip(values).for_each(|(half, v)| half.store(v, Relaxed));
        }
        as_atomic!(self, i, T, |a| a.store(bytemuck::cast(v), Relaxed));
    }

    /// Changes one element of at most 8 bytes, by comparing and swapping; the value before.
    #[inline]
    pub(crate) fn update<T: Element>(&self, i: usize, f: impl Fn(T) -> T) -> T {
        as_atomic!(self, i, T, |a| {
            let change = |v| Some(bytemuck::cast(f(bytemuck::cast(v))));
            match a.fetch_update(Relaxed, Relaxed, change) {
                Ok(v) | Err(v) => bytemuck::cast(v),
            }
        })
    }

    /// Writes `new` if it is `old`; what it was.
    pub(crate) fn swap_if<T: Element>(&self, i: usize, old: T, new: T) -> Result<T, T> {
        as_atomic!(self, i, T, |a| {
            let swapped = a.compare_exchange(bytemuck::cast(old), bytemuck::cast(new), Relaxed, Relaxed);
            swapped.map(bytemuck::cast).map_err(bytemuck::cast)
        })
    }

    /// Adds as integers of its width; the value before.
    #[inline]
    pub(crate) fn add_bits<T: Element>(&self, i: usize, v: T) -> T {
        as_atomic!(self, i, T, |a| bytemuck::cast(a.fetch_add(bytemuck::cast(v), Relaxed)))
    }

    /// Ands; the value before.
    #[inline]
    pub(crate) fn and_bits<T: Element>(&self, i: usize, v: T) -> T {
        as_atomic!(self, i, T, |a| bytemuck::cast(a.fetch_and(bytemuck::cast(v), Relaxed)))
    }

    /// Ors; the value before.
    #[inline]
    pub(crate) fn or_bits<T: Element>(&self, i: usize, v: T) -> T {
        as_atomic!(self, i, T, |a| bytemuck::cast(a.fetch_or(bytemuck::cast(v), Relaxed)))
    }

    /// Exclusive-ors; the value before.
    #[inline]
    pub(crate) fn xor_bits<T: Element>(&self, i: usize, v: T) -> T {
        as_atomic!(self, i, T, |a| bytemuck::cast(a.fetch_xor(bytemuck::cast(v), Relaxed)))
    }
}
