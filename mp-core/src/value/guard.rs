//! # Safety
//! Access to what a lock protects. Unsafe, because it makes `&T` and `&mut T` of shared memory; sound, because
//! - a guard exists only while its lock is held, which is at most once among all processes (see
//!   [`steps::lock`](crate::steps::lock): no process takes a lock from a live one);
//! - the memory lies in a block that the header (`check`, `allocate`) has found large enough and of kind
//!   `Object`, so that no tensor reaches it, and the guard borrows the handle that holds the block;
//! - elements are `Pod`: whatever a dead holder left is a value, and has no padding.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Pod;

use crate::arena::Hold;
use crate::lock::RawGuard;
use crate::steps::lock::Died;

/// What a lock protects, as long as it is held: `&mut T` or `&mut [T]`. Dropping it unlocks.
///
/// A panic while it is held unlocks, without a mark; the death of the process does not: see
/// [`Value`](crate::Value#when-a-process-dies).
pub struct LockGuard<'a, T: ?Sized> {
    at: NonNull<T>,
    lock: RawGuard<'a>,
    data: PhantomData<&'a mut T>,
}

// SAFETY: `&LockGuard` gives `&T` only; the lock's own state is plain data.
unsafe impl<T: ?Sized + Sync> Sync for LockGuard<'_, T> {}

impl<'a, T: Pod + Send> LockGuard<'a, T> {
    /// The one value at byte `at` of the arena, behind a header that was checked for it; held by `hold`.
    #[inline(always)]
    pub(super) fn value(hold: &'a Hold, at: u64, lock: RawGuard<'a>) -> Self {
        let at = hold.arena().map().bytes(at, size_of::<T>() as u64).cast();
        Self { at, lock, data: PhantomData }
    }
}

impl<'a, T: Pod + Send> LockGuard<'a, [T]> {
    /// The `len` elements from byte `at` of the arena on, behind a header that was checked for them; held by `hold`.
    #[inline(always)]
    pub(super) fn slice(hold: &'a Hold, at: u64, len: usize, lock: RawGuard<'a>) -> Self {
        let first = hold.arena().map().bytes(at, (len * size_of::<T>()) as u64).cast();
        Self { at: NonNull::slice_from_raw_parts(first, len), lock, data: PhantomData }
    }
}

impl<T: ?Sized> LockGuard<'_, T> {
    /// The process that died while holding the lock, if that is why the data has to be checked.
    pub fn died(&self) -> Option<Died> {
        self.lock.died()
    }
}

impl<T: ?Sized> Deref for LockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: in bounds, aligned, initialised, and no other code has access while the lock is held (see
        // above).
        unsafe { self.at.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for LockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for `deref`, and the guard is borrowed mutably.
        unsafe { self.at.as_mut() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for LockGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
