//! # Safety
//! Writing through slices and references. Unsafe, because it creates `&mut [T]` to memory that other
//! processes map. Sound, because
//! - only the sealed [`Writable`] modes do so. An exclusive tensor is the only access to its elements among
//!   all processes. It is created with fresh memory, and is not `Clone`. Sending moves its handle into the
//!   message, and leaves a tensor without memory. Receiving requires that the block has never been frozen or
//!   shared, which the block itself records. (Handles other than tensors keep memory alive, and give no
//!   access.) Everything derived from an exclusive tensor borrows the tensor mutably;
//! - a mutably borrowed view comes from a mutably borrowed tensor. Several of them are disjoint pieces of one
//!   view;
//! - in both modes, no two indices refer to the same element ([`RawTensor`]), also in a received tensor;
//! - a slice is created only from a contiguous view. Other elements are accessed one by one, so that elements
//!   of other views in between are neither accessed nor referenced.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::IndexMut;

use crate::element::Element;
use crate::storage;
use crate::tensor::mode::{BorrowedMut, Mode, Readable, Writable};
use crate::tensor::raw::RawTensor;
use crate::view::{Positions, View};
use crate::{Tensor, TensorViewMut};
use mp_core::{Error, Result};

// The bounds are on the methods instead of the block, so that the compiler suggests an alternative if a mode
// lacks a method.
impl<T: Element, M: Mode> Tensor<T, M> {
    /// Returns the elements as a mutable slice, in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`] if the tensor is not contiguous, [`Error::Forked`] in a forked copy.
    #[inline]
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]>
    where
        M: Writable,
    {
        self.raw.contiguous()?;
        let (first, len) = (self.offset(), self.len());
        // SAFETY: in a writable mode, mutably borrowed, no other code accesses the elements.
        Ok(unsafe { storage::slice_mut(self.storage(), first, len) })
    }
}

impl<T: Element, M: Writable> Tensor<T, M> {
    /// Writes the element at `index`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the element does not exist, [`Error::Forked`] in a forked copy.
    pub fn set(&mut self, index: &[usize], value: T) -> Result<()> {
        self.raw.here()?;
        storage::store(self.storage(), self.raw.view.position(index)?, value);
        Ok(())
    }

    /// Iterates over mutable references to the elements, in row-major order.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut T> {
        ElementIterMut {
            positions: self.raw.view.positions(),
            tensor: self.view_mut(),
            elements: PhantomData,
        }
    }

    /// Writes one value into all elements.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    #[doc(alias = "fill_")]
    pub fn fill(&mut self, value: T) -> Result<()> {
        match self.as_mut_slice() {
            Ok(all) => all.fill(value),
            Err(Error::Forked) => return Err(Error::Forked),
            Err(_apart) => self.iter_mut().for_each(|v| *v = value),
        }
        Ok(())
    }

    /// Applies a function to each element, in place.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy.
    #[doc(alias("apply_", "map_"))]
    pub fn map_in_place(&mut self, mut f: impl FnMut(T) -> T) -> Result<()> {
        self.raw.here()?;
        self.iter_mut().for_each(|v| *v = f(*v));
        Ok(())
    }

    /// Copies all elements from a tensor of the same shape.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let (mut a, b) = (Tensor::<f32>::zeros(&[2, 2])?, Tensor::full(&[2], 1.0)?);
    /// a.view_mut().select(1, 0)?.copy_from(&b)?; // the first column
    /// assert_eq!(a.as_slice()?, [1.0, 0.0, 1.0, 0.0]);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] if the shapes differ, [`Error::Forked`] in a forked copy.
    #[doc(alias = "copy_")]
    pub fn copy_from<N: Readable>(&mut self, from: &Tensor<T, N>) -> Result<()> {
        if self.shape() != from.shape() {
            return Err(Error::Shape(format!("shape {:?} copied to shape {:?}", from.shape(), self.shape())));
        }
        self.raw.here()?;
        match (self.as_mut_slice(), from.as_slice()) {
            (Ok(to), Ok(from)) => to.copy_from_slice(from),
            (Ok(to), Err(_)) => {
                let mut to = to.iter_mut();
                from.iter().for_each(|v| _ = to.next().map(|to| *to = v));
            }
            (Err(_), _) => self.iter_mut().zip(from.iter()).for_each(|(to, v)| *to = v),
        }
        Ok(())
    }

    /// Borrows the tensor as a writable view.
    pub fn view_mut(&mut self) -> TensorViewMut<'_, T> {
        Tensor::of(RawTensor {
            keep: self.storage(),
            view: self.raw.view.clone(),
            grad: self.raw.grad.derived(),
        })
    }

    /// Returns the views that `f` returns, which must be disjoint.
    fn pieces_mut(&mut self, f: impl FnOnce(View) -> Result<Vec<View>>) -> Result<Vec<TensorViewMut<'_, T>>> {
        let views = f(*self.raw.view)?;
        let (keep, grad) = (self.storage(), self.raw.grad.derived());
        Ok(views.into_iter().map(|view| Tensor::of(RawTensor { keep, view: view.into(), grad })).collect())
    }

    /// Cuts dimension `dim` into `chunks` writable views of equal length; the last one may be shorter.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let mut t = Tensor::<i32>::zeros(&[4, 2])?;
    /// std::thread::scope(|scope| -> Result<(), mp_tensor::Error> {
    ///     for (mut half, value) in t.chunk_mut(2, 0)?.into_iter().zip([1, 2]) {
    ///         scope.spawn(move || half.fill(value));
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(t.as_slice()?, [1, 1, 1, 1, 2, 2, 2, 2]);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the dimension does not exist, [`Error::InvalidArgument`] if `chunks` is 0.
    pub fn chunk_mut(&mut self, chunks: usize, dim: usize) -> Result<Vec<TensorViewMut<'_, T>>> {
        self.pieces_mut(|v| v.chunk(chunks, dim))
    }

    /// Cuts dimension `dim` into writable views of `size` entries; the last one may be shorter.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the dimension does not exist, [`Error::InvalidArgument`] if the size is 0.
    pub fn split_mut(&mut self, size: usize, dim: usize) -> Result<Vec<TensorViewMut<'_, T>>> {
        self.pieces_mut(|v| v.split(size, dim))
    }

    /// Cuts dimension `dim` into writable views of these sizes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the dimension does not exist, [`Error::Shape`] if the sizes don't add up to
    /// its length.
    pub fn split_sizes_mut(&mut self, sizes: &[usize], dim: usize) -> Result<Vec<TensorViewMut<'_, T>>> {
        self.pieces_mut(|v| v.split_sizes(sizes, dim))
    }

    /// Cuts dimension `dim` before entry `at` into two writable views.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the dimension does not exist, or `at` exceeds its length.
    pub fn split_at_mut(
        &mut self,
        at: usize,
        dim: usize,
    ) -> Result<(TensorViewMut<'_, T>, TensorViewMut<'_, T>)> {
        let whole = *self.raw.view;
        let n = whole.shape().get(dim).copied().unwrap_or(0);
        let left = whole.with(|v| v.narrow(dim, 0, at))?;
        let right = whole.with(|v| v.narrow(dim, at, n - at))?;
        let (keep, grad) = (self.storage(), self.raw.grad.derived());
        let of = |view: View| Tensor::of(RawTensor { keep, view: view.into(), grad });
        Ok((of(left), of(right)))
    }

    /// Returns a writable view of each entry of dimension `dim`, without that dimension.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the dimension does not exist.
    pub fn unbind_mut(&mut self, dim: usize) -> Result<Vec<TensorViewMut<'_, T>>> {
        self.pieces_mut(|v| v.unbind(dim))
    }
}

