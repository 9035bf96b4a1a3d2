//! # Safety
//! Foreign files where they are. Unsafe, because other programs decide the length of such a file, and what is
//! in it; sound, because
//! - the safe constructor takes only files that are sealed against shrinking, so that no access can be cut off;
//! - elements are read and written as parts of atomic words, whatever other processes do;
//! - a slice is handed out safely only of a file that is sealed against writing, which the kernel allows as long as
//!   no process has it mapped to write, and which can't be taken back.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};

use super::copy::fits;
use crate::{Element, Tensor};
use mp_core::foreign::{self, MapFor, Region};
use mp_core::mem::Word;
use mp_core::{Error, Result};

/// Elements in a file from elsewhere, mapped where they are: nothing is copied.
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
/// Elements are read and written whole, by relaxed atomics of 8 bytes (one of [`Complex<f64>`](crate::Complex) is two numbers,
/// each of which is whole). It is no message: send what
/// [`to_tensor`](Self::to_tensor) gives.
///
/// # When the file shrinks
/// [`from_fd`](Self::from_fd) takes only files that can't: memfds that are sealed against it, or that it can seal. With
/// [`from_unsealed`](Self::from_unsealed), that the file is not shrunk is for the caller to know: access
/// behind its end is a SIGBUS. In both cases the length is checked once more when the file is mapped.
pub struct MappedFile<T: Element> {
    region: Region,
    offset: u64,
    len: usize,
    writable: bool,
    frozen: bool,
    elements: PhantomData<fn(T) -> T>,
}

impl<T: Element> MappedFile<T> {
    /// `len` elements from byte `offset` of a memfd on. The memfd is sealed against shrinking if it isn't yet, which stays
    /// for ever and for all processes.
    ///
    /// # Errors
    /// [`Error::NotShareable`] when it can't be sealed (no memfd, sealed against sealing, or opened only to read),
    /// [`Error::OutOfBounds`] when it is too short, [`Error::InvalidArgument`] when `offset` is no multiple of the
    /// element's size; [`Error::Os`] when it can't be mapped.
    pub fn from_fd(file: impl AsFd, offset: u64, len: usize) -> Result<Self> {
        let file = file.as_fd();
        if !foreign::seal_shrink(file) {
            return Err(Error::NotShareable(
                "the file can't be sealed against shrinking (only memfds can): copy it with Tensor::from_fd, or \
                 map it with the unsafe MappedFile::from_unsealed"
                    .into(),
            ));
        }
        Self::map(file, offset, len)
    }

    /// `len` elements from byte `offset` of any file on: of a [`SharedMemory`](mp_core::SharedMemory), or of
    /// [`std::fs::File`].
    ///
    /// # Errors
    /// As [`from_fd`](Self::from_fd).
    ///
    /// # Safety
    /// As long as this value lives, no process makes the file shorter than the elements reach.
    pub unsafe fn from_unsealed(file: impl AsFd, offset: u64, len: usize) -> Result<Self> {
        Self::map(file.as_fd(), offset, len)
    }

    fn map(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self> {
        if !offset.is_multiple_of(size_of::<T>() as u64) {
            return Err(Error::InvalidArgument(format!(
                "byte {offset} is no multiple of {}, the size of {}: copy it with Tensor::from_fd",
                size_of::<T>(),
                T::DTYPE
            )));
        }
        let seals = foreign::seals(file);
        let frozen = seals.shrink && seals.write;
        let writable = !seals.write && foreign::is_writable(file);
        let what_for = match (frozen, writable) {
            (true, _) => MapFor::Reading,
            (false, true) => MapFor::Sharing,
            (false, false) => MapFor::Looking,
        };
        let file_len = foreign::length(file)?;
        fits::<T>(file_len, offset, len)?;
        let region = Region::new(file, file_len, what_for)?;
        // It may have shrunk before it was mapped.
        fits::<T>(foreign::length(file)?, offset, len)?;
        Ok(Self { region, offset, len, writable, frozen, elements: PhantomData })
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it can be written from here: opened to write, and not sealed against it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    fn at(&self, i: usize) -> u64 {
        assert!(i < self.len, "element {i} of {}", self.len);
        self.offset + (i * size_of::<T>()) as u64
    }

    /// Reads one element.
    ///
    /// # Panics
    /// If there is no such element, as indexing a slice.
    #[inline]
    pub fn load(&self, i: usize) -> T {
        let mut value = T::zeroed();
        foreign::read(&self.region, Word::at(0), self.at(i), bytemuck::bytes_of_mut(&mut value));
        value
    }

    /// Writes one element.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the file is only readable, see [`is_writable`](Self::is_writable).
    ///
    /// # Panics
    /// If there is no such element, as indexing a slice.
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

    /// Its elements, each as it is when it is reached.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        (0..self.len).map(|i| self.load(i))
    }

    /// A copy of its elements in ordinary memory.
    pub fn to_vec(&self) -> Vec<T> {
        self.iter().collect()
    }

    /// A copy of its elements in the arena, of one dimension.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn to_tensor(&self) -> Result<Tensor<T>> {
        Tensor::from_fn(&[self.len], |i| self.load(i))
    }

    /// Its elements, if the file is sealed against writing and shrinking, so that they are what they are for ever.
    pub fn as_slice(&self) -> Option<&[T]> {
        // SAFETY: sealed against writing: no process can.
        self.frozen.then(|| unsafe { self.as_slice_unsealed() })
    }

    /// Its elements.
    ///
    /// # Safety
    /// No code, in any process, writes them as long as the slice lives.
    pub unsafe fn as_slice_unsealed(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: inside of the mapping (checked when it was made).
        let first = unsafe { self.region.base().add(self.offset as usize) };
        // SAFETY: in bounds; aligned, since the base is page aligned and the offset a multiple of the size; every bit
        // pattern is a `T`; mapped as long as `self` lives; not written, says the caller.
        unsafe { std::slice::from_raw_parts(first.cast().as_ptr(), self.len) }
    }
}

impl<T: Element> fmt::Debug for MappedFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writable = if self.writable { "" } else { ", read only" };
        write!(f, "MappedFile<{}>({} at byte {}{writable})", T::DTYPE, self.len, self.offset)
    }
}
