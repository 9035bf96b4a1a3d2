//! Which elements of a storage a tensor consists of: offset, shape, strides. Nothing here touches memory.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The most dimensions a tensor may have.
pub const MAX_RANK: usize = 8;

/// Offset, shape and strides, all counted in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct View {
    offset: usize,
    rank: usize,
    shape: [usize; MAX_RANK],
    strides: [isize; MAX_RANK],
}

/// A view as it travels: offset, shape, strides. A tuple, since codecs write the names of fields.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Wire(u64, Vec<u64>, Vec<i64>);

fn wrong<T>(why: String) -> Result<T> {
    Err(Error::Shape(why))
}

impl View {
    /// A row-major view of everything.
    pub(crate) fn contiguous(shape: &[usize]) -> Result<Self> {
        if shape.len() > MAX_RANK {
            return wrong(format!("{} dimensions; at most {MAX_RANK} are supported", shape.len()));
        }
        let empty = shape.contains(&0);
        let elements = shape.iter().try_fold(1_usize, |n, &d| n.checked_mul(d)).or(empty.then_some(0));
        if elements.is_none_or(|n| n > isize::MAX as usize / 8) {
            return wrong(format!("shape {shape:?} has too many elements"));
        }
        let mut v = Self { offset: 0, rank: shape.len(), shape: [1; MAX_RANK], strides: [1; MAX_RANK] };
        v.shape[..shape.len()].copy_from_slice(shape);
        v.restride();
        Ok(v)
    }

