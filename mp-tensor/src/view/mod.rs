//! Which elements of a storage a tensor consists of: offset, shape, strides. Nothing here touches memory.
//!
//! Strides are never negative, as torch's.

pub(crate) mod dims;
pub(crate) mod recent;
mod views;

use serde::{Deserialize, Serialize};

use crate::view::dims::Dims;
use mp_core::{Error, Result};

/// The most dimensions a tensor may have.
pub const MAX_RANK: usize = 8;

/// The most elements. No memory has that many; sums of at most this many can't overflow.
const MAX_LEN: usize = isize::MAX as usize / 8;

/// Offset, shape and strides, all counted in elements.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub(crate) offset: usize,
    pub(crate) shape: Dims<usize>,
    pub(crate) strides: Dims<isize>,
    /// The product of the shape.
    len: usize,
    /// How many elements lie one after the other in row-major order, from the offset on: all of them, or none.
    straight: usize,
    /// Whether, besides, all strides are those of a new tensor of this shape, those of dimensions of one entry included.
    row_major: bool,
}

/// A view as it travels: offset, shape, and strides if they are not those of a row-major one. A tuple, since codecs
/// write the names of fields.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) struct Wire(usize, Dims<usize>, Dims<isize>);

/// A shape or strides that do not fit.
pub(crate) fn misfit<T>(why: String) -> Result<T> {
    Err(Error::Shape(why))
}

/// An index, a range or a dimension that is not there.
pub(crate) fn outside<T>(why: String) -> Result<T> {
    Err(Error::OutOfBounds(why))
}

/// A number that is possible for no tensor.
pub(crate) fn invalid<T>(why: String) -> Result<T> {
    Err(Error::InvalidArgument(why))
}

/// More than a tensor can have.
pub(crate) fn too_many<T>(why: String) -> Result<T> {
    Err(Error::LimitExceeded(why))
}

/// How many elements a shape has.
///
/// # Errors
/// When they are more than a tensor may have.
pub fn count(shape: &[usize]) -> Result<usize> {
    let empty = shape.contains(&0);
    let n = shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(d)).or(empty.then_some(0));
    match n {
        Some(n) if n <= MAX_LEN => Ok(n),
        _ => too_many(format!("shape {shape:?} has too many elements")),
    }
}

/// The strides of a row-major view.
pub(crate) fn row_major(shape: &Dims<usize>) -> Dims<isize> {
    let mut strides = Dims::filled(shape.len(), 1);
    let mut stride = 1_isize;
    for (to, &n) in strides.iter_mut().zip(shape.iter()).rev() {
        *to = stride;
        // Of an empty view no stride is ever used.
        stride = stride.saturating_mul(isize::try_from(n.max(1)).unwrap_or(isize::MAX));
    }
    strides
}

impl View {
    /// Of no element, in one dimension.
    pub(crate) const NONE: Self =
        Self { offset: 0, shape: Dims::one(0), strides: Dims::one(1), len: 0, straight: 0, row_major: true };

    /// A row-major view of everything.
    pub fn contiguous(shape: &[usize]) -> Result<Self> {
        Self::row_major(0, shape)
    }

    /// A row-major view from an element on.
    pub fn row_major(offset: usize, shape: &[usize]) -> Result<Self> {
        let shape = Dims::from_slice(shape)?;
        let len = count(&shape)?;
        Ok(Self { offset, shape, strides: row_major(&shape), len, straight: len, row_major: true })
    }

    /// With its number of elements checked and noted. There are as many strides as dimensions.
    pub(crate) fn new(offset: usize, shape: Dims<usize>, strides: Dims<isize>) -> Result<Self> {
        let mut view = Self { offset, shape, strides, len: 0, straight: 0, row_major: false };
        view.changed()?;
        Ok(view)
    }

    /// Notes what was changed.
    pub(crate) fn changed(&mut self) -> Result<()> {
        self.len = count(&self.shape)?;
        // The stride of a row-major view, and whether all are it: all that is ever used, and all that there are.
        let (mut stride, mut in_a_row, mut row_major) = (1_isize, true, true);
        for (&n, &here) in self.shape.iter().zip(self.strides.iter()).rev() {
            in_a_row &= n == 1 || here == stride;
            row_major &= here == stride;
            // Of an empty view no stride is ever used.
            stride = stride.saturating_mul(isize::try_from(n.max(1)).unwrap_or(isize::MAX));
        }
        self.straight = if in_a_row { self.len } else { 0 };
        self.row_major = row_major;
        Ok(())
    }

