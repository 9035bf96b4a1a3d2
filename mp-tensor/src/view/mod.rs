//! Offset, shape and strides of a tensor in its storage. This module accesses no memory.
//!
//! Strides are never negative, as in torch.

pub(crate) mod dims;
pub(crate) mod recent;
mod views;

use serde::{Deserialize, Serialize};

use crate::view::dims::Dims;
use mp_core::{Error, Result};

/// Maximum number of dimensions of a tensor.
pub const MAX_RANK: usize = 8;

/// Maximum number of elements of a tensor. More than any memory has, and small enough that sums don't
/// overflow.
const MAX_LEN: usize = isize::MAX as usize / 8;

/// Offset, shape and strides, in elements.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub(crate) offset: usize,
    pub(crate) shape: Dims<usize>,
    pub(crate) strides: Dims<isize>,
    /// Product of the shape.
    len: usize,
    /// Number of elements if all elements are consecutive in row-major order, otherwise 0.
    straight: usize,
    /// `true` if all strides, also in dimensions with one entry, equal the strides of a new tensor of this
    /// shape.
    row_major: bool,
}

/// A serialized view: offset, shape, and strides unless they are row-major. The type is a tuple, because
/// codecs would write the names of fields.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) struct SerializedView(usize, Dims<usize>, Dims<isize>);

/// Returns the error of a shape or strides that don't match.
pub(crate) fn misfit<T>(why: String) -> Result<T> {
    Err(Error::Shape(why))
}

/// Returns the error of an index, a range or a dimension that is out of bounds.
pub(crate) fn outside<T>(why: String) -> Result<T> {
    Err(Error::OutOfBounds(why))
}

/// Returns the error of an invalid argument.
pub(crate) fn invalid<T>(why: String) -> Result<T> {
    Err(Error::InvalidArgument(why))
}

/// Returns the error of an exceeded limit.
pub(crate) fn too_many<T>(why: String) -> Result<T> {
    Err(Error::LimitExceeded(why))
}

/// Returns the number of elements of a shape.
///
/// # Errors
/// If the number is above the maximum for a tensor.
pub fn count(shape: &[usize]) -> Result<usize> {
    let product = shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(d));
    let n = product.or_else(|| shape.contains(&0).then_some(0));
    match n {
        Some(n) if n <= MAX_LEN => Ok(n),
        _ => too_many(format!("shape {shape:?} has too many elements")),
    }
}

/// Returns the strides of a row-major view.
pub(crate) fn row_major(shape: &Dims<usize>) -> Dims<isize> {
    let mut strides = Dims::filled(shape.len(), 1);
    let mut stride = 1_isize;
    for (to, &n) in strides.iter_mut().zip(shape.iter()).rev() {
        *to = stride;
        // The strides of an empty view are never used.
        stride = stride.saturating_mul(isize::try_from(n.max(1)).unwrap_or(isize::MAX));
    }
    strides
}

impl View {
    /// Empty view of one dimension.
    pub(crate) const NONE: Self =
        Self { offset: 0, shape: Dims::one(0), strides: Dims::one(1), len: 0, straight: 0, row_major: true };

    /// Creates a row-major view from the first element on.
    pub fn contiguous(shape: &[usize]) -> Result<Self> {
        Self::row_major(0, shape)
    }

    /// Creates a row-major view from element `offset` on.
    pub fn row_major(offset: usize, shape: &[usize]) -> Result<Self> {
        let shape = Dims::from_slice(shape)?;
        let len = count(&shape)?;
        Ok(Self { offset, shape, strides: row_major(&shape), len, straight: len, row_major: true })
    }

    /// Creates a view with as many strides as dimensions, and computes its derived fields.
    pub(crate) fn new(offset: usize, shape: Dims<usize>, strides: Dims<isize>) -> Result<Self> {
        let mut view = Self { offset, shape, strides, len: 0, straight: 0, row_major: false };
        view.changed()?;
        Ok(view)
    }

    /// Recomputes the derived fields after a change of the shape or the strides.
    pub(crate) fn changed(&mut self) -> Result<()> {
        // Compares each stride with the row-major one, except (for `in_a_row`) in dimensions of one entry,
        // whose stride is never used.
        let (mut stride, mut in_a_row, mut row_major, mut empty) = (1_isize, true, true, false);
        for (&n, &here) in self.shape.iter().zip(self.strides.iter()).rev() {
            in_a_row &= n == 1 || here == stride;
            row_major &= here == stride;
            empty |= n == 0;
            // The strides of an empty view are never used.
            stride = stride.saturating_mul(isize::try_from(n.max(1)).unwrap_or(isize::MAX));
        }
        // The stride is now the number of elements, or too large if it was saturated.
        self.len = match stride as usize {
            _ if empty => 0,
            len if len <= MAX_LEN => len,
            _ => count(&self.shape)?,
        };
        self.straight = if in_a_row { self.len } else { 0 };
        self.row_major = row_major;
        Ok(())
    }

