//! # Safety
//! Access to the data of a [`Lock`](crate::Lock) or an [`Array`](crate::Array). Unsafe, because it creates
//! `&T` and `&mut T` to shared memory. Sound, because
//! - a guard exists only while its lock is held, by at most one thread of all processes (see
//!   [`mp_core::steps::lock`]: no process takes a lock from a live one);
//! - the memory belongs to a structure of this crate, at words without another use, large enough and aligned
//!   ([`Data`] checks it), and the guard borrows the handle that holds it;
//! - elements are `Pod`: whatever a dead holder left is a valid value, and has no padding.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Pod;
use mp_core::steps::lock::Died;
use mp_core::{LockError, RawGuard, Wait};

use crate::locks::locked::{DATA, Locked};
use crate::locks::unlocked::{Relock, Waiting};
use crate::shared::Shared;

/// Guard of a [`Lock`](crate::Lock) (`&mut T`) or an [`Array`](crate::Array) (`&mut [T]`). Dropping it
/// unlocks.
///
/// A panic unlocks too, and does not mark the data as damaged. The death of the process does, see
/// [`Lock`](crate::Lock#when-a-process-dies).
#[must_use = "dropping it unlocks: bind it by `let guard =`"]
pub struct LockGuard<'a, T: ?Sized> {
    at: NonNull<T>,
    locked: &'a Locked,
    lock: RawGuard<'a>,
    data: PhantomData<&'a mut T>,
}

// SAFETY: `&LockGuard` gives `&T` only. The lock's own state is plain data.
unsafe impl<T: ?Sized + Sync> Sync for LockGuard<'_, T> {}

impl<T: ?Sized> LockGuard<'_, T> {
    /// Returns the process that died while it held the lock, if the data has to be checked for that reason.
    pub fn died(&self) -> Option<Died> {
        self.lock.died()
    }
}

/// Address and size of a lock's data. Cached, because taking a lock costs only some twenty nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is only an address. Only holders of the lock access it.
unsafe impl Send for Data {}
// SAFETY: as above.
unsafe impl Sync for Data {}

impl Data {
    /// Returns the first `bytes` bytes of a structure's data.
    ///
    /// # Panics
    /// If the structure has fewer bytes.
    pub(crate) fn of(shared: &Shared, bytes: usize) -> Self {
        // SAFETY: these words have no other use, and only holders of the lock access them, through guards.
        Self { at: unsafe { shared.structure().bytes(DATA, bytes) }, bytes }
    }

    /// Returns the address of `len` elements.
    ///
    /// # Panics
    /// If the data has fewer elements.
    #[inline(always)]
    fn elements<T: Pod>(self, len: usize) -> NonNull<T> {
        assert!(
            len.checked_mul(size_of::<T>()).is_some_and(|n| n <= self.bytes),
            "{len} elements are not there"
        );
        let at = self.at.cast::<T>();
        debug_assert!(at.is_aligned(), "a structure begins at a multiple of 64");
        at
    }
}

impl Locked {
    /// Returns the guard of a single value, while `lock` is held.
    #[inline(always)]
    pub(crate) fn value<'a, T: Pod>(&'a self, lock: RawGuard<'a>) -> LockGuard<'a, T> {
        LockGuard { at: self.data().elements(1), locked: self, lock, data: PhantomData }
    }

    /// Returns the guard of `len` elements, while `lock` is held.
    #[inline(always)]
    pub(crate) fn slice<'a, T: Pod>(&'a self, len: usize, lock: RawGuard<'a>) -> LockGuard<'a, [T]> {
        let at = NonNull::slice_from_raw_parts(self.data().elements(len), len);
        LockGuard { at, locked: self, lock, data: PhantomData }
    }
}

impl<'a, T: ?Sized> Relock for LockGuard<'a, T> {
    type Seen = T;
    type Unlocked = (&'a Locked, NonNull<T>);

    fn seen(&mut self) -> &mut T {
        self
    }

    fn unlock(self, _: Waiting) -> Self::Unlocked {
        (self.locked, self.at)
    }

    fn relock((locked, at): Self::Unlocked, wait: Wait, _: Waiting) -> Result<Self, LockError> {
        Ok(LockGuard { at, locked, lock: locked.acquire(locked.kind(), wait, false)?, data: PhantomData })
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
