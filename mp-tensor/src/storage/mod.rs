//! # Safety
//! Elements of a storage as slices. Unsafe, because it creates slices from pointers. Sound, because
//! - a [`Storage`] holds its block, which never moves, and checks bounds;
//! - elements are [`Element`]s: every bit pattern is valid, and the kernel provides zeroed memory, so that no
//!   memory is uninitialised;
//! - the trait is private to this crate. The mode of the tensor that owns the storage determines which
//!   functions are called: slices that are not written, exclusive slices, or relaxed atomics (`atomics`,
//!   `bulk`). The tensor types prove it at each call.
#![allow(unsafe_code)]

mod atomics;
mod bulk;

use mp_core::Storage;

pub use atomics::Atomic;

use crate::element::Element;

/// Access to the elements of a storage, for the tensors of this crate.
pub(crate) trait StorageElements {
    /// Returns elements that are not written.
    ///
    /// # Safety
    /// No code in any process writes these elements while the slice lives.
    unsafe fn slice<T: Element>(&self, first: usize, len: usize) -> &[T];

    /// Returns elements that only the caller accesses.
    ///
    /// # Safety
    /// No other code in any process reads or writes these elements while the slice lives, through this or
    /// another storage.
    #[allow(
        clippy::mut_from_ref,
        reason = "a storage is a handle; the mode of its tensor grants write access"
    )]
    unsafe fn slice_mut<T: Element>(&self, first: usize, len: usize) -> &mut [T];

    /// Returns elements as atomics, for tensors whose mode allows it, see [`atomics`].
    ///
    /// # Panics
    /// If some elements are out of bounds.
    fn atomics<T: Element>(&self, first: usize, len: usize) -> &[Atomic<T>];

    /// Returns an element as an atomic, see [`atomics`](Self::atomics).
    fn atomic<T: Element>(&self, i: usize) -> &Atomic<T>;

    /// Reads element `i`.
    fn load<T: Element>(&self, i: usize) -> T;

    /// Writes element `i`.
    fn store<T: Element>(&self, i: usize, v: T);

    /// Reads elements from `first` on, each by [`load`](Self::load).
    fn load_all<T: Element>(&self, first: usize, to: &mut [T]);

    /// Writes elements from `first` on, each by [`store`](Self::store).
    fn store_all<T: Element>(&self, first: usize, from: &[T]);
}

impl StorageElements for Storage {
    #[inline]
    unsafe fn slice<T: Element>(&self, first: usize, len: usize) -> &[T] {
        if len == 0 {
            return &[];
        }
        let p = self.at::<T>(first, len);
        // SAFETY: in bounds, aligned, every bit pattern is a `T`, held while `self` lives; the caller
        // guarantees that no process writes.
        unsafe { std::slice::from_raw_parts(p.as_ptr(), len) }
    }

    #[inline]
    unsafe fn slice_mut<T: Element>(&self, first: usize, len: usize) -> &mut [T] {
        if len == 0 {
            return &mut [];
        }
        let p = self.at::<T>(first, len);
        // SAFETY: in bounds, aligned, every bit pattern is a `T`, held while `self` lives; the caller
        // guarantees exclusive access.
        unsafe { std::slice::from_raw_parts_mut(p.as_ptr(), len) }
    }

    #[inline]
    fn atomics<T: Element>(&self, first: usize, len: usize) -> &[Atomic<T>] {
        atomics::of(self, first, len)
    }

    #[inline]
    fn atomic<T: Element>(&self, i: usize) -> &Atomic<T> {
        atomics::one(self, i)
    }

    #[inline]
    fn load<T: Element>(&self, i: usize) -> T {
        self.atomic::<T>(i).load()
    }

    #[inline]
    fn store<T: Element>(&self, i: usize, v: T) {
        self.atomic(i).store(v);
    }

    #[inline]
    fn load_all<T: Element>(&self, first: usize, to: &mut [T]) {
        bulk::load_all(self, first, to);
    }

    #[inline]
    fn store_all<T: Element>(&self, first: usize, from: &[T]) {
        bulk::store_all(self, first, from);
    }
}
