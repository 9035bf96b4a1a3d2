//! # Safety
//! Reading through slices and references. Unsafe, because it creates `&[T]` to memory that other processes
//! map. Sound, because
//! - only the sealed [`Readable`] modes do so. An exclusive tensor has one handle, which is borrowed. A
//!   frozen tensor has no handle that writes in any process, now or later. A borrowed view borrows an
//!   exclusive tensor while the view lives. A mutably borrowed view is the only view of its elements;
//! - the view is within the storage ([`RawTensor`](crate::tensor::raw::RawTensor)), and a slice is created
//!   only from a contiguous view.
#![allow(unsafe_code)]

use std::ops::Index;

use crate::element::Element;
use crate::storage;
use crate::tensor::mode::{Borrowed, Mode, Readable};
use crate::{Tensor, TensorView};
use mp_core::Result;
use mp_core::Storage;

/// Elements of a slice, or of a storage at given positions.
enum ElementIter<S, P> {
    Slice(S),
    Strided(P),
}

impl<T, S: ExactSizeIterator<Item = T>, P: ExactSizeIterator<Item = T>> Iterator for ElementIter<S, P> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        match self {
            Self::Slice(s) => s.next(),
            Self::Strided(p) => p.next(),
        }
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Slice(s) => s.size_hint(),
            Self::Strided(p) => p.size_hint(),
        }
    }
    #[inline]
    fn fold<B, F: FnMut(B, T) -> B>(self, init: B, f: F) -> B {
        match self {
            Self::Slice(s) => s.fold(init, f),
            Self::Strided(p) => p.fold(init, f),
        }
    }
}
impl<T, S, P> ExactSizeIterator for ElementIter<S, P>
where
    S: ExactSizeIterator<Item = T>,
    P: ExactSizeIterator<Item = T>,
{
}

// The bounds are on the methods instead of the block, so that the compiler suggests an alternative if a mode
// lacks a method.
impl<T: Element, M: Mode> Tensor<T, M> {
    /// Returns the elements as a slice, in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`](mp_core::Error::Shape) if the tensor is not contiguous (such as a column of a
    /// matrix), [`Error::Forked`](mp_core::Error::Forked) in a forked copy.
    #[inline]
    pub fn as_slice(&self) -> Result<&[T]>
    where
        M: Readable,
    {
        self.raw.contiguous()?;
        // SAFETY: in a readable mode no code writes while the tensor is borrowed.
        Ok(unsafe { storage::slice(self.storage(), self.offset(), self.len()) })
    }
}

impl<T: Element, M: Readable> Tensor<T, M> {
    /// Returns the element at `index`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if the element does not exist,
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy.
    pub fn get(&self, index: &[usize]) -> Result<T> {
        self.raw.here()?;
        Ok(storage::load(self.storage(), self.raw.view.position(index)?))
    }

    /// Returns the only element of a tensor.
    ///
    /// # Errors
    /// [`Error::Shape`](mp_core::Error::Shape) if the number of elements is not one.
    pub fn item(&self) -> Result<T> {
        let one = self.raw.view.with(|v| v.reshape(&[]))?;
        self.raw.here()?;
        Ok(storage::load(self.storage(), one.offset()))
    }