/// Iterator over the elements of a view, each once.
struct ElementIterMut<'a, T: Element> {
    tensor: TensorViewMut<'a, T>,
    positions: Positions,
    elements: PhantomData<&'a mut T>,
}

impl<'a, T: Element> Iterator for ElementIterMut<'a, T> {
    type Item = &'a mut T;

    #[inline]
    fn next(&mut self) -> Option<&'a mut T> {
        let at = self.positions.next()?;
        // SAFETY: this iterator has the view for 'a, and returns each position once. No two positions are the
        // same element.
        unsafe { storage::slice_mut(self.tensor.raw.keep, at, 1) }.first_mut()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.positions.size_hint()
    }
    #[inline]
    fn fold<B, F: FnMut(B, &'a mut T) -> B>(self, init: B, mut f: F) -> B {
        let storage = self.tensor.raw.keep;
        self.positions.fold(init, |all, at| {
            // SAFETY: see `next`.
            let element = unsafe { storage::slice_mut(storage, at, 1) };
            f(all, &mut element[0])
        })
    }
}
impl<T: Element> ExactSizeIterator for ElementIterMut<'_, T> {}

impl<'a, T: Element> Tensor<T, BorrowedMut<'a>> {
    /// Returns the elements for the lifetime of the borrowed tensor.
    ///
    /// # Errors
    /// See [`as_mut_slice`](Self::as_mut_slice).
    pub fn into_mut_slice(self) -> Result<&'a mut [T]> {
        self.raw.contiguous()?;
        // SAFETY: see `as_mut_slice`; the consumed view was the only one of its elements for 'a.
        Ok(unsafe { storage::slice_mut(self.raw.keep, self.offset(), self.len()) })
    }
}

/// Returns a mutable element, as in `t[[row, column]] = 1.0`.
///
/// # Panics
/// If the index is out of bounds.
impl<T: Element, M: Writable, const N: usize> IndexMut<[usize; N]> for Tensor<T, M> {
    #[inline]
    fn index_mut(&mut self, index: [usize; N]) -> &mut T {
        match self.raw.view.position(&index) {
            // SAFETY: see `as_mut_slice`; the position is one of the view.
            Ok(at) => &mut (unsafe { storage::slice_mut(self.storage(), at, 1) })[0],
            Err(e) => panic!("{e}"),
        }
    }
}