    /// Returns the number of entries of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// Returns the distance of neighbouring elements along each dimension.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }
    /// Returns the index of the first element in the storage.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }
    /// Returns the number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }
    /// Returns `true` if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns `true` if the elements are consecutive in row-major order.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.straight == self.len
    }

    /// Returns `true` if this view equals [`row_major`](Self::row_major) of `offset` and `shape`.
    #[inline]
    pub(crate) fn is_row_major(&self, offset: usize, shape: impl ExactSizeIterator<Item = usize>) -> bool {
        // Compares one by one, because comparing slices is a function call.
        self.row_major
            && self.offset == offset
            && self.shape.len() == shape.len()
            && shape.zip(self.shape.iter()).all(|(n, here)| n == *here)
    }

    /// Returns the index after the last element of the view in the storage, or `None` if it overflows.
    #[inline]
    pub fn end(&self) -> Option<usize> {
        if self.is_contiguous() { self.offset.checked_add(self.len) } else { self.end_of_strided() }
    }

    #[inline(never)]
    fn end_of_strided(&self) -> Option<usize> {
        if self.len == 0 {
            return Some(self.offset);
        }
        let far = self.shape.iter().zip(self.strides.iter());
        let last =
            far.fold(self.offset as u128, |at, (&n, &s)| at + (n as u128 - 1) * s.unsigned_abs() as u128);
        usize::try_from(last + 1).ok()
    }

    /// Returns `true` if all elements of the view are within a storage of `elements` elements.
    pub fn fits(&self, elements: usize) -> bool {
        self.end().is_some_and(|end| end <= elements)
    }

    /// Returns `true` if no two indices refer to the same element, so that an owner may write the elements.
    ///
    /// Each stride has to exceed the reach of all smaller strides. This holds for all views of a row-major
    /// tensor except results of [`expand`](Self::expand), [`unfold`](Self::unfold) and
    /// [`from_parts`](Self::from_parts).
    pub fn is_injective(&self) -> bool {
        if self.len < 2 || self.is_contiguous() {
            return true;
        }
        let mut dims: Vec<(u128, u128)> = self
            .shape
            .iter()
            .zip(self.strides.iter())
            .filter(|(n, _)| **n > 1)
            .map(|(&n, &s)| (s.unsigned_abs() as u128, n as u128))
            .collect();
        dims.sort_unstable();
        let mut reach = 0_u128;
        dims.into_iter().all(|(stride, n)| {
            let beyond = stride > reach;
            reach = reach.saturating_add(stride.saturating_mul(n - 1));
            beyond
        })
    }

    /// Returns the storage index of the element with these coordinates.
    pub(crate) fn position(&self, index: &[usize]) -> Result<usize> {
        if index.len() != self.rank() {
            return outside(format!(
                "index {index:?} has {} numbers, and shape {:?} {} dimensions: one number for each",
                index.len(),
                self.shape(),
                self.rank()
            ));
        }
        if index.iter().zip(self.shape()).any(|(i, n)| i >= n) {
            return outside(format!("index {index:?} is outside of shape {:?}", self.shape()));
        }
        let far: isize = index.iter().zip(self.strides()).map(|(&i, s)| i as isize * s).sum();
        Ok(self.offset + far as usize)
    }

    /// Returns the storage index of the `i`-th element, if the view is contiguous and has that element.
    #[inline]
    pub(crate) fn straight(&self, i: usize) -> Option<usize> {
        (i < self.straight).then(|| self.offset + i)
    }

    /// Returns the storage index of the `i`-th element in row-major order. `i` is less than `len`.
    #[inline]
    pub fn nth(&self, i: usize) -> usize {
        self.straight(i).unwrap_or_else(|| self.nth_apart(i))
    }

    #[inline(never)]
    fn nth_apart(&self, mut i: usize) -> usize {
        let mut at = self.offset;
        for (&n, &stride) in self.shape.iter().zip(self.strides.iter()).rev() {
            at += (i % n) * stride as usize;
            i /= n;
        }
        at
    }

    /// Returns the storage indices of all elements, in row-major order.
    pub fn positions(&self) -> Positions {
        let mut view = *self;
        if self.is_contiguous() {
            // Iterates over one dimension instead of many.
            view.shape.truncate(0);
            view.strides.truncate(0);
            _ = view.shape.insert(0, self.len);
            _ = view.strides.insert(0, 1);
        }
        Positions { at: self.offset, left: self.len, index: [0; MAX_RANK], view }
    }

    pub(crate) fn to_wire(self) -> SerializedView {
        SerializedView(self.offset, self.shape, if self.row_major { Dims::new() } else { self.strides })
    }

    /// Returns the strides, or an empty list if they are row-major.
    #[inline]
    pub(crate) fn unusual_strides(&self) -> &[isize] {
        if self.row_major { &[] } else { &self.strides }
    }

    /// Creates a view from untrusted numbers. Empty strides mean row-major. The caller checks the view
    /// against its storage ([`within`](Self::within)).
    pub(crate) fn from_elsewhere(offset: usize, shape: Dims<usize>, strides: Dims<isize>) -> Result<Self> {
        if strides.is_empty() {
            return Self::row_major(offset, &shape);
        }
        if strides.len() != shape.len() {
            return misfit(format!("{} strides for {} dimensions", strides.len(), shape.len()));
        }
        if strides.iter().any(|s| *s < 0) {
            return Err(Error::Unsupported(format!(
                "strides {strides:?}: there are no negative ones; copy the tensor"
            )));
        }
        Self::new(offset, shape, strides)
    }

    /// Checks that the view is within a storage of `elements` elements.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if the view exceeds the storage.
    #[inline]
    pub fn within(&self, elements: usize) -> Result<()> {
        if self.fits(elements) { Ok(()) } else { Err(self.beyond(elements)) }
    }

    /// Returns the error of a view that exceeds a storage of `elements` elements.
    #[cold]
    pub fn beyond(&self, elements: usize) -> Error {
        let Self { offset, shape, strides, .. } = self;
        Error::OutOfBounds(format!(
            "offset {offset}, shape {shape:?} and strides {strides:?} lie outside of a storage \
             of {elements} elements"
        ))
    }

    /// Creates a view from a serialized one, checked against its storage.
    pub(crate) fn from_wire(
        &SerializedView(offset, shape, strides): &SerializedView,
        elements: usize,
    ) -> Result<Self> {
        let view = Self::from_elsewhere(offset, shape, strides)?;
        view.within(elements)?;
        Ok(view)
    }

    /// Creates a view from a user's numbers, checked against its storage. Strides are not negative.
    ///
    /// # Errors
    /// [`Error::Shape`] if the numbers of strides and dimensions differ, [`Error::Unsupported`] for negative
    /// strides, [`Error::OutOfBounds`] if the view exceeds `elements`, [`Error::LimitExceeded`] for too many
    /// dimensions or elements.
    pub fn from_parts(offset: usize, shape: &[usize], strides: &[isize], elements: usize) -> Result<Self> {
        if strides.len() != shape.len() {
            return misfit(format!("{} strides for {} dimensions", strides.len(), shape.len()));
        }
        Self::from_wire(
            &SerializedView(offset, Dims::from_slice(shape)?, Dims::from_slice(strides)?),
            elements,
        )
    }
}

