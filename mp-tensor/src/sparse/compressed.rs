//! Sparse matrices with compressed rows or columns.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{index, malformed, misfit};
use crate::{Element, Frozen, Readable, Sendable, Tensor};
use mp_core::Result;

/// Compressed dimension of a matrix, and whether its entries are blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Layout {
    /// Compressed rows: stores the column of each element, row by row.
    Csr,
    /// Compressed columns: stores the row of each element, column by column.
    Csc,
    /// Compressed rows of blocks.
    Bsr,
    /// Compressed columns of blocks.
    Bsc,
}

impl Layout {
    const fn by_rows(self) -> bool {
        matches!(self, Layout::Csr | Layout::Bsr)
    }
    const fn blocks(self) -> bool {
        matches!(self, Layout::Bsr | Layout::Bsc)
    }
}

/// A sparse matrix with compressed rows or columns: torch's layouts `sparse_csr`, `sparse_csc`, `sparse_bsr`,
/// `sparse_bsc`.
///
/// ```
/// use mp_tensor::{Layout, ShareMemory, SparseCompressed};
///
/// let rows = [0_i64, 1, 1, 3].share_memory()?.freeze(); // start of each row, and the end
/// let columns = [2_i64, 0, 1].share_memory()?.freeze();
/// let values = [5_i32, 6, 7].share_memory()?.freeze();
/// let m = SparseCompressed::new(Layout::Csr, rows, columns, values, [3, 3])?;
/// assert_eq!(m.to_dense()?.as_slice()?, [0, 0, 5, 0, 0, 0, 6, 7, 0]);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// A matrix is sent as its parts, whose memory is shared.
#[derive(Clone)]
#[doc(alias("sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor"))]
#[doc(alias = "rebuild_sparse_compressed_tensor")]
pub struct SparseCompressed<T: Element, M: Sendable = Frozen> {
    layout: Layout,
    compressed: Tensor<i64, M>,
    plain: Tensor<i64, M>,
    values: Tensor<T, M>,
    shape: [usize; 2],
}

impl<T: Element, M: Sendable> SparseCompressed<T, M> {
    /// Creates a matrix from its parts. `compressed` has, for each row (or column), the index of its first
    /// element in `plain`, and as the last entry the number of elements. `plain` has the index of each
    /// element in the other dimension, in ascending order within a row (or column). `values` has the
    /// elements, or the blocks.
    ///
    /// # Errors
    /// [`Error::Shape`](mp_core::Error::Shape) if the parts don't match,
    /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if an index is out of range,
    /// [`Error::Malformed`](mp_core::Error::Malformed) if indices are out of order,
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy.
    pub fn new(
        layout: Layout,
        compressed: Tensor<i64, M>,
        plain: Tensor<i64, M>,
        values: Tensor<T, M>,
        shape: [usize; 2],
    ) -> Result<Self> {
        compressed.raw.here()?;
        let m = Self { layout, compressed, plain, values, shape };
        let n = m.plain.len();
        let dims = (m.compressed.ndim(), m.plain.ndim(), m.values.ndim());
        let wanted = (1, 1, if layout.blocks() { 3 } else { 1 });
        let whole = |(size, block): (&usize, &usize)| *block > 0 && size % block == 0;
        // Overlapping indices could describe more lines and elements than there is memory for.
        let real = m.compressed.raw.view.is_injective() && m.plain.raw.view.is_injective();
        if !real || dims != wanted || m.values.shape()[0] != n || !shape.iter().zip(&m.block()).all(whole) {
            return m.parts_differ();
        }
        let (lines, _) = m.grid();
        if m.compressed.len().checked_sub(1) != Some(lines) {
            return m.parts_differ();
        }
        if (m.compressed.load_nth(0), m.compressed.load_nth(lines)) != (0, n as i64) {
            return malformed(format!("compressed indices of {layout:?} that don't go from 0 to {n}"));
        }
        m.each(|_, _, _| Ok(()))?;
        Ok(m)
    }

    fn parts_differ<R>(&self) -> Result<R> {
        misfit(format!(
            "compressed indices of shape {:?}, plain indices of shape {:?} and values of shape {:?} \
             don't make a matrix of shape {:?} in {:?}",
            self.compressed.shape(),
            self.plain.shape(),
            self.values.shape(),
            self.shape,
            self.layout
        ))
    }

    /// Returns the shape of a block: 1 × 1 in a layout without blocks.
    fn block(&self) -> [usize; 2] {
        match *self.values.shape() {
            [_, rows, columns] => [rows, columns],
            _ => [1, 1],
        }
    }

    /// Returns the number of compressed rows (or columns), and the number of columns (or rows), counted in
    /// blocks.
    fn grid(&self) -> (usize, usize) {
        let [rows, columns] = [0, 1].map(|d| self.shape[d] / self.block()[d]);
        if self.layout.by_rows() { (rows, columns) } else { (columns, rows) }
    }

