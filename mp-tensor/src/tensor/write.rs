//! # Safety
//! Writing through slices and references. Unsafe, because it makes `&mut [T]` of memory that other processes map;
//! sound, because
//! - this is for [`Writable`] modes only, which are sealed. An exclusive tensor is the only way to its elements among all
//!   processes: it is made with fresh memory, it is no `Clone`; sending it moves its handle into the message, and leaves
//!   a tensor without memory; receiving it requires that the block has never been frozen or shared, which the block itself
//!   remembers. (Handles that are no tensors keep memory, and give no access.) It is borrowed mutably as long as anything
//!   made of it lives;
//! - a mutably borrowed view comes from a mutably borrowed tensor, and several at once are pieces of one view that have no
//!   element in common;
//! - in both, no two indices are one element ([`Raw`]), also when it arrived in a message;
//! - a slice is made only of a contiguous view, and single elements are reached by themselves: between the elements of
//!   one view there may be those of another, which are never touched, nor referred to.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::IndexMut;

use crate::element::Element;
use crate::storage::StorageElements;
use crate::tensor::mode::{BorrowedMut, Mode, Readable, Writable};
use crate::tensor::raw::Raw;
use crate::view::{Positions, View};
use crate::{Tensor, TensorViewMut};
use mp_core::{Error, Result};

// Bounds of the methods, and not of the block: so that the compiler says what to do in place of a call that a mode has not.
impl<T: Element, M: Mode> Tensor<T, M> {
    /// Its elements, in row-major order, to write.
    ///
    /// # Errors
    /// [`Error::Shape`] when it is not contiguous; [`Error::Forked`] in a forked copy of the process.
    #[inline]
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]>
    where
        M: Writable,
    {
        self.raw.contiguous()?;
        let (first, len) = (self.offset(), self.len());
        // SAFETY: a writable mode, mutably borrowed: no other code reaches the elements.
        Ok(unsafe { self.storage().slice_mut(first, len) })
    }
}

impl<T: Element, M: Writable> Tensor<T, M> {
    /// Writes one element.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when there is no such element; [`Error::Forked`] in a forked copy of the process.
    pub fn set(&mut self, index: &[usize], value: T) -> Result<()> {
        self.raw.here()?;
        self.storage().store(self.raw.view.position(index)?, value);
        Ok(())
    }

