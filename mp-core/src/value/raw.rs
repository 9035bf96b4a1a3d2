//! Values and arrays without a lock.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::header::{Form, Header, receive, send};
use crate::arena::Hold;
use crate::error::{Error, Result};
use crate::storage::Storage;

/// Bytes of the atomics that an element consists of: the largest of 8, 4, 2, 1 that divides its size.
const fn width(size: usize) -> usize {
    if size == 0 { 1 } else { 1 << if size.trailing_zeros() < 3 { size.trailing_zeros() } else { 3 } }
}

/// Elements after a header, reached as atomics of one width only.
///
/// A block begins at a multiple of 64 bytes and the header has 64, so that every element lies at a multiple of its width.
#[derive(Clone)]
struct Atoms(Storage);

impl Atoms {
    fn new(hold: Hold) -> Self {
        Self(Storage::of(hold, usize::MAX))
    }

    /// The position of element `i`'s first atomic, counted in atomics, and how many it has.
    fn place<T>(i: usize) -> (usize, usize) {
        let (size, width) = (size_of::<T>(), width(size_of::<T>()));
        (Header::BYTES as usize / width + i * (size / width), size / width)
    }

    fn load<T: Pod>(&self, i: usize) -> T {
        let mut value = T::zeroed();
        let (at, n) = Self::place::<T>(i);
        let to = bytemuck::bytes_of_mut(&mut value);
        macro_rules! copy {
            ($t:ty) => {
                for (k, to) in (0..n).zip(to.chunks_exact_mut(size_of::<$t>())) {
                    to.copy_from_slice(&self.0.load::<$t>(at + k).to_ne_bytes());
                }
            };
        }
        match width(size_of::<T>()) {
            8 => copy!(u64),
            4 => copy!(u32),
            2 => copy!(u16),
            _ => copy!(u8),
        }
        value
    }

    fn store<T: Pod>(&self, i: usize, value: T) {
        let (at, n) = Self::place::<T>(i);
        let from = bytemuck::bytes_of(&value);
        macro_rules! copy {
            ($t:ty) => {
                for (k, from) in (0..n).zip(from.chunks_exact(size_of::<$t>())) {
                    self.0.store(at + k, bytemuck::pod_read_unaligned::<$t>(from));
                }
            };
        }
        match width(size_of::<T>()) {
            8 => copy!(u64),
            4 => copy!(u32),
            2 => copy!(u16),
            _ => copy!(u8),
        }
    }
}

/// A value of plain data that any number of processes read and write at once, without a lock.
///
/// ```
/// use mp_core::RawValue;
///
/// let progress = RawValue::new(0.25_f64)?;
/// let everywhere = progress.clone(); // a handle, which can also be sent
/// progress.set(0.5);
/// assert_eq!(everywhere.get(), 0.5);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Values of 1, 2, 4 or 8 bytes are read and written whole, by relaxed atomics. Larger ones are read and written piece by
/// piece: a reader may see half of one value and half of another, and a writer that is killed may leave that. Any such
/// mixture is a value of the type ([`Pod`]). What must be whole belongs into a [`Value`](crate::Value).
#[doc(alias = "multiprocessing.sharedctypes.RawValue")]
pub struct RawValue<T: Pod + Send>(Atoms, PhantomData<fn(T) -> T>);

/// Elements of plain data that any number of processes read and write at once, without a lock.
///
/// ```
/// use mp_core::RawArray;
///
/// let seen = RawArray::<u8>::zeros(100)?;
/// seen.set(7, 1)?;
/// assert_eq!(seen.get(7)?, 1);
/// assert_eq!(seen.iter().map(u32::from).sum::<u32>(), 1);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// Each element is as a [`RawValue`]. For numbers, [`SharedTensor`](crate::SharedTensor) has shapes, views and atomic addition.
#[doc(alias = "multiprocessing.sharedctypes.RawArray")]
pub struct RawArray<T: Pod + Send>(Atoms, usize, PhantomData<fn(T) -> T>);

impl<T: Pod + Send> RawValue<T> {
    /// A value in shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::Shape`] for a type that is aligned to more than 64 bytes.
    pub fn new(value: T) -> Result<Self> {
        let atoms = Atoms::new(Header::of::<T>(Form::RawValue, 1).allocate()?);
        atoms.store(0, value);
        Ok(Self(atoms, PhantomData))
    }

