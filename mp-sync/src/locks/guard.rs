//! # Safety
//! Access to the data of a [`Lock`](crate::Lock) or an [`Array`](crate::Array). Unsafe, because it creates
//! `&T` and `&mut T` to shared memory. Sound, because
//! - at most one thread of all processes holds a lock, since no process takes a lock from a live process
//!   ([`mp_core::steps::lock`]). A guard exists only while its thread holds the lock;
//! - the memory belongs to a structure of this crate, at words without another use. The memory is large
//!   enough ([`Data`](crate::locks::data::Data) checks the size) and aligned (`data::check`);
//! - the guard borrows the handle that holds the structure;
//! - elements are `Pod`: they have no padding, and any bytes that a dead holder left are a valid value.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Pod;
use mp_core::steps::lock::DeathRecord;
use mp_core::{LockError, RawGuard, Wait};

use crate::locks::cell::LockCell;
use crate::locks::relock::{Relock, WaitToken};

/// Guard of a [`Lock`](crate::Lock) (`&mut T`) or an [`Array`](crate::Array) (`&mut [T]`). Dropping it
/// unlocks.
///
/// A panic unlocks too, and does not mark the data as damaged. The death of the process marks the data, see
/// [`Lock`](crate::Lock#when-a-process-dies).
#[must_use = "dropping it unlocks: bind it by `let guard =`"]
pub struct LockGuard<'a, T: ?Sized> {
    at: NonNull<T>,
    cell: &'a LockCell,
    lock: RawGuard<'a>,
    data: PhantomData<&'a mut T>,
}

// SAFETY: `&LockGuard` gives `&T` only. The lock's own state is plain data.
unsafe impl<T: ?Sized + Sync> Sync for LockGuard<'_, T> {}

impl<T: ?Sized> LockGuard<'_, T> {
    /// Returns the process that died while it held the lock, if the data has to be checked for that reason.
    pub fn died(&self) -> Option<DeathRecord> {
        self.lock.died()
    }
}

impl LockCell {
    /// Returns the guard of a single value, while `lock` is held.
    #[inline(always)]
    pub(crate) fn value<'a, T: Pod>(&'a self, lock: RawGuard<'a>) -> LockGuard<'a, T> {
        LockGuard { at: self.data().elements(1), cell: self, lock, data: PhantomData }
    }

    /// Returns the guard of `len` elements, while `lock` is held.
    #[inline(always)]
    pub(crate) fn slice<'a, T: Pod>(&'a self, len: usize, lock: RawGuard<'a>) -> LockGuard<'a, [T]> {
        let at = NonNull::slice_from_raw_parts(self.data().elements(len), len);
        LockGuard { at, cell: self, lock, data: PhantomData }
    }
}

impl<'a, T: ?Sized> Relock for LockGuard<'a, T> {
    type Contents = T;
    type Unlocked = (&'a LockCell, NonNull<T>);

    fn contents(&mut self) -> &mut T {
        self
    }

    fn unlock(self, _: WaitToken) -> Self::Unlocked {
        (self.cell, self.at)
    }

    #[track_caller]
    fn relock((cell, at): Self::Unlocked, wait: Wait, _: WaitToken) -> Result<Self, LockError> {
        Ok(LockGuard { at, cell, lock: cell.acquire(cell.kind(), wait, false)?, data: PhantomData })
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
