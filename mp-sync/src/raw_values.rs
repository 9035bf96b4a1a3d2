//! # Safety
//! Values and arrays without a lock. Unsafe, because it creates references to atomics in the arena. Sound,
//! because
//! - the atomics are in a structure of this crate, at words without another use. Every access is atomic, and
//!   all accesses to one structure have the same width: its name contains the size of its elements;
//! - elements begin 64 bytes after a multiple of 64, so that each address is a multiple of the width;
//! - access outside of the structure is refused ([`Structure::bytes`](mp_core::Structure::bytes) panics), and
//!   the handle holds the structure.
//!
//! | words | content | written by |
//! |---|---|---|
//! | 0 | number of elements | creator, before any other code has the structure |
//! | 8 – … | elements | every process |
#![allow(unsafe_code)]

use std::marker::PhantomData;

use mp_core::sync::shared::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};
use mp_core::{Error, Result};
use serde::Deserializer;

use crate::handle::handle;
use crate::locks::data;
use crate::plain::Plain;
use crate::shared::Shared;

const LEN: u64 = 0;
const DATA: u64 = 8;

/// Returns the number of bytes of the atomics that an element consists of: the largest of 8, 4, 2, 1 that
/// divides its size.
const fn width(size: usize) -> usize {
    if size == 0 { 1 } else { 1 << if size.trailing_zeros() < 3 { size.trailing_zeros() } else { 3 } }
}

/// Elements of one type, accessed as atomics of one width only.
#[derive(Clone, Debug)]
struct Atoms {
    shared: Shared,
    len: usize,
}

/// Runs code for each piece of an element, together with the atomic in shared memory that holds the piece.
macro_rules! pieces {
    ($this:expr, $T:ty, $i:expr, $bytes:expr, |$atomic:ident, $piece:ident| $body:expr) => {
        match width(size_of::<$T>()) {
            8 => pieces!(@ $this, $T, $i, $bytes, |$atomic, $piece| $body, AtomicU64),
            4 => pieces!(@ $this, $T, $i, $bytes, |$atomic, $piece| $body, AtomicU32),
            2 => pieces!(@ $this, $T, $i, $bytes, |$atomic, $piece| $body, AtomicU16),
            _ => pieces!(@ $this, $T, $i, $bytes, |$atomic, $piece| $body, AtomicU8),
        }
    };
    (@ $this:expr, $T:ty, $i:expr, $bytes:expr, |$atomic:ident, $piece:ident| $body:expr, $A:ty) => {{
        let end = ($i + 1) * size_of::<$T>();
        // SAFETY: these words have no other use, see above. All elements up to this one are in the structure.
        let first = unsafe { $this.shared.structure().bytes(DATA, end) };
        for (k, $piece) in $bytes.chunks_exact_mut(size_of::<$A>()).enumerate() {
            let at = $i * size_of::<$T>() + k * size_of::<$A>();
            // SAFETY: less than `end`, which is inside.
            let at = unsafe { first.add(at) };
            // SAFETY: inside, aligned to this width, and accessed as atomics of this width only.
            let $atomic = unsafe { at.cast::<$A>().as_ref() };
            $body
        }
    }};
}

impl Atoms {
    fn new<T: Plain>(what: &str, len: usize) -> Result<Self> {
        Ok(Self { shared: data::new_elements::<T>(what, len, LEN, DATA)?, len })
    }

    fn receive<'de, T, D: Deserializer<'de>>(what: &'static str, name: &str, d: D) -> Result<Self, D::Error> {
        let (shared, len) = data::receive_elements::<T, D>((what, name), LEN, DATA, d)?;
        Ok(Self { shared, len })
    }

    #[inline]
    fn load<T: Plain>(&self, i: usize) -> T {
        let mut value = T::zeroed();
        let to = bytemuck::bytes_of_mut(&mut value);
        pieces!(self, T, i, to, |atomic, piece| piece.copy_from_slice(&atomic.load(Relaxed).to_ne_bytes()));
        value
    }

    #[inline]
    fn store<T: Plain>(&self, i: usize, value: T) {
        let mut value = value;
        let from = bytemuck::bytes_of_mut(&mut value);
        pieces!(self, T, i, from, |atomic, piece| atomic.store(bytemuck::pod_read_unaligned(piece), Relaxed));
    }
}

/// A value of plain data that any number of processes read and write concurrently, without a lock.
///
/// ```
/// use mp_sync::RawValue;
///
/// let progress = RawValue::new(0.25_f64)?;
/// let everywhere = progress.clone(); // a handle, which can also be sent
/// progress.set(0.5);
/// assert_eq!(everywhere.get(), 0.5);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Values of 1, 2, 4 or 8 bytes are read and written whole, by relaxed atomics. Larger values are accessed
/// piece by piece: a reader can see a mixture of two values, and a writer that is killed can leave one. Any
/// mixture is a valid value of the type ([`Pod`](bytemuck::Pod)). Use a [`Lock`](crate::Lock) for values that
/// must be whole.
#[derive(Clone)]
#[doc(alias = "multiprocessing.sharedctypes.RawValue")]
#[doc(alias = "sharedctypes")]
pub struct RawValue<T: Plain + Send>(Atoms, PhantomData<fn(T) -> T>);

