//! Sparse tensors of coordinates and values.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{index, misfit};
use crate::view::dims::Dims;
use crate::{Element, Frozen, Number, Readable, Sendable, Tensor};
use mp_core::Result;

/// A sparse tensor, which stores the coordinates and values of some elements. All other elements are 0. The
/// layout is torch's `sparse_coo`.
///
/// ```
/// use mp_tensor::{ShareMemory, SparseCoo};
///
/// let indices = [[0_i64, 1, 1], [2, 0, 2]].share_memory()?.freeze(); // a column for each element
/// let values = [3.0_f32, 4.0, 5.0].share_memory()?.freeze();
/// let s = SparseCoo::new(indices, values, [2, 3])?;
/// assert_eq!((s.nnz(), s.is_coalesced()), (3, true));
/// assert_eq!(s.to_dense()?.as_slice()?, [0.0, 0.0, 3.0, 4.0, 0.0, 5.0]);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// A sparse tensor is sent as its parts, whose memory is shared.
#[derive(Clone)]
#[doc(alias = "sparse_coo_tensor")]
#[doc(alias = "reduce_sparse_tensor")]
#[doc(alias = "rebuild_sparse_coo_tensor")]
pub struct SparseCoo<T: Element, M: Sendable = Frozen> {
    indices: Tensor<i64, M>,
    values: Tensor<T, M>,
    shape: Dims<usize>,
    coalesced: bool,
}

impl<T: Element, M: Sendable> SparseCoo<T, M> {
    /// Creates a sparse tensor from its parts. `indices` has a row for each sparse dimension and a column for
    /// each element. `values` has an entry for each element, with the remaining dimensions of `shape`.
    ///
    /// # Errors
    /// [`Error::Shape`](mp_core::Error::Shape) if the parts don't match,
    /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if an index is out of range,
    /// [`Error::LimitExceeded`](mp_core::Error::LimitExceeded) for too many dimensions,
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy.
    pub fn new(indices: Tensor<i64, M>, values: Tensor<T, M>, shape: impl AsRef<[usize]>) -> Result<Self> {
        let shape = Dims::from_slice(shape.as_ref())?;
        indices.raw.here()?;
        let &[sparse, n] = indices.shape() else {
            return misfit(format!(
                "sparse indices of shape {:?}, not [dimensions, elements]",
                indices.shape()
            ));
        };
        let dense = &shape[sparse.min(shape.len())..];
        // Overlapping indices could describe more elements than there is memory for.
        let whole = sparse <= shape.len() && indices.raw.view.is_injective() && (sparse > 0 || n < 2);
        if !whole || values.shape().first() != Some(&n) || &values.shape()[1..] != dense {
            return misfit(format!(
                "sparse indices of shape {:?} and values of shape {:?} don't make a \
                 tensor of shape {shape:?}",
                indices.shape(),
                values.shape()
            ));
        }
        let mut s = Self { indices, values, shape, coalesced: true };
        let mut last: Option<Vec<usize>> = None;
        for k in 0..n {
            let here = s.coordinates(k)?;
            s.coalesced &= last.is_none_or(|last| last < here);
            last = Some(here);
        }
        Ok(s)
    }

    /// Returns the checked coordinates of the `k`-th element.
    fn coordinates(&self, k: usize) -> Result<Vec<usize>> {
        let n = self.nnz();
        let all = self.shape.iter().take(self.sparse_dim()).enumerate();
        all.map(|(d, &size)| index(self.indices.load_nth(d * n + k), size, "index")).collect()
    }

    /// Returns the coordinates: a row for each sparse dimension, a column for each element.
    pub fn indices(&self) -> &Tensor<i64, M> {
        &self.indices
    }

    /// Returns the values, an entry for each element.
    pub fn values(&self) -> &Tensor<T, M> {
        &self.values
    }

    /// Returns the shape of the dense tensor.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of stored elements.
    #[doc(alias = "_nnz")]
    pub fn nnz(&self) -> usize {
        self.values.shape()[0]
    }

    /// Returns the number of dimensions with coordinates. The other dimensions are in the values.
    pub fn sparse_dim(&self) -> usize {
        self.indices.shape()[0]
    }

    /// Returns `true` if the coordinates were sorted and unique when the tensor was created or received.
    pub fn is_coalesced(&self) -> bool {
        self.coalesced
    }
}

impl<T: Number, M: Sendable> SparseCoo<T, M> {
    /// Returns the dense tensor, with zeros for elements that are not stored. Values of equal coordinates are
    /// added.
    ///
    /// # Errors
    /// The errors of [`Tensor::empty`], and [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if another
    /// process has written an invalid index into shared memory.
    pub fn to_dense(&self) -> Result<Tensor<T>> {
        let mut dense = Tensor::zeros(&*self.shape)?;
        if dense.is_empty() {
            // If a dimension is empty, the other dimensions may be arbitrarily large.
            return Ok(dense);
        }
        let inner: usize = self.values.shape()[1..].iter().product();
        let to: &mut [T] = dense.as_mut_slice()?;
        for k in 0..self.nnz() {
            let here = self.coordinates(k)?;
            let at = here.iter().zip(self.shape.iter()).fold(0, |at, (i, n)| at * n + i) * inner;
            for (j, to) in to[at..at + inner].iter_mut().enumerate() {
                *to = to.plus(self.values.load_nth(k * inner + j));
            }
        }
        Ok(dense)
    }
}

impl<T: Element> SparseCoo<T, Frozen> {
    /// Creates a sparse tensor from the nonzero elements of a dense one.
    ///
    /// # Errors
    /// See [`Tensor::empty`].
    #[doc(alias = "to_sparse")]
    pub fn from_dense<N: Readable>(dense: &Tensor<T, N>) -> Result<Self> {
        let (shape, rank) = (dense.shape(), dense.ndim());
        let noted: Vec<_> = dense.iter().enumerate().filter(|(_, v)| *v != T::zeroed()).collect();
        let mut indices = Tensor::<i64>::empty([rank, noted.len()])?;
        let to = indices.as_mut_slice()?;
        for (k, &(mut i, _)) in noted.iter().enumerate() {
            for d in (0..rank).rev() {
                to[d * noted.len() + k] = (i % shape[d]) as i64;
                i /= shape[d];
            }
        }
        let values = Tensor::from_iter(noted.iter().map(|(_, v)| *v))?;
        Self::new(indices.freeze(), values.freeze(), shape)
    }
}

impl<T: Element, M: Sendable> fmt::Debug for SparseCoo<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SparseCoo")
            .field("shape", &self.shape)
            .field("indices", &self.indices)
            .field("values", &self.values)
            .finish()
    }
}

impl<T: Element, M: Sendable> Serialize for SparseCoo<T, M> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        (&self.indices, &self.values, &self.shape).serialize(s)
    }
}

impl<'de, T: Element, M: Sendable> Deserialize<'de> for SparseCoo<T, M> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let (indices, values, shape) = <(Tensor<i64, M>, Tensor<T, M>, Dims<usize>)>::deserialize(d)?;
        Self::new(indices, values, &shape[..]).map_err(D::Error::custom)
    }
}