    fn restride(&mut self) {
        let mut stride = 1;
        for d in (0..self.rank).rev() {
            self.strides[d] = stride;
            // Of an empty view no stride is ever used.
            stride = stride.saturating_mul(self.shape[d].max(1) as isize);
        }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape[..self.rank]
    }
    pub(crate) fn strides(&self) -> &[isize] {
        &self.strides[..self.rank]
    }
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }
    pub(crate) fn numel(&self) -> usize {
        if self.shape().contains(&0) { 0 } else { self.shape().iter().product() }
    }

    /// Whether the elements lie one after the other in row-major order.
    pub(crate) fn is_contiguous(&self) -> bool {
        if self.numel() == 0 {
            return true;
        }
        let mut expected = 1;
        for d in (0..self.rank).rev() {
            if self.shape[d] != 1 {
                if self.strides[d] != expected {
                    return false;
                }
                expected *= self.shape[d] as isize;
            }
        }
        true
    }

    /// The elements lie at these positions, from the first to behind the last; `None` if one would be negative.
    fn extent(&self) -> Option<(usize, usize)> {
        if self.numel() == 0 {
            return Some((self.offset, self.offset));
        }
        let (mut low, mut high) = (self.offset as i128, self.offset as i128);
        for d in 0..self.rank {
            let reach = (self.shape[d] as i128 - 1) * self.strides[d] as i128;
            if reach < 0 { low += reach } else { high += reach }
        }
        Some((usize::try_from(low).ok()?, usize::try_from(high + 1).ok()?))
    }

    /// Whether all of it lies within `elements`.
    pub(crate) fn fits(&self, elements: usize) -> bool {
        self.extent().is_some_and(|(_, end)| end <= elements)
    }

    /// Where the element with these coordinates is.
    pub(crate) fn position(&self, index: &[usize]) -> Result<usize> {
        if index.len() != self.rank || index.iter().zip(self.shape()).any(|(i, n)| i >= n) {
            return wrong(format!("index {index:?} is outside of shape {:?}", self.shape()));
        }
        let far: isize = index.iter().zip(self.strides()).map(|(&i, s)| i as isize * s).sum();
        Ok((self.offset as isize + far) as usize)
    }

    /// Where the `i`-th element in row-major order is; `i` is less than `numel`.
    #[inline]
    pub(crate) fn nth(&self, mut i: usize) -> usize {
        let mut at = self.offset as isize;
        for d in (0..self.rank).rev() {
            at += (i % self.shape[d]) as isize * self.strides[d];
            i /= self.shape[d];
        }
        at as usize
    }

    fn dim(&self, dim: usize) -> Result<usize> {
        if dim < self.rank {
            return Ok(self.shape[dim]);
        }
        wrong(format!("dimension {dim} of a tensor with {} of them", self.rank))
    }

    /// `len` entries of a dimension, from `start` on.
    pub(crate) fn narrow(mut self, dim: usize, start: usize, len: usize) -> Result<Self> {
        let n = self.dim(dim)?;
        if start.checked_add(len).is_none_or(|end| end > n) {
            return wrong(format!("entries {start} + {len} of dimension {dim}, which has {n}"));
        }
        self.shape[dim] = len;
        // Of an empty view the offset is of no use, and must not run out of the storage.
        if self.numel() > 0 {
            self.offset = (self.offset as isize + start as isize * self.strides[dim]) as usize;
        }
        Ok(self)
    }

    /// One entry of a dimension, which disappears.
    pub(crate) fn select(self, dim: usize, index: usize) -> Result<Self> {
        let mut v = self.narrow(dim, index, 1)?;
        v.shape.copy_within(dim + 1.., dim);
        v.strides.copy_within(dim + 1.., dim);
        v.rank -= 1;
        Ok(v)
    }

    /// Two dimensions exchanged.
    pub(crate) fn transpose(mut self, a: usize, b: usize) -> Result<Self> {
        self.dim(a)?;
        self.dim(b)?;
        self.shape.swap(a, b);
        self.strides.swap(a, b);
        Ok(self)
    }

    /// Another shape for the same elements in the same order; only if they are contiguous.
    pub(crate) fn reshape(self, shape: &[usize]) -> Result<Self> {
        let mut v = Self::contiguous(shape)?;
        if v.numel() != self.numel() {
            return wrong(format!(
                "{:?} can't be reshaped to {shape:?}: other number of elements",
                self.shape()
            ));
        }
        if !self.is_contiguous() {
            return wrong(format!(
                "a view with strides {:?} can't be reshaped; copy it first",
                self.strides()
            ));
        }
        v.offset = self.offset;
        Ok(v)
    }

    pub(crate) fn to_wire(self) -> Wire {
        let shape = self.shape().iter().map(|&n| n as u64).collect();
        let strides = self.strides().iter().map(|&s| s as i64).collect();
        Wire(self.offset as u64, shape, strides)
    }

    /// A view that came from another process, checked against the storage it is of.
    pub(crate) fn from_wire(w: &Wire, elements: usize) -> Result<Self> {
        let Wire(offset, shape, strides) = w;
        let shape: Vec<_> = shape.iter().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
        let mut v = Self::contiguous(&shape)?;
        if strides.len() != v.rank {
            return wrong(format!("{} strides for {} dimensions", strides.len(), v.rank));
        }
        v.offset = usize::try_from(*offset).unwrap_or(usize::MAX);
        for (to, &from) in v.strides.iter_mut().zip(strides) {
            *to = from as isize;
        }
        if !v.fits(elements) {
            return wrong(format!(
                "a received view ({w:?}) lies outside of its storage of {elements} elements"
            ));
        }
        Ok(v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_a_matrix() {
        let v = View::contiguous(&[3, 4]).unwrap();
        assert_eq!(v.strides(), [4, 1]);
        assert_eq!((0..12).map(|i| v.nth(i)).collect::<Vec<_>>(), (0..12).collect::<Vec<_>>());
        let column = v.select(1, 2).unwrap();
        assert_eq!((column.shape(), column.strides(), column.offset()), (&[3][..], &[4][..], 2));
        assert!(!column.is_contiguous());
        let t = v.transpose(0, 1).unwrap();
        assert_eq!((0..12).map(|i| t.nth(i)).collect::<Vec<_>>(), [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]);
        assert!(t.reshape(&[12]).is_err());
        assert!(v.narrow(0, 1, 2).unwrap().is_contiguous());
        assert_eq!(v.narrow(0, 1, 2).unwrap().reshape(&[8]).unwrap().offset(), 4);
        assert_eq!(v.position(&[2, 3]).unwrap(), 11);
        assert!(v.position(&[3, 0]).is_err());
        assert!(v.narrow(0, 2, 2).is_err());
        assert!(v.narrow(0, usize::MAX, 2).is_err());
        assert!(v.select(2, 0).is_err());
    }

    #[test]
    fn empty_and_scalar() {
        let scalar = View::contiguous(&[]).unwrap();
        assert_eq!((scalar.numel(), scalar.nth(0), scalar.is_contiguous()), (1, 0, true));
        let empty = View::contiguous(&[2, 0, 3]).unwrap();
        assert_eq!((empty.numel(), empty.fits(0), empty.is_contiguous()), (0, true, true));
        assert!(View::contiguous(&[usize::MAX, 2]).is_err());
        let huge = View::contiguous(&[1 << 40, 1 << 40, 0]).unwrap();
        assert_eq!((huge.numel(), huge.transpose(0, 2).unwrap().numel(), huge.fits(0)), (0, 0, true));
        let nothing = View::contiguous(&[0, 100]).unwrap().narrow(1, 50, 2).unwrap();
        assert!(nothing.fits(0));
        assert!(View::contiguous(&[1; 9]).is_err());
    }

    #[test]
    fn hostile_views_are_refused() {
        let wire = |offset, shape: &[u64], strides: &[i64]| Wire(offset, shape.to_vec(), strides.to_vec());
        assert!(View::from_wire(&wire(0, &[4], &[1]), 4).is_ok());
        for (w, why) in [
            (wire(1, &[4], &[1]), "one too far"),
            (wire(0, &[4], &[-1]), "negative"),
            (wire(u64::MAX, &[1], &[1]), "offset"),
            (wire(0, &[u64::MAX, 2], &[1, 1]), "elements"),
            (wire(0, &[2, 2], &[i64::MAX, i64::MAX]), "strides"),
            (wire(0, &[2, 2], &[1]), "number of strides"),
            (wire(5, &[0], &[1]), "empty, but outside"),
        ] {
            assert!(View::from_wire(&w, 4).is_err(), "{why}");
        }
        assert!(View::from_wire(&wire(3, &[4], &[-1]), 4).is_ok(), "reversed");
    }
}