/// Elements of plain data that any number of processes read and write concurrently, without a lock.
///
/// ```
/// use mp_sync::RawArray;
///
/// let seen = RawArray::<u8>::zeros(100)?;
/// seen.set(7, 1)?;
/// assert_eq!(seen.get(7)?, 1);
/// assert_eq!(seen.iter().map(u32::from).sum::<u32>(), 1);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Each element behaves like a [`RawValue`]. For numbers, `SharedTensor` has shapes, views and atomic
/// addition.
#[derive(Clone)]
#[doc(alias = "multiprocessing.sharedctypes.RawArray")]
pub struct RawArray<T: Plain + Send>(Atoms, PhantomData<fn(T) -> T>);

impl<T: Plain + Send> RawValue<T> {
    /// Creates a value in shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::LimitExceeded`] for a type with an alignment
    /// above 64 bytes.
    pub fn new(value: T) -> Result<Self> {
        let atoms = Atoms::new::<T>("RawValue", 1)?;
        atoms.store(0, value);
        Ok(Self(atoms, PhantomData))
    }

    /// Returns the value.
    #[inline]
    pub fn get(&self) -> T {
        self.0.load(0)
    }

    /// Replaces the value.
    #[inline]
    pub fn set(&self, value: T) {
        self.0.store(0, value);
    }
}

impl<T: Plain + Send> RawArray<T> {
    /// Copies `data` into shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::LimitExceeded`] for a type with an alignment
    /// above 64 bytes.
    pub fn from_slice(data: &[T]) -> Result<Self> {
        let atoms = Atoms::new::<T>("RawArray", data.len())?;
        data.iter().enumerate().for_each(|(i, &v)| atoms.store(i, v));
        Ok(Self(atoms, PhantomData))
    }

    /// Creates `len` elements whose bytes are all zero.
    ///
    /// # Errors
    /// See [`from_slice`](Self::from_slice).
    pub fn zeros(len: usize) -> Result<Self> {
        Ok(Self(Atoms::new::<T>("RawArray", len)?, PhantomData))
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Returns `true` if the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    fn check(&self, i: usize) -> Result<usize> {
        self.0.shared.me()?;
        let missing = || Error::OutOfBounds(format!("element {i} of an array of {}", self.0.len));
        (i < self.0.len).then_some(i).ok_or_else(missing)
    }

    /// Returns a copy of element `i`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if `i` is not less than the length, [`Error::Forked`] in a forked copy.
    pub fn get(&self, i: usize) -> Result<T> {
        Ok(self.0.load(self.check(i)?))
    }

    /// Replaces element `i`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if `i` is not less than the length, [`Error::Forked`] in a forked copy.
    pub fn set(&self, i: usize, value: T) -> Result<()> {
        self.0.store(self.check(i)?, value);
        Ok(())
    }

    /// Iterates over copies of the elements. Each element is read when the iterator reaches it.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        (0..self.0.len).map(|i| self.0.load(i))
    }

    /// Copies the elements. Each element is read separately, not all at one moment.
    pub fn to_vec(&self) -> Vec<T> {
        self.iter().collect()
    }
}

handle! {
    RawValue<T: Plain + Send>, "a RawValue", |value| value.0.shared, "";
    |d| match Atoms::receive::<T, D>("a RawValue", "RawValue", d)? {
        atoms if atoms.len == 1 => Ok(Self(atoms, PhantomData)),
        atoms => Err(serde::de::Error::custom(format!("a RawValue of {} elements arrived", atoms.len))),
    }
}

handle! {
    RawArray<T: Plain + Send>, "a RawArray", |array| array.0.shared, format_args!("{} in ", array.0.len);
    |d| Atoms::receive::<T, D>("a RawArray", "RawArray", d).map(|atoms| Self(atoms, PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_value_atomic_width_divides_the_element_size() {
        assert_eq!([0, 1, 2, 3, 4, 6, 8, 12, 16, 24].map(width), [1, 1, 2, 1, 4, 2, 8, 4, 8, 8]);
    }

    #[test]
    fn raw_array_elements_of_any_size_round_trip() {
        let odd = [[1_u8, 2, 3], [4, 5, 6], [7, 8, 9]];
        let a = RawArray::from_slice(&odd).unwrap();
        a.set(1, [0; 3]).unwrap();
        assert_eq!(a.to_vec(), [odd[0], [0; 3], odd[2]]);
        let b = RawArray::from_slice(&[[1_u32, 2, 3], [4, 5, 6]]).unwrap();
        assert_eq!(b.get(1).unwrap(), [4, 5, 6]);
        assert!(matches!(b.get(2), Err(Error::OutOfBounds(_))));
        assert_eq!(RawArray::<u64>::zeros(0).unwrap().to_vec(), []);
        assert_eq!(RawValue::new(-0.5_f32).unwrap().get(), -0.5);
    }
}
