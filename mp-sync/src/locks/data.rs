//! # Safety
//! Access to what the locks of this crate protect. Unsafe, because it makes `&T` and `&mut T` of shared memory; sound,
//! because
//! - a [`Guarded`] is made with a key, which exists only while its owner may do what the key's trait says; which keys there
//!   are, and why they keep that promise, is said here, once for each;
//! - the memory lies in a structure of this crate, at words that are used for nothing else, large enough and aligned
//!   (`Place::of` checks it), and the key borrows the handle that holds it;
//! - elements are `Pod`: whatever a dead holder left is a value.
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

/// The most that data may be aligned to: what structures are.
const ALIGN: usize = 64;

/// How many words a `T` takes, in whole lines of 64 bytes.
pub(crate) const fn words_of<T>() -> u64 {
    size_of::<T>().div_ceil(64) as u64 * 8
}

/// The name of a structure of kind `what` that has a `T` in it. Two types may have one name, and where the words behind the
/// data lie depends on its size: so the layout is in the name.
pub(crate) fn name_of<T>(what: &str) -> String {
    let (name, size, align) = (std::any::type_name::<T>(), size_of::<T>(), align_of::<T>());
    format!("mp_sync::{what}<{name}> of {size} bytes aligned to {align}")
}

/// Checks that a `T` can be in a structure.
pub(crate) fn check<T>() -> mp_core::Result<()> {
    if align_of::<T>() > ALIGN {
        let why = format!("data aligned to {} bytes; at most {ALIGN} are possible", align_of::<T>());
        return Err(Error::LimitExceeded(why));
    }
    Ok(())
}

/// Receives the structure of a type that protects values of `T`. Its name says how `T` is aligned, and anyone can make a structure
/// of that name: what [`check`] refuses to a maker is refused here, too.
pub(crate) fn receive<'de, T, D: Deserializer<'de>>(
    what: &'static str,
    kind: &str,
    least: u64,
    d: D,
) -> Result<Shared, D::Error> {
    check::<T>().map_err(D::Error::custom)?;
    Shared::receive(what, &name_of::<T>(kind), least, d)
}

/// While it lives, no thread writes the data.
///
/// # Safety
/// As it says, as seen from all threads of all processes.
pub(crate) unsafe trait MayRead {}

/// While it lives, no other thread has access to the data.
///
/// # Safety
/// As it says.
pub(crate) unsafe trait MayWrite: MayRead {}

/// While it lives, no other thread has access to the data, and it stays in its thread.
///
/// # Safety
/// As it says.
pub(crate) unsafe trait OneThread {}

// SAFETY: it is a reader's slot, or counts in one of its thread, which it can't leave; a writer waits for the slot before it
// becomes `Writing`, and the slot is given back by the last one that counts in it.
unsafe impl<T: Plain + Send + Sync> MayRead for Reading<'_, T> {}
// SAFETY: its owner holds the writers' lock, and has seen the slots of all readers empty since; no reader moves to another
// slot meanwhile, see `steps::rwlock`.
unsafe impl<T: Plain + Send + Sync> MayRead for Writing<'_, T> {}
// SAFETY: as above: neither another writer nor a reader is in, nor comes in.
unsafe impl<T: Plain + Send + Sync> MayWrite for Writing<'_, T> {}
// SAFETY: its thread holds the lock; it is not `Send`, and it gives no references. A thread that waits at a condition has let
// go of the lock, and does nothing with its levels: when it does, it has the lock again, see `rlock::Unlocked`.
unsafe impl<T: Plain + Send> OneThread for Level<'_, T> {}

/// Data in a structure, and the key to it.
pub(crate) struct Guarded<T, K> {
    at: NonNull<T>,
    pub(crate) key: K,
    data: PhantomData<T>,
}

// SAFETY: `&Guarded` gives `&T`, or what the key allows any thread to do.
unsafe impl<T: Sync, K: Sync> Sync for Guarded<T, K> {}

impl<T: Plain, K> Guarded<T, K> {
    /// The `T` at word `i` of a structure whose words from there on belong to it, as [`check`] and
    /// [`words_of`] said.
    pub(crate) fn new(shared: &Shared, i: u64, key: K) -> Self {
        // SAFETY: these words are used for nothing else, and only by holders of a key.
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
