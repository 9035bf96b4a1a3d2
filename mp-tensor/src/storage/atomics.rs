//! # Safety
//! Single elements as atomics of their width. Unsafe, because it makes references to atomics in the mapping; sound,
//! because
//! - an [`Atomic`] is only ever reached by reference, in a storage ([`of`]): it is inside of the block, held as
//!   long as the reference, and aligned to its own size: blocks are 64-byte aligned, and elements have 1, 2, 4, 8 or 16
//!   bytes. One of 16 bytes is two numbers of 8;
//! - elements of a shared tensor are reached in no other way than this, in the same width, by all processes; those of other
//!   modes only by code that may read (or write) them plainly as well, inside of this crate.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;

use mp_core::Storage;
use mp_core::sync::shared::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::element::{Element, Integer, Number};

/// An element that any number of processes read and write at once: what [`SharedTensor::as_atomics`] gives a slice of.
///
/// ```
/// use mp_tensor::Tensor;
///
/// let weights = Tensor::<f32>::full(&[4], 1.0)?.share();
/// let (left, right) = weights.as_atomics()?.split_at(2);
/// for (l, r) in left.iter().zip(right) {
///     l.store(l.load() + 0.5 * r.load());
/// }
/// assert_eq!(right[1].fetch_add(2.0), 1.0);
/// assert_eq!(weights.to_vec(), [1.5, 1.5, 1.0, 3.0]);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// All its operations are relaxed, in the sense of [`std::sync::atomic::Ordering::Relaxed`]: no element is ever torn, and
/// nothing is promised about the order in which other threads and processes see several. A load and a store
/// are the processor's plain ones. What changes an element by several steps (`fetch_*`, `compare_exchange`)
/// lets no other change come in between. None of them blocks, and a process that dies in the middle of one
/// has done it or has not. (An element of [`Complex<f64>`](crate::Complex) is two numbers, each of which is whole; and
/// [`add_lossy`](Self::add_lossy) is a load and a store.)
///
/// [`SharedTensor::as_atomics`]: crate::Tensor::as_atomics
#[repr(transparent)]
pub struct Atomic<T: Element>(UnsafeCell<T>);

// SAFETY: all accesses are atomic, in one width.
unsafe impl<T: Element> Sync for Atomic<T> {}

impl<T: Element> fmt::Debug for Atomic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}

/// Runs code with the element as an atomic of its width; elements of 16 bytes are left to the caller.
macro_rules! as_atomic {
    ($this:expr, $T:ty, |$a:ident| $body:expr) => {
        as_atomic!(@widths $this, $T, |$a| $body, 1 AtomicU8, 2 AtomicU16, 4 AtomicU32)
    };
    (@widths $this:expr, $T:ty, |$a:ident| $body:expr, $($size:literal $atomic:ty),*) => {
        match size_of::<$T>() {
            $($size => {
                // SAFETY: of this size, aligned to it; see above.
                let $a = unsafe { &*$this.0.get().cast::<$atomic>() };
                $body
            })*
            _ => {
                // SAFETY: as above.
                let $a = unsafe { &*$this.0.get().cast::<AtomicU64>() };
                $body
            }
        }
    };
}

impl<T: Element> Atomic<T> {
    /// Both halves of an element of 16 bytes.
    #[inline]
    fn halves(&self) -> &[AtomicU64; 2] {
        // SAFETY: of this size, aligned to 8 bytes; see above.
        unsafe { &*self.0.get().cast::<[AtomicU64; 2]>() }
    }

    /// Reads it.
    #[inline]
    pub fn load(&self) -> T {
        if size_of::<T>() == 16 {
            return bytemuck::cast(self.halves().each_ref().map(|half| half.load(Relaxed)));
        }
        as_atomic!(self, T, |a| bytemuck::cast(a.load(Relaxed)))
    }

    /// Writes it.
    #[inline]
    pub fn store(&self, value: T) {
        if size_of::<T>() == 16 {
            let values: [u64; 2] = bytemuck::cast(value);
            return self.halves().iter().zip(values).for_each(|(half, v)| half.store(v, Relaxed));
        }
        as_atomic!(self, T, |a| a.store(bytemuck::cast(value), Relaxed));
    }
}

