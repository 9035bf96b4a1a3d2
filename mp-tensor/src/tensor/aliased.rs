//! Tensors with several handles: clones, views and messages.

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::element::Element;
use crate::tensor::Tensor;
use crate::tensor::mode::{Aliased, Sendable};
use crate::tensor::raw::RawTensor;
use crate::view::View;
use crate::wire::handle::TensorHandle;
use crate::{aliasing_methods, view_methods};
use mp_core::Result;
use mp_core::message::scope;

impl<T: Element, M: Aliased> Clone for Tensor<T, M> {
    fn clone(&self) -> Self {
        Self::of(self.raw.clone())
    }
}

/// Views: further handles to the same storage, without copying an element.
impl<T: Element, M: Aliased> Tensor<T, M> {
    view_methods!(&);
    aliasing_methods!(raw.view);

    #[inline]
    fn another(&self, view: Box<View>) -> Self {
        Self::of(self.raw.another(view))
    }
}

/// Views of the whole storage. Borrowed tensors have no such methods: the storage of a piece
/// ([`chunk_mut`](Tensor::chunk_mut)) contains elements that other pieces write. If the piece was cut along
/// an inner dimension, elements of other pieces lie even between the elements of this piece.
impl<T: Element, M: Sendable> Tensor<T, M> {
    /// Returns a view of any shape, strides and offset within the storage.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let t = Tensor::<i32>::from_fn([6], |i| i as i32)?.freeze();
    /// let windows = t.as_strided([4, 3], [1, 1], 0)?; // overlapping windows of three elements
    /// assert_eq!(windows.select(0, 2)?.to_vec(), [2, 3, 4]);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if the view exceeds the storage,
    /// [`Error::Unsupported`](mp_core::Error::Unsupported) for a negative stride.
    pub fn as_strided(
        &self,
        shape: impl AsRef<[usize]>,
        strides: impl AsRef<[isize]>,
        offset: usize,
    ) -> Result<Self> {
        let elements = self.storage().len() / size_of::<T>();
        let view = View::from_parts(offset, shape.as_ref(), strides.as_ref(), elements)?;
        Ok(self.another(view.into()))
    }
}

impl<T: Element, M: Sendable> Serialize for Tensor<T, M> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        scope::outgoing(M::WHAT, |out| self.raw.send(out, T::DTYPE)).map_err(S::Error::custom)?.serialize(s)
    }
}

impl<'de, T: Element, M: Sendable> Deserialize<'de> for Tensor<T, M> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let handle = TensorHandle::deserialize(d)?;
        scope::incoming(M::WHAT, |inc| RawTensor::receive(inc, handle, M::ACCESS, T::DTYPE))
            .map(Self::of)
            .map_err(D::Error::custom)
    }
}