    /// How many entries each dimension has.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// How many elements apart two neighbours are, along each dimension.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }
    /// Which element the first one is.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }
    /// How many elements it has.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// How many dimensions it has.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Whether the elements lie one after the other in row-major order.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.straight == self.len
    }

    /// Whether it is what [`row_major`](Self::row_major) makes of these.
    #[inline]
    pub(crate) fn is_row_major(&self, offset: usize, shape: impl ExactSizeIterator<Item = usize>) -> bool {
        // One by one: to compare slices is a call.
        self.row_major
            && self.offset == offset
            && self.shape.len() == shape.len()
            && shape.zip(self.shape.iter()).all(|(n, here)| n == *here)
    }

    /// Behind the last element; `None` if that is beyond all memory.
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

    /// Whether all of it lies within `elements`.
    pub fn fits(&self, elements: usize) -> bool {
        self.end().is_some_and(|end| end <= elements)
    }

    /// Whether no two indices are the same element, so that the elements may be written by one owner.
    ///
    /// Each stride has to reach beyond all that the smaller ones reach. That holds for whatever views of a row-major tensor
    /// there are without [`expand`](Self::expand), [`unfold`](Self::unfold) and [`as_strided`](Self::as_strided).
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

    /// Where the element with these coordinates is.
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

    /// Where the `i`-th element is, if it is one of a contiguous view.
    #[inline]
    pub(crate) fn straight(&self, i: usize) -> Option<usize> {
        (i < self.straight).then(|| self.offset + i)
    }

    /// Where the `i`-th element in row-major order is; `i` is less than `len`.
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

    /// Where its elements are, in row-major order.
    pub fn positions(&self) -> Positions {
        let mut view = *self;
        if self.is_contiguous() {
            // One dimension instead of many.
            view.shape.truncate(0);
            view.strides.truncate(0);
            _ = view.shape.insert(0, self.len);
            _ = view.strides.insert(0, 1);
        }
        Positions { at: self.offset, left: self.len, index: [0; MAX_RANK], view }
    }

    pub(crate) fn to_wire(self) -> Wire {
        Wire(self.offset, self.shape, if self.row_major { Dims::new() } else { self.strides })
    }

    /// Its strides, if they are not those of a row-major view of its shape; else none.
    #[inline]
    pub(crate) fn unusual_strides(&self) -> &[isize] {
        if self.row_major { &[] } else { &self.strides }
    }

    /// A view that came from elsewhere, of no storage yet: see [`within`](Self::within). No strides are those of a
    /// row-major one.
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

    /// # Errors
    /// [`Error::OutOfBounds`] when some of it lies outside of a storage of `elements` elements.
    #[inline]
    pub fn within(&self, elements: usize) -> Result<()> {
        if self.fits(elements) { Ok(()) } else { Err(self.beyond(elements)) }
    }

    /// Why it can't be a view of a storage with that many elements.
    #[cold]
    pub fn beyond(&self, elements: usize) -> Error {
        let Self { offset, shape, strides, .. } = self;
        Error::OutOfBounds(format!(
            "offset {offset}, shape {shape:?} and strides {strides:?} lie outside of a storage of {elements} elements"
        ))
    }

    /// A view that came from elsewhere, checked against the storage it is of.
    pub(crate) fn from_wire(&Wire(offset, shape, strides): &Wire, elements: usize) -> Result<Self> {
        let view = Self::from_elsewhere(offset, shape, strides)?;
        view.within(elements)?;
        Ok(view)
    }

    /// A view that a user describes, checked against the storage it is of. There are no negative strides.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of strides than of dimensions, [`Error::Unsupported`] for negative ones,
    /// [`Error::OutOfBounds`] if it lies outside of `elements`, [`Error::LimitExceeded`] for too many dimensions or elements.
    pub fn from_parts(offset: usize, shape: &[usize], strides: &[isize], elements: usize) -> Result<Self> {
        if strides.len() != shape.len() {
            return misfit(format!("{} strides for {} dimensions", strides.len(), shape.len()));
        }
        Self::from_wire(&Wire(offset, Dims::from_slice(shape)?, Dims::from_slice(strides)?), elements)
    }
}

/// The positions of a view's elements, in row-major order.
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

    /// Row by row, so that the inner loop is a plain one.
    fn fold<B, F: FnMut(B, usize) -> B>(mut self, mut all: B, mut f: F) -> B {
        while let (Some(last), true) = (self.view.rank().checked_sub(1), self.left > 0) {
            let (n, stride) = (self.view.shape[last], self.view.strides[last] as usize);
            let row = n - self.index[last];
            let first = self.at;
            all = (0..row - 1).fold(all, |all, i| f(all, first + i * stride));
            // The last one of the row by the ordinary way, which goes on to the next row.
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
