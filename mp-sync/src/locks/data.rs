//! # Safety
//! Access to the data that the locks of this crate protect. Unsafe, because it creates `&T` and `&mut T` to
//! shared memory. Sound, because
//! - a [`GuardedData`] contains a key, whose type implements [`ReadAccess`], [`WriteAccess`] or
//!   [`SingleThread`]. While the key exists, the promise of that trait holds (reasons: `access.rs`);
//! - the memory belongs to a structure of this crate, at words without another use. [`GuardedData::new`]
//!   checks the size and the alignment of the memory;
//! - the key borrows the handle that holds the structure;
//! - elements are `Pod`: any bytes that a dead holder left are a valid value.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::NonNull;

use bytemuck::Pod;
use mp_core::{Error, LockError};
use serde::Deserializer;
use serde::de::Error as _;

use crate::plain::Plain;
use crate::shared::Shared;

/// Maximum alignment of data: the alignment of structures.
const ALIGN: usize = 64;

/// Returns the number of words of a `T`, rounded up to whole lines of 64 bytes.
pub(crate) const fn words_of<T>() -> u64 {
    size_of::<T>().div_ceil(64) as u64 * 8
}

/// Returns the name of a structure of kind `what` that contains a `T`. Two types can have the same name, and
/// the offsets of the words after the data depend on the size of `T`. So the name contains the layout.
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

/// Receives the structure of a type that protects values of `T`. The structure's name contains the alignment
/// of `T`, but any process can create a structure under that name. So receivers also [`check`] the alignment.
pub(crate) fn receive<'de, T, D: Deserializer<'de>>(
    what: &'static str,
    kind: &str,
    least: u64,
    d: D,
) -> Result<Shared, D::Error> {
    check::<T>().map_err(D::Error::custom)?;
    Shared::receive(what, &name_of::<T>(kind), least, d)
}

/// Creates the structure of a type of this `kind`. It has `len` elements of `T` from word `first` on, whose
/// bytes are all zero, and the number of elements in the word `len_at`.
pub(crate) fn new_elements<T>(kind: &str, len: usize, len_at: u64, first: u64) -> mp_core::Result<Shared> {
    check::<T>()?;
    let words = size_of::<T>().checked_mul(len).map(|bytes| bytes.div_ceil(8) as u64);
    // If the size overflows, the arena refuses it, with the size that is available.
    let words = words.map_or(u64::MAX, |n| n.saturating_add(first));
    let shared = Shared::new(&name_of::<T>(kind), words)?;
    shared.store(len_at, len as u64);
    Ok(shared)
}

/// Receives a structure of [`new_elements`]. Returns the structure and the number of its elements. `what`
/// names the structure in errors.
pub(crate) fn receive_elements<'de, T, D: Deserializer<'de>>(
    (what, kind): (&'static str, &str),
    len_at: u64,
    first: u64,
    d: D,
) -> Result<(Shared, usize), D::Error> {
    let shared = receive::<T, D>(what, kind, first, d)?;
    let (len, room) = (shared.load(len_at), shared.len().saturating_sub(first).saturating_mul(8));
    let fits = |len: &usize| len.checked_mul(size_of::<T>()).is_some_and(|n| n as u64 <= room);
    match usize::try_from(len).ok().filter(fits) {
        Some(len) => Ok((shared, len)),
        None => Err(D::Error::custom(format!("{what} of {len} elements arrived, in {room} bytes"))),
    }
}

/// Converts the error of locking a new structure, to which no other code has access yet.
pub(crate) fn new_lock_error(error: LockError) -> Error {
    match error {
        LockError::Failed(e) => e,
        other => Error::Malformed(other.to_string()),
    }
}

/// Promise that no thread writes the data while this value lives.
///
/// # Safety
/// The promise holds for all threads of all processes.
pub(crate) unsafe trait ReadAccess {}

/// Promise that no other thread accesses the data while this value lives.
///
/// # Safety
/// The promise holds for all threads of all processes.
pub(crate) unsafe trait WriteAccess: ReadAccess {}

/// Promise that no other thread accesses the data while this value lives, and that the value stays in its
/// thread.
///
/// # Safety
/// The promise holds for all threads of all processes.
pub(crate) unsafe trait SingleThread {}

/// Address and size of a lock's data. Cached, because taking a lock costs only some twenty nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is only an address. Only holders of the lock access it.
unsafe impl Send for Data {}
// SAFETY: as above.
unsafe impl Sync for Data {}

impl Data {
    /// Returns the first `bytes` bytes of a structure's data, which begins at word `first`.
    ///
    /// # Panics
    /// If the structure has fewer bytes.
    pub(super) fn of(shared: &Shared, first: u64, bytes: usize) -> Self {
        // SAFETY: these words have no other use, and only holders of the lock access them, through guards.
        Self { at: unsafe { shared.structure().bytes(first, bytes) }, bytes }
    }

    /// Returns the address of `len` elements.
    ///
    /// # Panics
    /// If the data has fewer elements.
    #[inline(always)]
    pub(super) fn elements<T: Pod>(self, len: usize) -> NonNull<T> {
        assert!(
            len.checked_mul(size_of::<T>()).is_some_and(|n| n <= self.bytes),
            "{len} elements are not there"
        );
        let at = self.at.cast::<T>();
        debug_assert!(at.is_aligned(), "a structure begins at a multiple of 64");
        at
    }
}

/// Data in a structure, and the key that gives access to it.
pub(crate) struct GuardedData<T, K> {
    at: NonNull<T>,
    pub(crate) key: K,
    data: PhantomData<T>,
}

// SAFETY: `&GuardedData` gives `&T`, or operations that the key allows in any thread.
unsafe impl<T: Sync, K: Sync> Sync for GuardedData<T, K> {}

impl<T: Plain, K> GuardedData<T, K> {
    /// Returns the `T` that begins at word `i` of a structure and spans [`words_of`] words. The caller has
    /// [checked](check) its alignment.
    pub(crate) fn new(shared: &Shared, i: u64, key: K) -> Self {
        // SAFETY: these words have no other use, and only holders of a key access them.
        let at = unsafe { shared.structure().bytes(i, size_of::<T>()) }.cast::<T>();
        assert!(at.is_aligned(), "a structure begins at a multiple of {ALIGN}");
        Self { at, key, data: PhantomData }
    }
}

impl<T: Plain, K: ReadAccess> GuardedData<T, K> {
    #[inline]
    pub(crate) fn get_ref(&self) -> &T {
        // SAFETY: in bounds, aligned, initialised, and no thread writes it while the key lives.
        unsafe { self.at.as_ref() }
    }
}

impl<T: Plain, K: WriteAccess> GuardedData<T, K> {
    #[inline]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        // SAFETY: as for `get_ref`; no other thread has access while the key lives, and it is borrowed
        // mutably.
        unsafe { self.at.as_mut() }
    }
}

impl<T: Plain, K: SingleThread> GuardedData<T, K> {
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
