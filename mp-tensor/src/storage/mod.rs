//! # Safety
//! The elements of a storage, as slices. Unsafe, because it makes them from its pointers; sound, because
//! - a [`Storage`] holds its block, which stays where it is, and checks what is outside of it;
//! - elements are [`Element`]s: every bit pattern is a value, and the kernel gave zeros, so that there is no uninitialised
//!   memory;
//! - this trait is this crate's alone, and which of its functions is called follows from the mode of the tensor that keeps the
//!   storage: slices that are not written, slices that are the caller's alone, or relaxed atomics (`atomics`, `bulk`). The
//!   tensor types argue it where they call.
#![allow(unsafe_code)]

mod atomics;
mod bulk;

use mp_core::Storage;

pub use atomics::Atomic;

use crate::element::Element;

/// The elements of a storage, for the tensors of this crate.
pub(crate) trait StorageElements {
    /// Elements that are not written.
    ///
    /// # Safety
    /// No code, in any process, writes these elements as long as the slice lives.
    unsafe fn slice<T: Element>(&self, first: usize, len: usize) -> &[T];

    /// Elements that only the caller reaches.
    ///
    /// # Safety
    /// No other code, in any process, reads or writes these elements as long as the slice lives, through this
    /// storage or another.
    #[allow(
        clippy::mut_from_ref,
        reason = "a storage is a handle; whether it may be written, its tensor's mode says"
    )]
    unsafe fn slice_mut<T: Element>(&self, first: usize, len: usize) -> &mut [T];

    /// Elements as atomics; for tensors whose mode allows it, see [`atomics`].
    ///
    /// # Panics
    /// If some of them are outside.
    fn atomics<T: Element>(&self, first: usize, len: usize) -> &[Atomic<T>];

    /// One element as an atomic; see [`atomics`](Self::atomics).
    fn atomic<T: Element>(&self, i: usize) -> &Atomic<T>;

    /// Reads one element.
    fn load<T: Element>(&self, i: usize) -> T;

    /// Writes one element.
    fn store<T: Element>(&self, i: usize, v: T);

    /// Reads elements from `first` on, each as [`load`](Self::load) does.
    fn load_all<T: Element>(&self, first: usize, to: &mut [T]);

    /// Writes elements from `first` on, each as [`store`](Self::store) does.
    fn store_all<T: Element>(&self, first: usize, from: &[T]);
}

impl StorageElements for Storage {
    #[inline]
    unsafe fn slice<T: Element>(&self, first: usize, len: usize) -> &[T] {
        if len == 0 {
            return &[];
        }
        let p = self.at::<T>(first, len);
        // SAFETY: in bounds, aligned, every bit pattern is a `T`, held as long as `self`; not written, says the caller.
        unsafe { std::slice::from_raw_parts(p.as_ptr(), len) }
    }

    #[inline]
    unsafe fn slice_mut<T: Element>(&self, first: usize, len: usize) -> &mut [T] {
        if len == 0 {
            return &mut [];
        }
        let p = self.at::<T>(first, len);
        // SAFETY: in bounds, aligned, every bit pattern is a `T`, held as long as `self`; the caller's alone.
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
