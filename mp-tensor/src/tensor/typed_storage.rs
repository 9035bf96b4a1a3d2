//! Whole storages as values that can be sent.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::element::Element;
use crate::tensor::Tensor;
use crate::tensor::mode::{Frozen, Sendable};
use crate::tensor::raw::RawTensor;
use crate::view::View;
use mp_core::Result;
use mp_core::Storage;

/// All elements of a storage, independent of its views. Frozen or shared, like the tensors of the storage.
///
/// ```
/// use mp_tensor::Tensor;
///
/// let x = Tensor::<f32>::from_fn(&[3, 4], |i| i as f32)?.freeze();
/// let row = x.select(0, 2)?;
/// let storage = row.typed_storage(); // all twelve elements
/// assert_eq!((storage.len(), storage.as_tensor().to_vec()), (12, x.to_vec()));
/// let column = storage.tensor(&[3], &[4], 1)?; // x[:, 1]
/// assert_eq!(column.to_vec(), [1.0, 5.0, 9.0]);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// A storage and its views that are sent together arrive as one storage. A storage has its full size at the
/// receiver, whatever view was sent. (An exclusive storage is an exclusive one-dimensional [`Tensor`].)
#[doc(alias = "UntypedStorage")]
#[doc(alias = "reduce_typed_storage")]
#[doc(alias = "rebuild_typed_storage")]
pub struct TypedStorage<T: Element, M: Sendable = Frozen>(
    /// A contiguous one-dimensional tensor from the start of the storage.
    Tensor<T, M>,
);

/// Bytes of a frozen storage, independent of the element type of its tensors.
#[doc(alias = "UntypedStorage")]
pub type FrozenStorage = TypedStorage<u8, Frozen>;

impl<T: Element, M: Sendable> Clone for TypedStorage<T, M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Equal if both refer to the same memory.
impl<T: Element, M: Sendable> PartialEq for TypedStorage<T, M> {
    fn eq(&self, other: &Self) -> bool {
        self.0.storage() == other.0.storage()
    }
}
impl<T: Element, M: Sendable> Eq for TypedStorage<T, M> {}

impl<T: Element, M: Sendable> fmt::Debug for TypedStorage<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TypedStorage<{}>({} elements of {:?})", T::DTYPE, self.len(), self.0.storage())
    }
}

impl<T: Element, M: Sendable> Tensor<T, M> {
    /// Returns all elements of the storage that this tensor is a view of.
    #[doc(alias = "storage")]
    pub fn typed_storage(&self) -> TypedStorage<T, M> {
        TypedStorage::whole(self.storage().clone(), self.storage().len())
    }
}

impl<T: Element, M: Sendable> TypedStorage<T, M> {
    fn whole(keep: Storage, bytes: usize) -> Self {
        // An existing block has no more elements than a view may have.
        let view = View::contiguous(&[bytes / size_of::<T>()]).unwrap_or(View::NONE);
        Self(Tensor::of(RawTensor { keep, view: view.into(), grad: Default::default() }))
    }

    /// Returns the number of elements.
    #[doc(alias = "size")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the size of all elements in bytes.
    pub fn nbytes(&self) -> usize {
        self.0.nbytes()
    }

    /// Returns the elements as a one-dimensional tensor.
    pub fn as_tensor(&self) -> &Tensor<T, M> {
        &self.0
    }

    /// Converts to a one-dimensional tensor.
    pub fn into_tensor(self) -> Tensor<T, M> {
        self.0
    }

    /// Returns a view with this shape, strides and offset, in elements.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) if the view exceeds the storage,
    /// [`Error::Unsupported`](mp_core::Error::Unsupported) for a negative stride.
    #[doc(alias = "set_")]
    pub fn tensor(&self, shape: &[usize], strides: &[isize], offset: usize) -> Result<Tensor<T, M>> {
        let view = View::from_parts(offset, shape, strides, self.len())?;
        Ok(Tensor::of(RawTensor {
            keep: self.0.storage().clone(),
            view: view.into(),
            grad: Default::default(),
        }))
    }
}

impl<T: Element> TypedStorage<T, Frozen> {
    /// Reinterprets the memory as elements of another type, which is valid for frozen memory. Bytes at the
    /// end that don't fill an element are left out.
    pub fn cast<U: Element>(&self) -> TypedStorage<U, Frozen> {
        TypedStorage::whole(self.0.storage().clone(), self.nbytes())
    }

    /// Returns the bytes of the storage.
    #[doc(alias = "untyped")]
    pub fn bytes(&self) -> FrozenStorage {
        self.cast()
    }
}

impl<T: Element, M: Sendable> Serialize for TypedStorage<T, M> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de, T: Element, M: Sendable> Deserialize<'de> for TypedStorage<T, M> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let all = Tensor::deserialize(d)?;
        if (all.ndim(), all.offset(), all.is_contiguous()) == (1, 0, true) {
            return Ok(Self(all));
        }
        Err(D::Error::custom(format!(
            "a storage with shape {:?} and strides {:?}",
            all.shape(),
            all.strides()
        )))
    }
}