    /// The value.
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

impl<T: Pod + Send> RawArray<T> {
    /// A copy of `data` in shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::Shape`] for a type that is aligned to more than 64 bytes.
    pub fn from_slice(data: &[T]) -> Result<Self> {
        let atoms = Atoms::new(Header::of::<T>(Form::RawArray, data.len()).allocate()?);
        data.iter().enumerate().for_each(|(i, &v)| atoms.store(i, v));
        Ok(Self(atoms, data.len(), PhantomData))
    }

    /// `len` elements whose bytes are all zero.
    ///
    /// # Errors
    /// As [`from_slice`](Self::from_slice).
    pub fn zeros(len: usize) -> Result<Self> {
        let atoms = Atoms::new(Header::of::<T>(Form::RawArray, len).allocate()?);
        (0..len).for_each(|i| atoms.store(i, T::zeroed()));
        Ok(Self(atoms, len, PhantomData))
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.1
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.1 == 0
    }

    fn check(&self, i: usize) -> Result<usize> {
        self.0.0.hold().arena().me()?;
        let missing = || Error::Shape(format!("element {i} of an array of {}", self.1));
        (i < self.1).then_some(i).ok_or_else(missing)
    }

    /// One element.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such element, [`Error::Forked`] in a forked copy.
    pub fn get(&self, i: usize) -> Result<T> {
        Ok(self.0.load(self.check(i)?))
    }

    /// Replaces one element.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such element, [`Error::Forked`] in a forked copy.
    pub fn set(&self, i: usize, value: T) -> Result<()> {
        self.0.store(self.check(i)?, value);
        Ok(())
    }

    /// Its elements, each as it is when it is reached.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        (0..self.1).map(|i| self.0.load(i))
    }

    /// A copy of its elements, each as it is when it is reached.
    pub fn to_vec(&self) -> Vec<T> {
        self.iter().collect()
    }
}

impl<T: Pod + Send> Clone for RawValue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<T: Pod + Send> Clone for RawArray<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), self.1, PhantomData)
    }
}

impl<T: Pod + Send> fmt::Debug for RawValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawValue<{}>({:?})", std::any::type_name::<T>(), self.0.0.hold())
    }
}

impl<T: Pod + Send> fmt::Debug for RawArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawArray<{}>({} in {:?})", std::any::type_name::<T>(), self.1, self.0.0.hold())
    }
}

impl<T: Pod + Send> Serialize for RawValue<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        send(self.0.0.hold(), "a RawValue", s)
    }
}

impl<'de, T: Pod + Send> Deserialize<'de> for RawValue<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        receive("a RawValue", d, |hold| {
            Header::check::<T>(&hold, Form::RawValue, Some(1))?;
            Ok(Self(Atoms::new(hold), PhantomData))
        })
    }
}

impl<T: Pod + Send> Serialize for RawArray<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        send(self.0.0.hold(), "a RawArray", s)
    }
}

impl<'de, T: Pod + Send> Deserialize<'de> for RawArray<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        receive("a RawArray", d, |hold| {
            let len = Header::check::<T>(&hold, Form::RawArray, None)?;
            Ok(Self(Atoms::new(hold), len, PhantomData))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_divide_sizes() {
        assert_eq!([0, 1, 2, 3, 4, 6, 8, 12, 16, 24].map(width), [1, 1, 2, 1, 4, 2, 8, 4, 8, 8]);
    }

    #[test]
    fn elements_of_any_size_come_back() {
        let odd = [[1_u8, 2, 3], [4, 5, 6], [7, 8, 9]];
        let a = RawArray::from_slice(&odd).unwrap();
        a.set(1, [0; 3]).unwrap();
        assert_eq!(a.to_vec(), [odd[0], [0; 3], odd[2]]);
        let b = RawArray::from_slice(&[[1_u32, 2, 3], [4, 5, 6]]).unwrap();
        assert_eq!(b.get(1).unwrap(), [4, 5, 6]);
        assert!(matches!(b.get(2), Err(Error::Shape(_))));
        assert_eq!(RawArray::<u64>::zeros(0).unwrap().to_vec(), []);
        assert_eq!(RawValue::new(-0.5_f32).unwrap().get(), -0.5);
    }
}
