//! # Safety
//! Access to the data that the locks of this crate protect. Unsafe, because it creates `&T` and `&mut T` to
//! shared memory. Sound, because
//! - a [`Guarded`] is created with a key, which exists only while its owner may do what the key's trait
//!   promises. All keys, and the reasons why they keep that promise, are in this file;
//! - the memory belongs to a structure of this crate, at words without another use, large enough and aligned
//!   (`Place::of` checks it), and the key borrows the handle that holds it;
//! - elements are `Pod`: whatever a dead holder left is a valid value.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::NonNull;

use mp_core::Error;
use serde::Deserializer;
use serde::de::Error as _;

use crate::locks::rlock::Level;
use crate::locks::rwlock::{Reading, Writing};
use crate::plain::Plain;
use crate::shared::Shared;

/// Maximum alignment of data: that of structures.
const ALIGN: usize = 64;

/// Returns the number of words of a `T`, rounded up to whole lines of 64 bytes.
pub(crate) const fn words_of<T>() -> u64 {
    size_of::<T>().div_ceil(64) as u64 * 8
}

/// Returns the name of a structure of kind `what` that contains a `T`. Two types can have the same name, and
/// the offsets of the words after the data depend on its size. So the name contains the layout.
pub(crate) fn name_of<T>(what: &str) -> String {
    let (name, size, align) = (std::any::type_name::<T>(), size_of::<T>(), align_of::<T>());
    format!("mp_sync::{what}<{name}> of {size} bytes aligned to {align}")
}

/// Checks that a structure can contain a `T`.
pub(crate) fn check<T>() -> mp_core::Result<()> {
    if align_of::<T>() > ALIGN {
        let why = format!("data aligned to {} bytes; at most {ALIGN} are possible", align_of::<T>());
        return Err(Error::LimitExceeded(why));
    }
    Ok(())
}

/// Receives the structure of a type that protects values of `T`. Its name contains the alignment of `T`, but
/// any process can create a structure under that name. So the limit of [`check`] applies to receivers, too.
pub(crate) fn receive<'de, T, D: Deserializer<'de>>(
    what: &'static str,
    kind: &str,
    least: u64,
    d: D,
) -> Result<Shared, D::Error> {
    check::<T>().map_err(D::Error::custom)?;
    Shared::receive(what, &name_of::<T>(kind), least, d)
}

/// Promise that no thread writes the data while this value lives.
///
/// # Safety
/// The promise holds for all threads of all processes.
pub(crate) unsafe trait MayRead {}

/// Promise that no other thread accesses the data while this value lives.
///
/// # Safety
/// The promise holds for all threads of all processes.
pub(crate) unsafe trait MayWrite: MayRead {}

/// Promise that no other thread accesses the data while this value lives, and that the value stays in its
/// thread.
///
/// # Safety
/// The promise holds for all threads of all processes.
pub(crate) unsafe trait OneThread {}

// SAFETY: it is a reader's slot, or a count in a slot of its thread, which it can't leave. A writer waits for
// the slot before it becomes `Writing`, and the last read in the slot releases it.
unsafe impl<T: Plain + Send + Sync> MayRead for Reading<'_, T> {}
// SAFETY: its owner holds the writers' lock, and has seen all readers' slots empty since. No reader moves to
// another slot meanwhile, see `steps::rwlock`.
unsafe impl<T: Plain + Send + Sync> MayRead for Writing<'_, T> {}
// SAFETY: as above: no other writer or reader is inside, and none enters.
unsafe impl<T: Plain + Send + Sync> MayWrite for Writing<'_, T> {}
// SAFETY: its thread holds the lock. It is not `Send`, and it returns no references. A thread that waits at a
// condition has released the lock, and can't use its levels until it has the lock again, see
// `rlock::Unlocked`.
unsafe impl<T: Plain + Send> OneThread for Level<'_, T> {}

/// Data in a structure, and the key that gives access to it.
pub(crate) struct Guarded<T, K> {
    at: NonNull<T>,
    pub(crate) key: K,
    data: PhantomData<T>,
}

// SAFETY: `&Guarded` gives `&T`, or operations that the key allows in any thread.
unsafe impl<T: Sync, K: Sync> Sync for Guarded<T, K> {}

impl<T: Plain, K> Guarded<T, K> {
    /// Returns the `T` at word `i` of a structure in which [`words_of`] words from `i` on belong to the `T`,
    /// checked by [`check`].
    pub(crate) fn new(shared: &Shared, i: u64, key: K) -> Self {
        // SAFETY: these words have no other use, and only holders of a key access them.
        let at = unsafe { shared.structure().bytes(i, size_of::<T>()) }.cast::<T>();
        assert!(at.is_aligned(), "a structure begins at a multiple of {ALIGN}");
        Self { at, key, data: PhantomData }
    }
}

impl<T: Plain, K: MayRead> Guarded<T, K> {
    #[inline]
    pub(crate) fn get_ref(&self) -> &T {
        // SAFETY: in bounds, aligned, initialised, and no thread writes it while the key lives.
        unsafe { self.at.as_ref() }
    }
}

impl<T: Plain, K: MayWrite> Guarded<T, K> {
    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        // SAFETY: as for `get_ref`; no other thread has access while the key lives, and it is borrowed
        // mutably.
        unsafe { self.at.as_mut() }
    }
}

impl<T: Plain, K: OneThread> Guarded<T, K> {
    #[inline]
    pub(crate) fn get(&self) -> T {
        // SAFETY: in bounds, aligned, initialised; no other thread has access, and there is no reference to
        // it.
        unsafe { self.at.read() }
    }

    #[inline]
    pub(crate) fn set(&self, value: T) {
        // SAFETY: as for `get`.
        unsafe { self.at.write(value) }
    }
}
