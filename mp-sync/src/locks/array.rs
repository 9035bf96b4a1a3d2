//! Lock around elements of plain data.

use std::marker::PhantomData;

use mp_core::words::LockKind;
use mp_core::{Error, LockError, Result, Wait};

use crate::handle::handle;
use crate::locks::cell::{LockCell, locking};
use crate::locks::guard::LockGuard;
use crate::plain::Plain;

/// Elements of plain data under one lock between processes.
///
/// ```
/// use mp_sync::Array;
///
/// let counts = Array::from_slice(&[0_u32; 10])?;
/// counts.lock()?[3] += 1; // the guard is a `&mut [u32]`
/// counts.set(4, 7)?;
/// assert_eq!(counts.to_vec()?[2..5], [0, 1, 7]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// Waiting and the death of a process work as for [`Lock`](crate::Lock).
#[derive(Clone)]
#[doc(alias = "multiprocessing.Array")]
pub struct Array<T: Plain + Send> {
    cell: LockCell,
    len: usize,
    data: PhantomData<fn(T) -> T>,
}

locking!(Array, [T], |this, raw| this.cell.slice(this.len, raw));

impl<T: Plain + Send> Array<T> {
    /// Copies `data` into shared memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::LimitExceeded`] for a type with an alignment
    /// above 64 bytes.
    pub fn from_slice(data: &[T]) -> Result<Self> {
        let array = Self::zeros(data.len())?;
        array.cell.slice(data.len(), array.cell.first()?).copy_from_slice(data);
        Ok(array)
    }

    /// Creates `len` elements whose bytes are all zero.
    ///
    /// # Errors
    /// See [`from_slice`](Self::from_slice).
    pub fn zeros(len: usize) -> Result<Self> {
        Ok(Self { cell: LockCell::new::<T>(LockKind::Array, len)?, len, data: PhantomData })
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn missing(&self, i: usize) -> LockError {
        Error::OutOfBounds(format!("element {i} of an array of {}", self.len)).into()
    }

    /// Returns a copy of element `i`, made under the lock.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if `i` is not less than the length, and the errors of [`lock`](Self::lock).
    #[track_caller]
    pub fn get(&self, i: usize) -> Result<T, LockError> {
        self.lock()?.get(i).copied().ok_or_else(|| self.missing(i))
    }

    /// Replaces element `i` under the lock.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if `i` is not less than the length, and the errors of [`lock`](Self::lock).
    #[track_caller]
    pub fn set(&self, i: usize, value: T) -> Result<(), LockError> {
        *self.lock()?.get_mut(i).ok_or_else(|| self.missing(i))? = value;
        Ok(())
    }

    /// Returns a copy of all elements, made under the lock.
    ///
    /// # Errors
    /// See [`lock`](Self::lock).
    #[track_caller]
    pub fn to_vec(&self) -> Result<Vec<T>, LockError> {
        Ok(self.lock()?.to_vec())
    }
}

handle! {
    Array<T: Plain + Send>, "an Array", |array| array.cell.shared(), format_args!("{} in ", array.len);
    |d| LockCell::receive::<T, D>("an Array", LockKind::Array, d).map(|(cell, len)| Self { cell, len, data: PhantomData })
}
