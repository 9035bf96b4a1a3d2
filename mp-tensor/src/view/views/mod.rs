//! Methods that change a view, so that it selects, reorders or repeats elements. After an error, the view
//! must not be used.

use std::ops::{Bound, RangeBounds};

use crate::view::dims::Dims;
use crate::view::{View, invalid, misfit, outside, row_major, too_many};
use mp_core::Result;

/// Returns the ends of a range of indices below `n`.
///
/// # Errors
/// If the range is out of bounds or reversed.
fn ends(range: &impl RangeBounds<usize>, n: usize, what: &str) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(&s) => Some(s),
        Bound::Excluded(&s) => s.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&e) => e.checked_add(1),
        Bound::Excluded(&e) => Some(e),
        Bound::Unbounded => Some(n),
    };
    match (start, end) {
        (Some(s), Some(e)) if s <= e && e <= n => Ok((s, e)),
        _ => {
            let (s, e) = (range.start_bound(), range.end_bound());
            outside(format!("{what} {s:?} to {e:?}, of {n}"))
        }
    }
}

/// Collects `n` views. Returns an error if there is not enough memory for `n` views: a dimension of an empty
/// tensor can have any number of entries.
fn pieces(n: usize, all: impl Iterator<Item = Result<View>>) -> Result<Vec<View>> {
    let mut pieces = Vec::new();
    if pieces.try_reserve_exact(n).is_err() {
        return too_many(format!("{n} views at once, which is more than there is memory for"));
    }
    for piece in all {
        pieces.push(piece?);
    }
    Ok(pieces)
}

impl View {
    fn dim(&self, dim: usize) -> Result<usize> {
        match self.shape.get(dim) {
            Some(&n) => Ok(n),
            None => outside(format!("dimension {dim} of a tensor with {} of them", self.rank())),
        }
    }

    /// Returns this view after the change `change`, or the error of that change.
    #[inline]
    pub fn with(mut self, change: impl FnOnce(&mut Self) -> Result<()>) -> Result<Self> {
        change(&mut self)?;
        Ok(self)
    }

    /// Keeps `len` entries of a dimension, from `start` on.
    pub fn narrow(&mut self, dim: usize, start: usize, len: usize) -> Result<()> {
        self.cut(dim, start, len)?;
        self.changed()
    }

    /// Keeps `len` entries of a dimension, from `start` on, without recomputing the derived fields.
    fn cut(&mut self, dim: usize, start: usize, len: usize) -> Result<()> {
        let n = self.dim(dim)?;
        if start.checked_add(len).is_none_or(|end| end > n) {
            return outside(format!("entries {start} + {len} of dimension {dim}, which has {n}"));
        }
        self.shape[dim] = len;
        // An empty view keeps its offset, which must not leave the storage.
        if !self.shape.contains(&0) {
            self.offset += start * self.strides[dim] as usize;
        }
        Ok(())
    }

    /// Keeps every `step`-th entry of a range of a dimension.
    pub fn slice(&mut self, dim: usize, range: impl RangeBounds<usize>, step: isize) -> Result<()> {
        let n = self.dim(dim)?;
        let Ok(step) = usize::try_from(step) else {
            return invalid(format!("step {step}: it must be greater than zero; copy to reverse a tensor"));
        };
        if step == 0 {
            return invalid("step 0: it must be greater than zero".into());
        }
        let (start, end) = ends(&range, n, &format!("entries of dimension {dim} from"))?;
        self.cut(dim, start, end - start)?;
        self.shape[dim] = (end - start).div_ceil(step);
        if self.shape[dim] > 1 {
            // With more than one entry, the new stride is the distance of two elements in the storage, which
            // fits.
            let stride = &mut self.strides[dim];
            *stride = stride.saturating_mul(isize::try_from(step).unwrap_or(isize::MAX));
        }
        self.changed()
    }

    /// Selects one entry of a dimension, and removes the dimension.
    pub fn select(&mut self, dim: usize, index: usize) -> Result<()> {
        let n = self.dim(dim)?;
        if index >= n {
            return outside(format!("entry {index} of dimension {dim}, which has {n}"));
        }
        let stride = self.strides[dim] as usize;
        self.shape.remove(dim);
        self.strides.remove(dim);
        self.changed()?;
        // An empty view keeps its offset, which must not leave the storage.
        if self.len > 0 {
            self.offset += index * stride;
        }
        Ok(())
    }

    /// Exchanges two dimensions.
    pub fn transpose(&mut self, a: usize, b: usize) -> Result<()> {
        self.dim(a)?;
        self.dim(b)?;
        self.shape.swap(a, b);
        self.strides.swap(a, b);
        self.changed()
    }

