//! Guards of readers and writers.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use mp_core::RawGuard;
use mp_core::steps::lock::DeathRecord;
use mp_core::words::Member;

use super::{RwLock, WRITING};
use crate::locks::data::GuardedData;
use crate::plain::Plain;
use crate::steps::slot::ObservedSlot;

/// Read access to the data of an [`RwLock`]. Dropping it releases the reader's slot.
#[must_use = "dropping it unlocks: bind it by `let guard =`"]
pub struct ReadGuard<'a, T: Plain + Send + Sync>(pub(super) GuardedData<T, ReadHold<'a, T>>);

/// Write access to the data of an [`RwLock`]. Dropping it unlocks.
#[must_use = "dropping it unlocks: bind it by `let guard =`"]
pub struct WriteGuard<'a, T: Plain + Send + Sync>(pub(super) GuardedData<T, WriteHold<'a, T>>);

/// A reader's slot, or one more read in the slot of its thread.
pub(crate) struct ReadHold<'a, T: Plain + Send + Sync> {
    lock: &'a RwLock<T>,
    me: Member,
    seen: ObservedSlot,
    thread: PhantomData<*const ()>,
}

/// The writers' lock, after the last reader has left.
pub(crate) struct WriteHold<'a, T: Plain + Send + Sync> {
    lock: &'a RwLock<T>,
    me: Member,
    died: Option<DeathRecord>,
    /// Released after `WRITING` is reset.
    _raw: RawGuard<'a>,
}

impl<'a, T: Plain + Send + Sync> ReadHold<'a, T> {
    pub(super) fn new(lock: &'a RwLock<T>, me: Member, seen: ObservedSlot) -> Self {
        Self { lock, me, seen, thread: PhantomData }
    }
}

impl<'a, T: Plain + Send + Sync> WriteHold<'a, T> {
    pub(super) fn new(lock: &'a RwLock<T>, me: Member, died: Option<DeathRecord>, raw: RawGuard<'a>) -> Self {
        Self { lock, me, died, _raw: raw }
    }
}

impl<T: Plain + Send + Sync> Drop for ReadHold<'_, T> {
    fn drop(&mut self) {
        let shared = &self.lock.shared;
        // The slot belongs to the parent, not to a forked copy.
        if shared.me().ok() != Some(self.me) {
            return;
        }
        self.lock.leave(self.seen);
    }
}

impl<T: Plain + Send + Sync> Drop for WriteHold<'_, T> {
    fn drop(&mut self) {
        let shared = &self.lock.shared;
        if shared.me().ok() != Some(self.me) {
            return;
        }
        // A panic during the repair leaves it to the next caller: the mark and `WRITING` stay.
        if self.died.is_none() || !std::thread::panicking() {
            shared.store(WRITING, 0);
        }
    }
}

impl<T: Plain + Send + Sync> WriteGuard<'_, T> {
    /// Returns the process that died while it wrote, if the data has to be checked for that reason.
    pub fn died(&self) -> Option<DeathRecord> {
        self.0.key.died
    }
}

impl<T: Plain + Send + Sync> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.get_ref()
    }
}

impl<T: Plain + Send + Sync> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.get_ref()
    }
}

impl<T: Plain + Send + Sync> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

impl<T: Plain + Send + Sync + fmt::Debug> fmt::Debug for ReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: Plain + Send + Sync + fmt::Debug> fmt::Debug for WriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
