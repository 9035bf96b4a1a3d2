//! # Safety
//! Elements as atomics of their width. Unsafe, because it creates references to atomics in the mapping.
//! Sound, because
//! - an [`Atomic`] is only accessed by reference, in a storage ([`atomics()`]). The reference is inside of
//!   the block, which is held while the reference lives. It is aligned to its size, since blocks are 64-byte
//!   aligned and elements have 1, 2, 4, 8 or 16 bytes. An element of 16 bytes is two numbers of 8;
//! - all processes access elements of a shared tensor only in this way and in this width. In other modes,
//!   these functions are only called by code that may also access the elements without atomics.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::fmt;

use mp_core::Storage;
use mp_core::sync::shared::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::element::{Element, Integer, Number};

/// An element that any number of processes read and write concurrently: the item of
/// [`SharedTensor::as_atomics`].
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
/// All operations are [`Relaxed`](std::sync::atomic::Ordering::Relaxed): no element is ever torn. The order
/// in which other threads and processes see changes of several elements is unspecified. A load and a store
/// are plain machine instructions. Read-modify-write operations (`fetch_*`, `compare_exchange`) are atomic.
/// No operation blocks, and a process that dies during one has completed it or not. (A
/// [`Complex<f64>`](crate::Complex) is two numbers, each of which is whole. [`add_lossy`](Self::add_lossy) is
/// a load and a store.)
///
/// [`SharedTensor::as_atomics`]: crate::Tensor::as_atomics
#[repr(transparent)]
pub struct Atomic<T: Element>(UnsafeCell<T>);

// SAFETY: all accesses are atomic, with one width.
unsafe impl<T: Element> Sync for Atomic<T> {}

impl<T: Element> fmt::Debug for Atomic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}

/// Runs code with the element as an atomic of its width. The caller handles elements of 16 bytes.
macro_rules! as_atomic {
    ($this:expr, $T:ty, |$a:ident| $body:expr) => {
        as_atomic!(@widths $this, $T, |$a| $body, 1 AtomicU8, 2 AtomicU16, 4 AtomicU32)
    };
    (@widths $this:expr, $T:ty, |$a:ident| $body:expr, $($size:literal $atomic:ty),*) => {
        match size_of::<$T>() {
            $($size => {
                // SAFETY: the element has this size and is aligned to it; see above.
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
    /// Returns both halves of an element of 16 bytes.
    #[inline]
    fn halves(&self) -> &[AtomicU64; 2] {
        // SAFETY: the element has 16 bytes and is aligned to 8; see above.
        unsafe { &*self.0.get().cast::<[AtomicU64; 2]>() }
    }

    /// Reads the element.
    #[inline]
    pub fn load(&self) -> T {
        if size_of::<T>() == 16 {
            return bytemuck::cast(self.halves().each_ref().map(|half| half.load(Relaxed)));
        }
        as_atomic!(self, T, |a| bytemuck::cast(a.load(Relaxed)))
    }

    /// Writes the element.
    #[inline]
    pub fn store(&self, value: T) {
        if size_of::<T>() == 16 {
            let values: [u64; 2] = bytemuck::cast(value);
            return self.halves().iter().zip(values).for_each(|(half, v)| half.store(v, Relaxed));
        }
        as_atomic!(self, T, |a| a.store(bytemuck::cast(value), Relaxed));
    }
}

/// Atomic read-modify-write operations.
impl<T: Number> Atomic<T> {
    /// Replaces the value by compare-and-swap. Returns the previous value.
    #[inline]
    fn update(&self, f: impl Fn(T) -> T) -> T {
        as_atomic!(self, T, |a| {
            let change = |v| Some(bytemuck::cast(f(bytemuck::cast(v))));
            match a.fetch_update(Relaxed, Relaxed, change) {
                Ok(v) | Err(v) => bytemuck::cast(v),
            }
        })
    }

    /// Adds, and returns the previous value. Integers wrap. Floats use a compare-and-swap loop.
    #[inline]
    pub fn fetch_add(&self, value: T) -> T {
        if T::INTEGER {
            as_atomic!(self, T, |a| bytemuck::cast(a.fetch_add(bytemuck::cast(value), Relaxed)))
        } else {
            self.update(|v| v.plus(value))
        }
    }

    /// Subtracts, and returns the previous value. Otherwise like [`fetch_add`](Self::fetch_add).
    #[inline]
    pub fn fetch_sub(&self, value: T) -> T {
        if T::INTEGER { self.fetch_add(T::zeroed().minus(value)) } else { self.update(|v| v.minus(value)) }
    }

    /// Adds by a load and a store. A concurrent addition can be lost, which Hogwild training tolerates. The
    /// cost is a fifth of [`fetch_add`](Self::fetch_add).
    #[inline]
    pub fn add_lossy(&self, value: T) {
        self.store(self.load().plus(value));
    }
}

/// Atomic read-modify-write operations of integers.
impl<T: Integer> Atomic<T> {
    /// Stores the maximum of the element and `value`. Returns the previous value.
    pub fn fetch_max(&self, value: T) -> T {
        self.update(|v| v.max(value))
    }

    /// Stores the minimum of the element and `value`. Returns the previous value.
    pub fn fetch_min(&self, value: T) -> T {
        self.update(|v| v.min(value))
    }

    /// Computes the bitwise AND. Returns the previous value.
    #[inline]
    pub fn fetch_and(&self, value: T) -> T {
        as_atomic!(self, T, |a| bytemuck::cast(a.fetch_and(bytemuck::cast(value), Relaxed)))
    }

    /// Computes the bitwise OR. Returns the previous value.
    #[inline]
    pub fn fetch_or(&self, value: T) -> T {
        as_atomic!(self, T, |a| bytemuck::cast(a.fetch_or(bytemuck::cast(value), Relaxed)))
    }

    /// Computes the bitwise XOR. Returns the previous value.
    #[inline]
    pub fn fetch_xor(&self, value: T) -> T {
        as_atomic!(self, T, |a| bytemuck::cast(a.fetch_xor(bytemuck::cast(value), Relaxed)))
    }

    /// Writes `new` if the element equals `old`.
    ///
    /// # Errors
    /// Returns the current value if it differs from `old`. The element is unchanged then.
    #[inline]
    pub fn compare_exchange(&self, old: T, new: T) -> Result<T, T> {
        as_atomic!(self, T, |a| {
            let swapped = a.compare_exchange(bytemuck::cast(old), bytemuck::cast(new), Relaxed, Relaxed);
            swapped.map(bytemuck::cast).map_err(bytemuck::cast)
        })
    }
}

/// Returns elements of a storage as atomics. The caller's tensor must be shared, or have a mode in which the
/// caller may also access the elements without atomics.
///
/// # Panics
/// If some elements are out of bounds.
#[inline]
pub(crate) fn atomics<T: Element>(storage: &Storage, first: usize, len: usize) -> &[Atomic<T>] {
    if len == 0 {
        return &[];
    }
    let p = storage.at::<T>(first, len);
    // SAFETY: in bounds (`at` checks), aligned, held while `storage` lives; see above.
    unsafe { std::slice::from_raw_parts(p.as_ptr().cast::<Atomic<T>>(), len) }
}

/// Returns an element as an atomic, like [`atomics()`].
#[inline]
pub(crate) fn atomic<T: Element>(storage: &Storage, i: usize) -> &Atomic<T> {
    let p = storage.at::<T>(i, 1);
    // SAFETY: as above.
    unsafe { p.cast::<Atomic<T>>().as_ref() }
}