    /// Transposes a matrix. Vectors and scalars are unchanged.
    pub fn t(&mut self) -> Result<()> {
        match self.rank() {
            0 | 1 => Ok(()),
            2 => self.transpose(0, 1),
            n => misfit(format!("t() of a tensor with {n} dimensions; use permute() for more than two")),
        }
    }

    /// Reorders the dimensions.
    pub fn permute(&mut self, order: &[usize]) -> Result<()> {
        let mut seen = 0_u32;
        order.iter().filter(|d| **d < self.rank()).for_each(|d| seen |= 1 << d);
        if order.len() != self.rank() || seen.count_ones() as usize != self.rank() {
            return invalid(format!("order {order:?} does not name each of {} dimensions once", self.rank()));
        }
        let before = *self;
        for (to, &from) in order.iter().enumerate() {
            self.shape[to] = before.shape[from];
            self.strides[to] = before.strides[from];
        }
        self.changed()
    }

    /// Changes the shape and keeps the order of the elements, if strides can express it.
    pub fn reshape(&mut self, shape: &[usize]) -> Result<()> {
        let v = Self::contiguous(shape)?;
        if v.len() != self.len() {
            return misfit(format!(
                "shape {:?} can't become {shape:?}: other number of elements ({} and {})",
                self.shape(),
                self.len(),
                v.len()
            ));
        }
        let strides = if self.is_contiguous() { Some(v.strides) } else { self.strides_for(&v.shape) };
        match strides {
            Some(strides) => {
                *self = Self::new(self.offset, v.shape, strides)?;
                Ok(())
            }
            None => misfit(format!(
                "shape {:?} with strides {:?} can't become {shape:?} without a copy; call contiguous() first",
                self.shape(),
                self.strides()
            )),
        }
    }

    /// Returns the strides with which a view of shape `shape` has the same elements in the same order.
    /// Returns `None` if no strides are suitable. Both shapes have the same number of elements, at least one.
    ///
    /// Consecutive dimensions whose elements are evenly spaced form a run. The elements of each run have to
    /// be the elements of one or several dimensions of the new shape.
    fn strides_for(&self, shape: &Dims<usize>) -> Option<Dims<isize>> {
        let mut strides = row_major(shape);
        let mut new = shape.len();
        let mut old = self.rank();
        while old > 0 {
            // The run that ends before dimension `old`.
            let inner = self.strides[old - 1];
            let mut run = self.shape[old - 1];
            old -= 1;
            while old > 0 && (self.shape[old - 1] == 1 || self.strides[old - 1] == run as isize * inner) {
                run *= self.shape[old - 1];
                old -= 1;
            }
            let mut done = 1;
            while new > 0 && (done < run || shape[new - 1] == 1) {
                new -= 1;
                strides[new] = done as isize * inner;
                done *= shape[new];
            }
            if done != run {
                return None;
            }
        }
        Some(strides)
    }

    /// Merges a range of dimensions into one.
    pub fn flatten(&mut self, dims: impl RangeBounds<usize>) -> Result<()> {
        let (start, end) = ends(&dims, self.rank(), "dimensions from")?;
        let mut shape = Dims::from_slice(&self.shape()[..start])?;
        let joined = self.shape()[start..end].iter().try_fold(1_usize, |n, &d| n.checked_mul(d));
        let Some(joined) = joined else {
            return too_many(format!("dimensions {start} to {end} have too many entries"));
        };
        shape.insert(start, joined)?;
        for &n in &self.shape()[end..] {
            let at = shape.len();
            shape.insert(at, n)?;
        }
        self.reshape(&shape)
    }

    /// Removes the dimensions of one entry.
    pub fn squeeze(&mut self) -> Result<()> {
        for d in (0..self.rank()).rev() {
            if self.shape[d] == 1 {
                self.shape.remove(d);
                self.strides.remove(d);
            }
        }
        self.changed()
    }

    /// Removes this dimension, if it has one entry.
    pub fn squeeze_dim(&mut self, dim: usize) -> Result<()> {
        if self.dim(dim)? == 1 {
            self.shape.remove(dim);
            self.strides.remove(dim);
        }
        self.changed()
    }

    /// Inserts a dimension of one entry.
    pub fn unsqueeze(&mut self, dim: usize) -> Result<()> {
        if dim > self.rank() {
            return outside(format!("a new dimension {dim} of a tensor with {} of them", self.rank()));
        }
        let n = self.shape.get(dim).map_or(1, |n| isize::try_from(*n).unwrap_or(isize::MAX));
        let stride = self.strides.get(dim).map_or(1, |s| s.saturating_mul(n));
        self.shape.insert(dim, 1)?;
        self.strides.insert(dim, stride)?;
        self.changed()
    }