    /// Calls a function with the row, column and number of each block. All three are in range, whatever the
    /// parts contain.
    fn each(&self, mut f: impl FnMut(usize, usize, usize) -> Result<()>) -> Result<()> {
        let (lines, across) = self.grid();
        let n = self.plain.len();
        let mut start = 0;
        for line in 0..lines {
            let end = index(self.compressed.load_nth(line + 1), n + 1, "compressed index")?;
            if end < start {
                return malformed(format!("compressed indices that fall from {start} to {end}"));
            }
            let mut before = None;
            for k in start..end {
                let i = index(self.plain.load_nth(k), across, "plain index")?;
                if before.is_some_and(|before| before >= i) {
                    return malformed(format!("plain index {i} of a sparse matrix, which is not in order"));
                }
                before = Some(i);
                if self.layout.by_rows() { f(line, i, k)? } else { f(i, line, k)? }
            }
            start = end;
        }
        Ok(())
    }

    /// Returns the layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns, for each row (or column), the index of its first element in the plain indices. The last entry
    /// is the number of elements.
    #[doc(alias("crow_indices", "ccol_indices"))]
    pub fn compressed_indices(&self) -> &Tensor<i64, M> {
        &self.compressed
    }

    /// Returns the index of each element, or block, in the dimension that is not compressed.
    #[doc(alias("col_indices", "row_indices"))]
    pub fn plain_indices(&self) -> &Tensor<i64, M> {
        &self.plain
    }

    /// Returns the values: elements, or blocks.
    pub fn values(&self) -> &Tensor<T, M> {
        &self.values
    }

    /// Returns the numbers of rows and columns of the matrix.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Returns the number of stored elements, or blocks.
    #[doc(alias = "_nnz")]
    pub fn nnz(&self) -> usize {
        self.plain.len()
    }

    /// Returns the dense matrix, with zeros for elements that are not stored.
    ///
    /// # Errors
    /// The errors of [`Tensor::empty`], and [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if another
    /// process has written an invalid index into shared memory.
    pub fn to_dense(&self) -> Result<Tensor<T>> {
        let mut dense = Tensor::zeros(self.shape)?;
        let (to, width, [rows, columns]) = (dense.as_mut_slice()?, self.shape[1], self.block());
        self.each(|row, column, k| {
            for r in 0..rows {
                for c in 0..columns {
                    let v = self.values.load_nth((k * rows + r) * columns + c);
                    to[(row * rows + r) * width + column * columns + c] = v;
                }
            }
            Ok(())
        })?;
        Ok(dense)
    }
}

impl<T: Element> SparseCompressed<T, Frozen> {
    /// Creates a matrix of compressed rows from the nonzero elements of a dense matrix.
    ///
    /// # Errors
    /// [`Error::Shape`](mp_core::Error::Shape) if it does not have two dimensions, and the errors of
    /// [`Tensor::empty`].
    #[doc(alias = "to_sparse_csr")]
    pub fn from_dense<N: Readable>(dense: &Tensor<T, N>) -> Result<Self> {
        let &[rows, columns] = dense.shape() else {
            let why =
                format!("a tensor of shape {:?} is not a matrix, and can't be compressed", dense.shape());
            return Err(mp_core::Error::Shape(why));
        };
        // Allocated first: an empty matrix may have more rows than there is memory for.
        let mut starts = Tensor::<i64>::zeros([rows.saturating_add(1)])?;
        let (mut plain, mut values) = (Vec::new(), Vec::new());
        let mut all = dense.iter();
        for start in &mut starts.as_mut_slice()?[1..] {
            for (i, v) in all.by_ref().take(columns).enumerate().filter(|(_, v)| *v != T::zeroed()) {
                plain.push(i as i64);
                values.push(v);
            }
            *start = plain.len() as i64;
        }
        let line = |all: &[i64]| Ok::<_, mp_core::Error>(Tensor::from_slice(all, [all.len()])?.freeze());
        let values = Tensor::from_slice(&values, [values.len()])?.freeze();
        Self::new(Layout::Csr, starts.freeze(), line(&plain)?, values, [rows, columns])
    }
}

impl<T: Element, M: Sendable> fmt::Debug for SparseCompressed<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseCompressed")
            .field("layout", &self.layout)
            .field("shape", &self.shape)
            .field("compressed", &self.compressed)
            .field("plain", &self.plain)
            .field("values", &self.values)
            .finish()
    }
}

impl<T: Element, M: Sendable> Serialize for SparseCompressed<T, M> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        (self.layout, &self.compressed, &self.plain, &self.values, self.shape).serialize(s)
    }
}

type CompressedParts<T, M> = (Layout, Tensor<i64, M>, Tensor<i64, M>, Tensor<T, M>, [usize; 2]);

impl<'de, T: Element, M: Sendable> Deserialize<'de> for SparseCompressed<T, M> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let (layout, compressed, plain, values, shape) = CompressedParts::<T, M>::deserialize(d)?;
        Self::new(layout, compressed, plain, values, shape).map_err(D::Error::custom)
    }
}