    /// Its elements, in row-major order, to write.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut T> {
        Mutable { positions: self.raw.view.positions(), tensor: self.view_mut(), elements: PhantomData }
    }

    /// Writes one value into all elements.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy of the process.
    #[doc(alias = "fill_")]
    pub fn fill(&mut self, value: T) -> Result<()> {
        match self.as_mut_slice() {
            Ok(all) => all.fill(value),
            Err(Error::Forked) => return Err(Error::Forked),
            Err(_apart) => self.iter_mut().for_each(|v| *v = value),
        }
        Ok(())
    }

    /// Replaces each element by what a function makes of it.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked copy of the process.
    #[doc(alias("apply_", "map_"))]
    pub fn map_in_place(&mut self, mut f: impl FnMut(T) -> T) -> Result<()> {
        self.raw.here()?;
        self.iter_mut().for_each(|v| *v = f(*v));
        Ok(())
    }

    /// Copies all elements of a tensor of the same shape.
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
    /// [`Error::Shape`] when the shapes differ; [`Error::Forked`] in a forked copy of the process.
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

    /// A view to write, as long as the tensor is borrowed.
    pub fn view_mut(&mut self) -> TensorViewMut<'_, T> {
        Tensor::of(Raw { keep: self.storage(), view: self.raw.view.clone(), grad: self.raw.grad.derived() })
    }

    /// Views of what the function makes of its view: pieces that have no element in common.
    fn pieces_mut(&mut self, f: impl FnOnce(View) -> Result<Vec<View>>) -> Result<Vec<TensorViewMut<'_, T>>> {
        let views = f(*self.raw.view)?;
        let (keep, grad) = (self.storage(), self.raw.grad.derived());
        Ok(views.into_iter().map(|view| Tensor::of(Raw { keep, view: view.into(), grad })).collect())
    }

    /// Cut along dimension `dim` into `chunks` views of equal length (the last one may be shorter), each to be written.
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
    /// [`Error::OutOfBounds`] when there is no such dimension, [`Error::InvalidArgument`] when no chunks are asked.
    pub fn chunk_mut(&mut self, chunks: usize, dim: usize) -> Result<Vec<TensorViewMut<'_, T>>> {
        self.pieces_mut(|v| v.chunk(chunks, dim))
    }

    /// Cut along dimension `dim` into views of `size` entries (the last one may be shorter), each to be written.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when there is no such dimension, [`Error::InvalidArgument`] when the size is 0.
    pub fn split_mut(&mut self, size: usize, dim: usize) -> Result<Vec<TensorViewMut<'_, T>>> {
        self.pieces_mut(|v| v.split(size, dim))
    }

    /// Cut along dimension `dim` into views of these sizes, each to be written.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when there is no such dimension, [`Error::Shape`] when they don't add up to it.
    pub fn split_sizes_mut(&mut self, sizes: &[usize], dim: usize) -> Result<Vec<TensorViewMut<'_, T>>> {
        self.pieces_mut(|v| v.split_sizes(sizes, dim))
    }

    /// Cut along dimension `dim` before entry `at`, into two views, each to be written.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when there is no such dimension, or `at` is beyond its end.
    pub fn split_at_mut(
        &mut self,
        at: usize,
        dim: usize,
    ) -> Result<(TensorViewMut<'_, T>, TensorViewMut<'_, T>)> {
        let whole = *self.raw.view;
        let n = whole.shape().get(dim).copied().unwrap_or(0);
        let (left, right) = (whole.narrow(dim, 0, at)?, whole.narrow(dim, at, n - at)?);
        let (keep, grad) = (self.storage(), self.raw.grad.derived());
        let of = |view: View| Tensor::of(Raw { keep, view: view.into(), grad });
        Ok((of(left), of(right)))
    }

    /// Each entry of dimension `dim`, which disappears, to be written.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when there is no such dimension.
    pub fn unbind_mut(&mut self, dim: usize) -> Result<Vec<TensorViewMut<'_, T>>> {
        self.pieces_mut(|v| v.unbind(dim))
    }
}

/// The elements of a view, each once.
struct Mutable<'a, T: Element> {
    tensor: TensorViewMut<'a, T>,
    positions: Positions,
    elements: PhantomData<&'a mut T>,
}

impl<'a, T: Element> Iterator for Mutable<'a, T> {
    type Item = &'a mut T;

    #[inline]
    fn next(&mut self) -> Option<&'a mut T> {
        let at = self.positions.next()?;
        // SAFETY: the view is this iterator's for 'a, and gives each position once, no two of which are one element.
        unsafe { self.tensor.raw.keep.slice_mut(at, 1) }.first_mut()
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.positions.size_hint()
    }
    #[inline]
    fn fold<B, F: FnMut(B, &'a mut T) -> B>(self, init: B, mut f: F) -> B {
        let storage = self.tensor.raw.keep;
        self.positions.fold(init, |all, at| {
            // SAFETY: as for `next`.
            let element = unsafe { storage.slice_mut(at, 1) };
            f(all, &mut element[0])
        })
    }
}
impl<T: Element> ExactSizeIterator for Mutable<'_, T> {}

impl<'a, T: Element> Tensor<T, BorrowedMut<'a>> {
    /// Its elements, as long as what was borrowed is.
    ///
    /// # Errors
    /// As [`as_mut_slice`](Self::as_mut_slice).
    pub fn into_mut_slice(self) -> Result<&'a mut [T]> {
        self.raw.contiguous()?;
        // SAFETY: as for `as_mut_slice`; the view, which is used up, was the only one of its elements for 'a.
        Ok(unsafe { self.raw.keep.slice_mut(self.offset(), self.len()) })
    }
}

/// One element, as `t[[row, column]] = 1.0`.
///
/// # Panics
/// If there is no such element, as indexing a slice.
impl<T: Element, M: Writable, const N: usize> IndexMut<[usize; N]> for Tensor<T, M> {
    #[inline]
    fn index_mut(&mut self, index: [usize; N]) -> &mut T {
        match self.raw.view.position(&index) {
            // SAFETY: as for `as_mut_slice`; the position is the view's.
            Ok(at) => &mut (unsafe { self.storage().slice_mut(at, 1) })[0],
            Err(e) => panic!("{e}"),
        }
    }
}