    /// Repeats dimensions of one entry, and prepends new ones.
    pub fn expand(&mut self, shape: &[usize]) -> Result<()> {
        let more = shape.len().checked_sub(self.rank());
        let fits = |more: usize| self.shape.iter().zip(&shape[more..]).all(|(&n, &to)| n == to || n == 1);
        let Some(more) = more.filter(|more| fits(*more)) else {
            return misfit(format!("shape {:?} can't be expanded to {shape:?}", self.shape()));
        };
        let before = *self;
        self.shape = Dims::from_slice(shape)?;
        self.strides = row_major(&self.shape);
        for (d, &to) in shape.iter().enumerate() {
            let same = d >= more && before.shape[d - more] == to;
            self.strides[d] = if same { before.strides[d - more] } else { 0 };
        }
        self.changed()
    }

    /// Makes windows of `size` entries of a dimension, `step` apart, in a new last dimension.
    pub fn unfold(&mut self, dim: usize, size: usize, step: usize) -> Result<()> {
        let n = self.dim(dim)?;
        if step == 0 {
            return invalid(format!("windows of dimension {dim} with step 0: it must be greater than zero"));
        }
        if size > n {
            return misfit(format!("windows of {size} entries of dimension {dim}, which has {n}"));
        }
        let (stride, end) = (self.strides[dim], self.rank());
        // If another dimension is empty, this one may be arbitrarily long.
        let Some(windows) = ((n - size) / step).checked_add(1) else {
            return too_many(format!("windows of no entries of dimension {dim}, which has {n}: too many"));
        };
        self.shape[dim] = windows;
        if self.shape[dim] > 1 {
            self.strides[dim] = stride.saturating_mul(isize::try_from(step).unwrap_or(isize::MAX));
        }
        self.shape.insert(end, size)?;
        self.strides.insert(end, stride)?;
        self.changed()
    }

    /// Keeps the elements whose indices in two dimensions differ by `offset`, as the last dimension.
    pub fn diagonal(&mut self, offset: isize, a: usize, b: usize) -> Result<()> {
        if a == b {
            return invalid(format!("a diagonal of dimension {a} with itself"));
        }
        let (rows, columns) = (self.dim(a)?, self.dim(b)?);
        let far = offset.unsigned_abs();
        let (row, column) = if offset < 0 { (far, 0) } else { (0, far) };
        let n = rows.saturating_sub(row).min(columns.saturating_sub(column));
        if n == 0 {
            // The start of an empty diagonal may be out of bounds, and is not used.
            self.cut(a, 0, 0)?;
        } else {
            self.cut(a, row, n)?;
            self.cut(b, column, n)?;
        }
        let stride = self.strides[a].saturating_add(self.strides[b]);
        for d in [a.max(b), a.min(b)] {
            self.shape.remove(d);
            self.strides.remove(d);
        }
        let end = self.rank();
        self.shape.insert(end, n)?;
        self.strides.insert(end, stride)?;
        self.changed()
    }

    /// Cuts a dimension into `chunks` views of equal length; the last one may be shorter.
    pub fn chunk(self, chunks: usize, dim: usize) -> Result<Vec<Self>> {
        let n = self.dim(dim)?;
        if chunks == 0 {
            return invalid(format!("no chunks along dimension {dim}"));
        }
        self.split(n.div_ceil(chunks).max(1), dim)
    }

    /// Cuts a dimension into views of `size` entries; the last one may be shorter.
    pub fn split(self, size: usize, dim: usize) -> Result<Vec<Self>> {
        let n = self.dim(dim)?;
        if size == 0 {
            return invalid(format!("pieces of no entries along dimension {dim}"));
        }
        let at = (0..n.max(1)).step_by(size);
        pieces(n.max(1).div_ceil(size), at.map(|at| self.with(|v| v.narrow(dim, at, size.min(n - at)))))
    }

    /// Cuts a dimension into views of these sizes.
    pub fn split_sizes(self, sizes: &[usize], dim: usize) -> Result<Vec<Self>> {
        let n = self.dim(dim)?;
        let sum = sizes.iter().try_fold(0_usize, |sum, &size| sum.checked_add(size));
        if sum != Some(n) {
            return misfit(format!("sizes {sizes:?} don't add up to the {n} entries of dimension {dim}"));
        }
        let mut at = 0;
        let pieces = sizes.iter().map(|&size| {
            let piece = self.with(|v| v.narrow(dim, at, size));
            at += size;
            piece
        });
        pieces.collect()
    }

    /// Returns a view of each entry of a dimension.
    pub fn unbind(self, dim: usize) -> Result<Vec<Self>> {
        let n = self.dim(dim)?;
        pieces(n, (0..n).map(|i| self.with(|v| v.select(dim, i))))
    }
}

#[cfg(test)]
mod tests;