/// Changes that no other change can come in between of.
impl<T: Number> Atomic<T> {
    /// By comparing and swapping; the value before.
    #[inline]
    fn update(&self, f: impl Fn(T) -> T) -> T {
        as_atomic!(self, T, |a| {
            let change = |v| Some(bytemuck::cast(f(bytemuck::cast(v))));
            match a.fetch_update(Relaxed, Relaxed, change) {
                Ok(v) | Err(v) => bytemuck::cast(v),
            }
        })
    }

    /// Adds; the value before. Integers wrap; floats are compared and swapped until no other change came in
    /// between.
    #[inline]
    pub fn fetch_add(&self, value: T) -> T {
        if T::INTEGER {
            as_atomic!(self, T, |a| bytemuck::cast(a.fetch_add(bytemuck::cast(value), Relaxed)))
        } else {
            self.update(|v| v.plus(value))
        }
    }

    /// Subtracts; the value before. As [`fetch_add`](Self::fetch_add).
    #[inline]
    pub fn fetch_sub(&self, value: T) -> T {
        if T::INTEGER { self.fetch_add(T::zeroed().minus(value)) } else { self.update(|v| v.minus(value)) }
    }

    /// Adds by a load and a store. Another's addition in between is lost, which Hogwild training tolerates; it costs a fifth
    /// of [`fetch_add`](Self::fetch_add).
    #[inline]
    pub fn add_lossy(&self, value: T) {
        self.store(self.load().plus(value));
    }
}

/// Changes of integers that no other change can come in between of.
impl<T: Integer> Atomic<T> {
    /// The larger of it and `value`; the value before.
    pub fn fetch_max(&self, value: T) -> T {
        self.update(|v| v.max(value))
    }

    /// The smaller of it and `value`; the value before.
    pub fn fetch_min(&self, value: T) -> T {
        self.update(|v| v.min(value))
    }

    /// The bits that both have; the value before.
    #[inline]
    pub fn fetch_and(&self, value: T) -> T {
        as_atomic!(self, T, |a| bytemuck::cast(a.fetch_and(bytemuck::cast(value), Relaxed)))
    }

    /// The bits that one of them has; the value before.
    #[inline]
    pub fn fetch_or(&self, value: T) -> T {
        as_atomic!(self, T, |a| bytemuck::cast(a.fetch_or(bytemuck::cast(value), Relaxed)))
    }

    /// The bits that differ; the value before.
    #[inline]
    pub fn fetch_xor(&self, value: T) -> T {
        as_atomic!(self, T, |a| bytemuck::cast(a.fetch_xor(bytemuck::cast(value), Relaxed)))
    }

    /// Writes `new` if it is `old`.
    ///
    /// # Errors
    /// What it is, if it is not `old`; nothing is changed then.
    #[inline]
    pub fn compare_exchange(&self, old: T, new: T) -> Result<T, T> {
        as_atomic!(self, T, |a| {
            let swapped = a.compare_exchange(bytemuck::cast(old), bytemuck::cast(new), Relaxed, Relaxed);
            swapped.map(bytemuck::cast).map_err(bytemuck::cast)
        })
    }
}

/// Elements of a storage as atomics; for tensors whose mode allows it, see above.
///
/// # Panics
/// If some of them are outside.
#[inline]
pub(super) fn of<T: Element>(storage: &Storage, first: usize, len: usize) -> &[Atomic<T>] {
    if len == 0 {
        return &[];
    }
    let p = storage.at::<T>(first, len);
    // SAFETY: in bounds (`at` checks), aligned, held as long as `storage`; see above.
    unsafe { std::slice::from_raw_parts(p.as_ptr().cast::<Atomic<T>>(), len) }
}

/// One element as an atomic; see [`of`].
#[inline]
pub(super) fn one<T: Element>(storage: &Storage, i: usize) -> &Atomic<T> {
    let p = storage.at::<T>(i, 1);
    // SAFETY: as above.
    unsafe { p.cast::<Atomic<T>>().as_ref() }
}