    /// Iterates over copies of the elements, in row-major order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        match self.as_slice() {
            Ok(all) => ElementIter::Slice(all.iter().copied()),
            Err(_apart) => ElementIter::Strided(self.loads()),
        }
    }

    /// Copies the elements into private memory, in row-major order.
    #[doc(alias = "tolist")]
    pub fn to_vec(&self) -> Vec<T> {
        match self.as_slice() {
            Ok(all) => all.to_vec(),
            Err(_apart) => {
                let mut all = Vec::with_capacity(self.len());
                self.iter().for_each(|v| all.push(v));
                all
            }
        }
    }

    /// Copies the elements into a new contiguous tensor, which the caller owns.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let x = Tensor::<i32>::from_fn(&[2, 3], |i| i as i32)?.freeze();
    /// let mut columns = x.t()?.contiguous()?;
    /// columns.as_mut_slice()?[0] = 10; // x stays as it is
    /// assert_eq!(columns.as_slice()?, [10, 3, 1, 4, 2, 5]);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](mp_core::Error::OutOfMemory), [`Error::ArenaFull`](mp_core::Error::ArenaFull).
    #[doc(alias = "clone")]
    pub fn contiguous(&self) -> Result<Tensor<T>> {
        let mut copy = Tensor::empty(self.shape())?;
        copy.copy_from(self)?;
        copy.raw.grad = self.raw.grad.derived();
        Ok(copy)
    }

    /// Copies the tensor: the same as [`contiguous`](Self::contiguous).
    ///
    /// # Errors
    /// See [`contiguous`](Self::contiguous).
    pub fn try_clone(&self) -> Result<Tensor<T>> {
        self.contiguous()
    }

    /// Applies a function to each element. Returns a contiguous tensor that the caller owns. The result
    /// requires no gradients, since the derivative of the function is unknown.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let x = Tensor::<i32>::from_fn(&[2, 2], |i| i as i32)?.freeze();
    /// let half = x.t()?.map(|v| 0.5 * v as f32)?;
    /// assert_eq!(half, Tensor::from_slice(&[0.0, 1.0, 0.5, 1.5], &[2, 2])?);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Tensor::empty`].
    pub fn map<U: Element>(&self, f: impl FnMut(T) -> U) -> Result<Tensor<U>> {
        self.raw.here()?;
        Tensor::made_of(self.shape(), self.iter().map(f))
    }

    /// Borrows the tensor as a read-only view. Several views, and views of views, may exist at once.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let t = Tensor::<i32>::from_fn(&[2, 3], |i| i as i32)?;
    /// let (first, last) = (t.view().select(1, 0)?, t.view().select(1, 2)?);
    /// assert_eq!((first.to_vec(), last.to_vec()), (vec![0, 3], vec![2, 5]));
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    pub fn view(&self) -> TensorView<'_, T> {
        Tensor::of(crate::tensor::raw::RawTensor {
            keep: self.storage(),
            view: self.raw.view.clone(),
            grad: self.raw.grad.derived(),
        })
    }
}

/// Compares shapes and elements, not memory. A NaN makes tensors unequal, as for slices.
///
/// ```
/// use mp_tensor::Tensor;
///
/// let t = Tensor::<i32>::from_fn(&[2, 2], |i| i as i32)?;
/// assert_eq!(t.view().t()?, t.view().t()?.contiguous()?);
/// assert_ne!(t.view().t()?, t);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// Shared tensors have no comparison: other processes may write them at the same time, so that a tensor could
/// differ from itself. Compare copies (`to_vec`, `contiguous`).
impl<T: Element, M: Readable, N: Readable> PartialEq<Tensor<T, N>> for Tensor<T, M> {
    fn eq(&self, other: &Tensor<T, N>) -> bool {
        if self.shape() != other.shape() {
            return false;
        }
        match (self.as_slice(), other.as_slice()) {
            (Ok(a), Ok(b)) => a == b,
            _ => self.iter().eq(other.iter()),
        }
    }
}

impl<'a, T: Element> Tensor<T, Borrowed<'a>> {
    /// Returns the elements for the lifetime of the borrowed tensor, which may exceed that of this view.
    ///
    /// # Errors
    /// See [`as_slice`](Self::as_slice).
    pub fn to_slice(&self) -> Result<&'a [T]> {
        self.raw.contiguous()?;
        let storage: &'a Storage = self.raw.keep;
        // SAFETY: the viewed tensor is borrowed for 'a, so no code writes.
        Ok(unsafe { storage::slice(storage, self.offset(), self.len()) })
    }
}

/// Returns an element, as in `t[[row, column]]`.
///
/// # Panics
/// If the index is out of bounds.
impl<T: Element, M: Readable, const N: usize> Index<[usize; N]> for Tensor<T, M> {
    type Output = T;

    #[inline]
    fn index(&self, index: [usize; N]) -> &T {
        match self.raw.view.position(&index) {
            // SAFETY: see `as_slice`; the position is one of the view.
            Ok(at) => &(unsafe { storage::slice(self.storage(), at, 1) })[0],
            Err(e) => panic!("{e}"),
        }
    }
}
