//! # Safety
//! Elements of a storage as slices. Unsafe, because it creates slices from pointers. Sound, because
//! - a [`Storage`] holds its block, which never moves, and checks bounds;
//! - elements are [`Element`]s: every bit pattern is valid, and the kernel provides zeroed memory, so that no
//!   memory is uninitialised;
//! - the functions are private to this crate. The mode of the tensor that owns the storage determines which
//!   functions are called: slices that are not written, exclusive slices, or relaxed atomics (`atomics`,
//!   `bulk`). The tensor types prove it at each call.
#![allow(unsafe_code)]

mod atomics;
mod bulk;

use mp_core::Storage;

pub use atomics::Atomic;
pub(crate) use atomics::{atomic, atomics};
pub(crate) use bulk::{load_all, store_all};

use crate::element::Element;

/// Returns elements as a slice.
///
/// # Safety
/// No code in any process writes these elements while the slice lives.
#[inline]
pub(crate) unsafe fn slice<T: Element>(storage: &Storage, first: usize, len: usize) -> &[T] {
    if len == 0 {
        return &[];
    }
    let p = storage.at::<T>(first, len);
    // SAFETY: in bounds, aligned, every bit pattern is a `T`, held while `storage` lives; the caller
    // guarantees that no process writes.
    unsafe { std::slice::from_raw_parts(p.as_ptr(), len) }
}

/// Returns elements as a mutable slice.
///
/// # Safety
/// No other code in any process reads or writes these elements while the slice lives, through this or another
/// storage.
#[inline]
#[allow(clippy::mut_from_ref, reason = "a storage is a handle; the mode of its tensor grants write access")]
pub(crate) unsafe fn slice_mut<T: Element>(storage: &Storage, first: usize, len: usize) -> &mut [T] {
    if len == 0 {
        return &mut [];
    }
    let p = storage.at::<T>(first, len);
    // SAFETY: in bounds, aligned, every bit pattern is a `T`, held while `storage` lives; the caller
    // guarantees exclusive access.
    unsafe { std::slice::from_raw_parts_mut(p.as_ptr(), len) }
}

/// Reads element `i`.
#[inline]
pub(crate) fn load<T: Element>(storage: &Storage, i: usize) -> T {
    atomic::<T>(storage, i).load()
}

/// Writes element `i`.
#[inline]
pub(crate) fn store<T: Element>(storage: &Storage, i: usize, value: T) {
    atomic(storage, i).store(value);
}
