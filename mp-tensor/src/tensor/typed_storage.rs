//! A storage as a whole, as something that travels.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::element::Element;
use crate::tensor::Tensor;
use crate::tensor::mode::{Frozen, Sendable};
use crate::tensor::raw::Raw;
use crate::view::View;
use mp_core::Result;
use mp_core::Storage;

/// All elements of a storage, whatever views of it there are: frozen or shared, as the tensors of it.
///
/// ```
/// use mp_tensor::Tensor;
///
/// let x = Tensor::<f32>::from_fn(&[3, 4], |i| i as f32)?.freeze();
/// let row = x.select(0, 2)?;
/// let storage = row.typed_storage(); // all twelve
/// assert_eq!((storage.len(), storage.as_tensor().to_vec()), (12, x.to_vec()));
/// let column = storage.tensor(&[3], &[4], 1)?; // x[:, 1]
/// assert_eq!(column.to_vec(), [1.0, 5.0, 9.0]);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// Sent together with its views, it arrives as the same storage as they do. (An exclusive storage is an exclusive
/// [`Tensor`] of one dimension.) It has as many bytes as it was made with, at its receiver too, whatever view of it
/// was sent.
#[doc(alias = "UntypedStorage")]
#[doc(alias = "reduce_typed_storage")]
#[doc(alias = "rebuild_typed_storage")]
pub struct TypedStorage<T: Element, M: Sendable = Frozen>(
    /// Of one dimension, contiguous, from the start of the storage.
    Tensor<T, M>,
);

/// The bytes of a frozen storage, of whatever type its tensors are.
#[doc(alias = "UntypedStorage")]
pub type FrozenStorage = TypedStorage<u8, Frozen>;

impl<T: Element, M: Sendable> Clone for TypedStorage<T, M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Equal if they are the same memory.
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
    /// All elements of the storage that it is a view of.
    #[doc(alias = "storage")]
    pub fn typed_storage(&self) -> TypedStorage<T, M> {
        TypedStorage::whole(self.storage().clone(), self.storage().len())
    }
}

impl<T: Element, M: Sendable> TypedStorage<T, M> {
    fn whole(keep: Storage, bytes: usize) -> Self {
        // A block that exists has no more elements than a view may have.
        let view = View::contiguous(&[bytes / size_of::<T>()]).unwrap_or(View::NONE);
        Self(Tensor::of(Raw { keep, view: view.into(), grad: Default::default() }))
    }

    /// How many elements it has.
    #[doc(alias = "size")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes its elements take.
    pub fn nbytes(&self) -> usize {
        self.0.nbytes()
    }

    /// Its elements, as a tensor of one dimension.
    pub fn as_tensor(&self) -> &Tensor<T, M> {
        &self.0
    }

    /// Its elements, as a tensor of one dimension.
    pub fn into_tensor(self) -> Tensor<T, M> {
        self.0
    }

    /// A tensor of this shape, with these strides and offset, counted in elements.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`](mp_core::Error::OutOfBounds) when some of it would lie outside,
    /// [`Error::Unsupported`](mp_core::Error::Unsupported) when a stride is negative.
    #[doc(alias = "set_")]
    pub fn tensor(&self, shape: &[usize], strides: &[isize], offset: usize) -> Result<Tensor<T, M>> {
        let view = View::from_parts(offset, shape, strides, self.len())?;
        Ok(Tensor::of(Raw { keep: self.0.storage().clone(), view: view.into(), grad: Default::default() }))
    }
}

impl<T: Element> TypedStorage<T, Frozen> {
    /// The same memory as elements of another type, which a frozen one may be; the rest at its end is left out.
    pub fn cast<U: Element>(&self) -> TypedStorage<U, Frozen> {
        TypedStorage::whole(self.0.storage().clone(), self.nbytes())
    }

    /// Its bytes.
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
