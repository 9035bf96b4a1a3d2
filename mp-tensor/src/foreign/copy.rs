//! Tensors copied from files. The kernel reads the file, so that a file that shrinks meanwhile causes an
//! error, not a SIGBUS.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use crate::{Element, Tensor};
use mp_core::foreign;
use mp_core::{Error, Result, quantity};

/// Checks that a file of `file_len` bytes contains `elements` elements of type `T` from byte `offset` on.
/// Returns the number of bytes of these elements.
pub(crate) fn fits<T: Element>(file_len: u64, offset: u64, elements: usize) -> Result<u64> {
    let bytes = (elements as u64).checked_mul(size_of::<T>() as u64);
    match bytes.and_then(|n| n.checked_add(offset)) {
        Some(end) if end <= file_len => Ok(end - offset),
        _ => Err(Error::OutOfBounds(format!(
            "{} of {} at byte {offset} of a file that has {}",
            quantity(elements, "element"),
            T::DTYPE,
            quantity(file_len, "byte")
        ))),
    }
}

impl<T: Element> Tensor<T> {
    /// Copies elements from an open file or memfd, from byte `offset` on, in row-major order.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let exported = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[4])?.to_memfd()?;
    /// let again = Tensor::<f32>::from_fd(&exported, 4, &[3])?;
    /// assert_eq!(again.to_vec(), [2.0, 3.0, 4.0]);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// The file is read, not mapped, so that later changes of the file do not affect this tensor. A file that
    /// shrinks during the call causes an error. The bytes are interpreted in native byte order, and `offset`
    /// need not be aligned.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the file is too short, [`Error::NotShareable`] if it is not a regular file
    /// or shrank, [`Error::Os`] if it can't be read, and the errors of [`Tensor::empty`].
    #[doc(alias = "rebuild_storage_fd")]
    pub fn from_fd(file: impl AsFd, offset: u64, shape: impl AsRef<[usize]>) -> Result<Self> {
        Self::read(file.as_fd(), offset, shape.as_ref())
    }

    /// Copies elements from POSIX shared memory, from byte `offset` on, in row-major order. In files of
    /// torch's `file_system` strategy, elements begin at byte 64.
    ///
    /// # Errors
    /// See [`from_fd`](Self::from_fd) and [`SharedMemory::open`](mp_core::SharedMemory::open).
    #[doc(alias = "rebuild_storage_filename")]
    pub fn from_shm(name: &str, offset: u64, shape: impl AsRef<[usize]>) -> Result<Self> {
        let name = mp_core::foreign::checked(name)?;
        Self::read(foreign::open(name)?.0.as_fd(), offset, shape.as_ref())
    }

    /// Copies elements from a file, from byte `offset` on, in row-major order.
    ///
    /// # Errors
    /// See [`from_fd`](Self::from_fd).
    pub fn from_file(path: impl AsRef<Path>, offset: u64, shape: impl AsRef<[usize]>) -> Result<Self> {
        Self::read(foreign::open_to_read(path.as_ref())?.as_fd(), offset, shape.as_ref())
    }

    fn read(file: BorrowedFd<'_>, offset: u64, shape: &[usize]) -> Result<Self> {
        let file_len = foreign::length(file)?;
        // Checked before the allocation, because a wrong shape may be huge.
        let elements = shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
        let bytes = fits::<T>(file_len, offset, elements)?;
        let mut tensor = Self::empty(shape)?;
        let to: &mut [u8] = bytemuck::cast_slice_mut(tensor.as_mut_slice()?);
        let got = foreign::read_at(file, offset, to)? as u64;
        if got < bytes {
            return Err(Error::NotShareable(format!(
                "the file had {file_len} bytes and shrank while it was read: {got} of {bytes} came"
            )));
        }
        Ok(tensor)
    }
}
