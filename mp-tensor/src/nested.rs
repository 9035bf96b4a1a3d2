//! Tensors of different shapes in one buffer.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::element::Element;
use crate::tensor::Tensor;
use crate::tensor::mode::{Frozen, Readable, Sendable};
use crate::view::{MAX_RANK, View};
use mp_core::{Error, Result};

/// Several tensors of as many dimensions, but different sizes, in one buffer: torch's nested tensors.
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
/// It travels as its parts (buffer, sizes, strides, offsets), whose memory is shared. What is in them is
/// checked when it is made and when it is received; and again by [`get`](Self::get), since any holder may
/// change parts of shared memory.
#[derive(Clone)]
#[doc(alias("nested_tensor", "rebuild_nested_tensor", "reduce_nested_tensor"))]
pub struct NestedTensor<T: Element, M: Sendable = Frozen> {
    buffer: Tensor<T, M>,
    sizes: Tensor<i64, M>,
    strides: Tensor<i64, M>,
    offsets: Tensor<i64, M>,
}

impl<T: Element, M: Sendable> NestedTensor<T, M> {
    /// Of a buffer of one dimension, and for each tensor a row of sizes, a row of strides, and an offset in the buffer.
    ///
    /// # Errors
    /// [`Error::Shape`] when they don't fit each other; [`Error::OutOfBounds`] when a tensor would lie outside of the
    /// buffer; [`Error::Forked`] in a forked copy of the process.
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

    /// The view that the `i`-th tensor is of the buffer's storage.
    fn view(&self, i: usize) -> Result<View> {
        if i >= self.len() {
            return Err(Error::OutOfBounds(format!(
                "tensor {i} of a nested tensor with {} of them",
                self.len()
            )));
        }
        let rank = self.sizes.shape()[1];
        let row = |of: &Tensor<i64, M>| (0..rank).map(|d| of.load_nth(i * rank + d)).collect::<Vec<_>>();
        // What is negative is too large as well.
        let large = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
        let shape: Vec<_> = row(&self.sizes).into_iter().map(large).collect();
        let strides: Vec<_> = row(&self.strides).into_iter().map(|s| s as isize).collect();
        let mut view =
            View::from_parts(large(self.offsets.load_nth(i)), &shape, &strides, self.buffer.len())?;
        view.offset += self.buffer.offset();
        Ok(view)
    }

    /// How many tensors it has.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of the tensors, as a view of the buffer.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] when there is none, or the parts in shared memory were changed so that it would lie
    /// outside; [`Error::Forked`] in a forked copy of the process.
    pub fn get(&self, i: usize) -> Result<Tensor<T, M>> {
        self.buffer.raw.here()?;
        let view = self.view(i)?;
        Ok(Tensor::of(self.buffer.raw.clone().viewed(view)))
    }

    /// All of them, as views of the buffer.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn unbind(&self) -> Result<Vec<Tensor<T, M>>> {
        (0..self.len()).map(|i| self.get(i)).collect()
    }

    /// The elements of all.
    #[doc(alias = "values")]
    pub fn buffer(&self) -> &Tensor<T, M> {
        &self.buffer
    }

    /// The shape of each, a row each.
    #[doc(alias = "_nested_tensor_size")]
    pub fn sizes(&self) -> &Tensor<i64, M> {
        &self.sizes
    }

    /// The strides of each, a row each.
    #[doc(alias = "_nested_tensor_strides")]
    pub fn strides(&self) -> &Tensor<i64, M> {
        &self.strides
    }

    /// Where each begins in the buffer.
    #[doc(alias = "_nested_tensor_storage_offsets")]
    pub fn offsets(&self) -> &Tensor<i64, M> {
        &self.offsets
    }
}

impl<T: Element> NestedTensor<T, Frozen> {
    /// A copy of these tensors, one after the other.
    ///
    /// # Errors
    /// [`Error::Shape`] when they don't all have as many dimensions; else as [`Tensor::empty`].
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