/// Iterator over the storage indices of a view's elements, in row-major order.
#[derive(Debug)]
pub struct Positions {
    view: View,
    at: usize,
    left: usize,
    index: [usize; MAX_RANK],
}

impl Iterator for Positions {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let here = self.at;
        for d in (0..self.view.rank()).rev() {
            let (n, stride) = (self.view.shape[d], self.view.strides[d] as usize);
            self.index[d] += 1;
            if self.index[d] < n {
                self.at += stride;
                break;
            }
            self.index[d] = 0;
            self.at -= (n - 1) * stride;
        }
        Some(here)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }

    /// Iterates row by row, with a plain inner loop.
    fn fold<B, F: FnMut(B, usize) -> B>(mut self, mut all: B, mut f: F) -> B {
        while let (Some(last), true) = (self.view.rank().checked_sub(1), self.left > 0) {
            let (n, stride) = (self.view.shape[last], self.view.strides[last] as usize);
            let row = n - self.index[last];
            let first = self.at;
            all = (0..row - 1).fold(all, |all, i| f(all, first + i * stride));
            // The last element of the row uses `next`, which continues with the next row.
            self.at = first + (row - 1) * stride;
            self.index[last] = n - 1;
            self.left -= row - 1;
            if let Some(at) = self.next() {
                all = f(all, at);
            }
        }
        if self.left > 0 { f(all, self.at) } else { all }
    }
}

impl ExactSizeIterator for Positions {}
