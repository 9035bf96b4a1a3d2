//! # Safety
//! Mappings of foreign files. Unsafe, because other programs control the length and the content of such a
//! file. Sound, because
//! - the safe constructor accepts only files that are sealed against shrinking, so that every access stays
//!   inside of the file;
//! - elements are read and written as parts of atomic words, whatever other processes do;
//! - the safe function that returns a slice accepts only files that are sealed against writing. The kernel
//!   grants this seal only if no process has a writable mapping, and a seal can't be removed.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};

use super::copy::fits;
use crate::{Element, Tensor};
use mp_core::foreign::{self, MapMode, Region};
use mp_core::mem::Word;
use mp_core::{Error, Result};

/// A mapping of elements in a foreign file, without a copy.
///
/// ```
/// use mp_tensor::{MappedFile, Tensor};
///
/// let memfd = Tensor::from_slice(&[1_u32, 2, 3], &[3])?.to_memfd()?; // or from another program
/// let there = MappedFile::<u32>::from_fd(&memfd, 0, 3)?;
/// there.store(1, 20)?; // seen by all processes that have the file mapped
/// assert_eq!(there.to_vec(), [1, 20, 3]);
/// let ours = there.to_tensor()?; // a copy in the arena, which can be sent
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// Elements are read and written whole, by relaxed atomics of 8 bytes (a [`Complex<f64>`](crate::Complex) as
/// two numbers, each whole). A mapping can't be sent in a message: send the result of
/// [`to_tensor`](Self::to_tensor).
///
/// # When the file shrinks
/// [`from_fd`](Self::from_fd) accepts only memfds that are sealed against shrinking, or that it can seal.
/// With [`from_unsealed`](Self::from_unsealed), the caller guarantees that the file does not shrink: access
/// after its end causes a SIGBUS. Both check the length after mapping.
pub struct MappedFile<T: Element> {
    region: Region,
    offset: u64,
    len: usize,
    writable: bool,
    frozen: bool,
    elements: PhantomData<fn(T) -> T>,
}

impl<T: Element> MappedFile<T> {
    /// Maps `len` elements of a memfd, from byte `offset` on. Seals the memfd against shrinking if needed,
    /// permanently and for all processes.
    ///
    /// # Errors
    /// [`Error::NotShareable`] if the file can't be sealed (not a memfd, sealed against sealing, or opened
    /// read-only), [`Error::OutOfBounds`] if the file is too short, [`Error::InvalidArgument`] if `offset` is
    /// not a multiple of the element size, [`Error::Os`] if the file can't be mapped.
    pub fn from_fd(file: impl AsFd, offset: u64, len: usize) -> Result<Self> {
        let file = file.as_fd();
        if !foreign::seal_shrink(file) {
            return Err(Error::NotShareable(
                "the file can't be sealed against shrinking (only memfds can): copy it with Tensor::from_fd, \
                 or map it with the unsafe MappedFile::from_unsealed"
                    .into(),
            ));
        }
        Self::map(file, offset, len)
    }

    /// Maps `len` elements of any file, such as a [`SharedMemory`](mp_core::SharedMemory) or a
    /// [`std::fs::File`], from byte `offset` on.
    ///
    /// # Errors
    /// See [`from_fd`](Self::from_fd).
    ///
    /// # Safety
    /// While this value lives, no process truncates the file to before the end of the elements.
    pub unsafe fn from_unsealed(file: impl AsFd, offset: u64, len: usize) -> Result<Self> {
        Self::map(file.as_fd(), offset, len)
    }

    fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self> {
        if !offset.is_multiple_of(size_of::<T>() as u64) {
            return Err(Error::InvalidArgument(format!(
                "byte {offset} is not a multiple of {}, the size of {}: copy it with Tensor::from_fd",
                size_of::<T>(),
                T::DTYPE
            )));
        }
        let seals = foreign::seals(file);
        let frozen = seals.shrink && seals.write;
        let writable = !seals.write && foreign::is_writable(file);
        let what_for = match (frozen, writable) {
            (true, _) => MapMode::ReadPrivate,
            (false, true) => MapMode::ReadWrite,
            (false, false) => MapMode::ReadShared,
        };
        let file_len = foreign::length(file)?;
        fits::<T>(file_len, offset, len)?;
        let region = Region::new(file, file_len, what_for)?;
        // The file may have shrunk before it was mapped.
        fits::<T>(foreign::length(file)?, offset, len)?;
        Ok(Self { region, offset, len, writable, frozen, elements: PhantomData })
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns `true` if this mapping can be written: the file is open for writing and not sealed against
    /// writing.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    fn at(&self, i: usize) -> u64 {
        assert!(i < self.len, "element {i} of {}", self.len);
        self.offset + (i * size_of::<T>()) as u64
    }

    /// Reads element `i`.
    ///
    /// # Panics
    /// If `i` is out of bounds.
    #[inline]
    pub fn load(&self, i: usize) -> T {
        let mut value = T::zeroed();
        foreign::read(&self.region, Word::at(0), self.at(i), bytemuck::bytes_of_mut(&mut value));
        value
    }

    /// Writes element `i`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the file is read-only, see [`is_writable`](Self::is_writable).
    ///
    /// # Panics
    /// If `i` is out of bounds.
    #[inline]
    pub fn store(&self, i: usize, value: T) -> Result<()> {
        let at = self.at(i);
        if !self.writable {
            return Err(Error::Unsupported(
                "a write to a file that is sealed against writing, or open to read only".into(),
            ));
        }
        foreign::write(&self.region, Word::at(0), at, bytemuck::bytes_of(&value));
        Ok(())
    }

    /// Iterates over the elements. An element is read when the iterator reaches it.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        (0..self.len).map(|i| self.load(i))
    }

    /// Copies the elements into private memory.
    pub fn to_vec(&self) -> Vec<T> {
        self.iter().collect()
    }

    /// Copies the elements into the arena, as a one-dimensional tensor.
    ///
    /// # Errors
    /// See [`Tensor::empty`].
    pub fn to_tensor(&self) -> Result<Tensor<T>> {
        Tensor::from_fn(&[self.len], |i| self.load(i))
    }

    /// Returns the elements, if the file is sealed against writing and shrinking, so that they never change.
    pub fn as_slice(&self) -> Option<&[T]> {
        // SAFETY: sealed against writing, so no process writes.
        self.frozen.then(|| unsafe { self.as_slice_unsealed() })
    }

    /// Returns the elements.
    ///
    /// # Safety
    /// No code in any process writes the elements while the slice lives.
    pub unsafe fn as_slice_unsealed(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: inside of the mapping, checked when it was created.
        let first = unsafe { self.region.base().add(self.offset as usize) };
        // SAFETY: in bounds; aligned, since the base is page-aligned and the offset a multiple of the size;
        // every bit pattern is a `T`; mapped while `self` lives; the caller guarantees that no process
        // writes.
        unsafe { std::slice::from_raw_parts(first.cast().as_ptr(), self.len) }
    }
}

impl<T: Element> fmt::Debug for MappedFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writable = if self.writable { "" } else { ", read only" };
        write!(f, "MappedFile<{}>({} at byte {}{writable})", T::DTYPE, self.len, self.offset)
    }
}
