//! Tensors of different shapes in one buffer.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::element::Element;
use crate::tensor::Tensor;
use crate::tensor::mode::{Frozen, Readable, Sendable};
use crate::view::{MAX_RANK, View};
use mp_core::{Error, Result};

/// Several tensors of equal rank but different sizes in one buffer, like torch's nested tensors.
///
/// ```
/// use mp_tensor::{NestedTensor, Tensor};
///
/// let (a, b) = (Tensor::<f32>::full(&[2, 3], 1.0)?, Tensor::full(&[1, 5], 2.0)?);
/// let n = NestedTensor::from_tensors(&[a, b])?; // one copy
/// assert_eq!((n.len(), n.get(1)?.shape()), (2, &[1, 5][..]));
/// assert_eq!(n.get(0)?.storage(), n.buffer().storage()); // views
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// A nested tensor is sent as its parts (buffer, sizes, strides, offsets), whose memory is shared. The parts
/// are validated when a nested tensor is created and received. [`get`](Self::get) validates again, because
/// any holder may change parts in shared memory.
#[derive(Clone)]
#[doc(alias("nested_tensor", "rebuild_nested_tensor", "reduce_nested_tensor"))]
pub struct NestedTensor<T: Element, M: Sendable = Frozen> {
    buffer: Tensor<T, M>,
    sizes: Tensor<i64, M>,
    strides: Tensor<i64, M>,
    offsets: Tensor<i64, M>,
}

impl<T: Element, M: Sendable> NestedTensor<T, M> {
    /// Creates a nested tensor from a one-dimensional buffer. Each tensor has a row in `sizes`, a row in
    /// `strides`, and an offset in the buffer.
    ///
    /// # Errors
    /// [`Error::Shape`] if the parts don't match, [`Error::OutOfBounds`] if a tensor exceeds the buffer,
    /// [`Error::Forked`] in a forked copy.
    pub fn new(
        buffer: Tensor<T, M>,
        sizes: Tensor<i64, M>,
        strides: Tensor<i64, M>,
        offsets: Tensor<i64, M>,
    ) -> Result<Self> {
        buffer.raw.here()?;
        let n = offsets.len();
        let rows = |t: &Tensor<i64, M>| t.ndim() == 2 && t.shape()[0] == n && t.shape()[1] <= MAX_RANK;
        let fit = rows(&sizes) && sizes.shape() == strides.shape() && offsets.raw.view.is_injective();
        if !fit || offsets.ndim() != 1 || buffer.ndim() != 1 || !buffer.is_contiguous() {
            return Err(Error::Shape(format!(
                "a nested tensor of a buffer of shape {:?}, sizes {:?}, strides {:?}, offsets {:?}",
                buffer.shape(),
                sizes.shape(),
                strides.shape(),
                offsets.shape()
            )));
        }
        let all = Self { buffer, sizes, strides, offsets };
        (0..n).try_for_each(|i| all.view(i).map(drop))?;
        Ok(all)
    }

    /// Returns the `i`-th tensor as a view of the buffer's storage.
    fn view(&self, i: usize) -> Result<View> {
        if i >= self.len() {
            return Err(Error::OutOfBounds(format!(
                "tensor {i} of a nested tensor with {} of them",
                self.len()
            )));
        }
        let rank = self.sizes.shape()[1];
        let row = |of: &Tensor<i64, M>| (0..rank).map(|d| of.load_nth(i * rank + d)).collect::<Vec<_>>();
        // Negative numbers are too large as well.
        let large = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
        let shape: Vec<_> = row(&self.sizes).into_iter().map(large).collect();
        let strides: Vec<_> = row(&self.strides).into_iter().map(|s| s as isize).collect();
        let mut view =
            View::from_parts(large(self.offsets.load_nth(i)), &shape, &strides, self.buffer.len())?;
        view.offset += self.buffer.offset();
        Ok(view)
    }

    /// Returns the number of tensors.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Returns `true` if there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the `i`-th tensor, as a view of the buffer.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] if `i` is out of bounds, or another process changed parts in shared memory so
    /// that the tensor exceeds the buffer. [`Error::Forked`] in a forked copy.
    pub fn get(&self, i: usize) -> Result<Tensor<T, M>> {
        self.buffer.raw.here()?;
        let view = self.view(i)?;
        Ok(Tensor::of(self.buffer.raw.clone().viewed(view)))
    }

    /// Returns all tensors, as views of the buffer.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    pub fn unbind(&self) -> Result<Vec<Tensor<T, M>>> {
        (0..self.len()).map(|i| self.get(i)).collect()
    }

    /// Returns the elements of all tensors.
    #[doc(alias = "values")]
    pub fn buffer(&self) -> &Tensor<T, M> {
        &self.buffer
    }

    /// Returns the shapes, one row for each tensor.
    #[doc(alias = "_nested_tensor_size")]
    pub fn sizes(&self) -> &Tensor<i64, M> {
        &self.sizes
    }

    /// Returns the strides, one row for each tensor.
    #[doc(alias = "_nested_tensor_strides")]
    pub fn strides(&self) -> &Tensor<i64, M> {
        &self.strides
    }

    /// Returns the offset of each tensor in the buffer.
    #[doc(alias = "_nested_tensor_storage_offsets")]
    pub fn offsets(&self) -> &Tensor<i64, M> {
        &self.offsets
    }
}

impl<T: Element> NestedTensor<T, Frozen> {
    /// Copies these tensors into one buffer, in order.
    ///
    /// # Errors
    /// [`Error::Shape`] if their ranks differ, and the errors of [`Tensor::empty`].
    pub fn from_tensors<N: Readable>(all: &[Tensor<T, N>]) -> Result<Self> {
        let rank = all.first().map_or(0, Tensor::ndim);
        if let Some(other) = all.iter().find(|t| t.ndim() != rank) {
            return Err(Error::Shape(format!("tensors of {rank} and of {} dimensions in one", other.ndim())));
        }
        let mut buffer = Tensor::empty([all.iter().map(Tensor::len).sum()])?;
        let (mut sizes, mut strides, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = 0;
        for t in all {
            buffer.view_mut().narrow(0, at, t.len())?.reshape(t.shape())?.copy_from(t)?;
            sizes.extend(t.shape().iter().map(|n| *n as i64));
            strides.extend(View::contiguous(t.shape())?.strides().iter().map(|s| *s as i64));
            offsets.push(at as i64);
            at += t.len();
        }
        let rows = |of: &[i64]| Ok::<_, Error>(Tensor::from_slice(of, [all.len(), rank])?.freeze());
        let offsets = Tensor::from_slice(&offsets, [all.len()])?.freeze();
        Self::new(buffer.freeze(), rows(&sizes)?, rows(&strides)?, offsets)
    }
}

impl<T: Element, M: Sendable> fmt::Debug for NestedTensor<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unbind() {
            Ok(all) => f.debug_tuple("NestedTensor").field(&all).finish(),
            Err(e) => write!(f, "NestedTensor({e})"),
        }
    }
}

impl<T: Element, M: Sendable> Serialize for NestedTensor<T, M> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        (&self.buffer, &self.sizes, &self.strides, &self.offsets).serialize(s)
    }
}

impl<'de, T: Element, M: Sendable> Deserialize<'de> for NestedTensor<T, M> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        type Ints<M> = Tensor<i64, M>;
        let (buffer, sizes, strides, offsets) = <(Tensor<T, M>, Ints<M>, Ints<M>, Ints<M>)>::deserialize(d)?;
        Self::new(buffer, sizes, strides, offsets).map_err(D::Error::custom)
    }
}
