//! Frozen memory as owned bytes.

use std::fmt;
use std::ops::Deref;

use crate::element::Element;
use crate::tensor::Tensor;
use crate::tensor::mode::Frozen;
use crate::tensor::raw::RawTensor;
use crate::tensor::typed_storage::FrozenStorage;
use crate::view::View;
use mp_core::Result;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Owned bytes of a contiguous frozen tensor, in native byte order. The bytes never change. The type is
/// `Send`, `Sync`, `'static` and `AsRef<[u8]>`.
///
/// ```
/// use mp_tensor::Tensor;
///
/// let rows = Tensor::<u16>::from_fn(&[2, 2], |i| i as u16)?.freeze();
/// let bytes = rows.select(0, 1)?.into_bytes()?; // a view of the same memory, which it keeps alive
/// assert_eq!(bytes.as_ref(), [2, 0, 3, 0]);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// In a message, the bytes are a serde value like the tensor: nothing is copied.
///
/// With the feature `bytes`, `bytes::Bytes::from(bytes)` refers to the same memory, without copying. Arrow,
/// polars and burn build their buffers on `Bytes`.
///
/// In a forked copy, the slice of bytes is empty. A `bytes::Bytes` created before the fork must not be read
/// in the copy.
#[derive(Clone)]
pub struct FrozenBytes(
    /// Contiguous tensor of the bytes.
    Tensor<u8, Frozen>,
);

impl<T: Element> Tensor<T, Frozen> {
    /// Converts the tensor to its bytes, without copying.
    ///
    /// # Errors
    /// [`Error::Shape`](mp_core::Error::Shape) if the tensor is not contiguous,
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy.
    pub fn into_bytes(self) -> Result<FrozenBytes> {
        self.raw.contiguous()?;
        let (size, RawTensor { keep, view, .. }) = (size_of::<T>(), self.raw);
        // Bounded by the length of the storage, so that nothing overflows.
        let view = View::from_parts(view.offset() * size, &[view.len() * size], &[1], keep.len())?;
        Ok(FrozenBytes(Tensor::of(RawTensor { keep, view: view.into(), grad: Default::default() })))
    }
}

impl From<FrozenStorage> for FrozenBytes {
    fn from(all: FrozenStorage) -> Self {
        Self(all.into_tensor())
    }
}

impl AsRef<[u8]> for FrozenBytes {
    fn as_ref(&self) -> &[u8] {
        // The tensor is contiguous. In a forked copy the memory is not mapped, and the slice is empty.
        self.0.as_slice().unwrap_or_default()
    }
}

impl AsRef<[u8]> for FrozenStorage {
    fn as_ref(&self) -> &[u8] {
        self.as_tensor().as_slice().unwrap_or_default()
    }
}

impl Deref for FrozenBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl Serialize for FrozenBytes {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de> Deserialize<'de> for FrozenBytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        Tensor::<u8, Frozen>::deserialize(d)?.into_bytes().map_err(D::Error::custom)
    }
}

impl fmt::Debug for FrozenBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrozenBytes({} bytes of {:?})", self.0.len(), self.0.storage())
    }
}

/// Wraps the same memory, with a reference count.
#[cfg(feature = "bytes")]
impl From<FrozenBytes> for bytes::Bytes {
    fn from(all: FrozenBytes) -> Self {
        bytes::Bytes::from_owner(all)
    }
}

#[cfg(feature = "bytes")]
impl<T: Element> TryFrom<Tensor<T, Frozen>> for bytes::Bytes {
    type Error = mp_core::Error;

    /// Converts like [`into_bytes`](Tensor::into_bytes), without copying.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let t = Tensor::<u8>::from_fn(&[1 << 20], |i| i as u8)?.freeze();
    /// let at = t.as_slice()?.as_ptr();
    /// let bytes = bytes::Bytes::try_from(t)?;
    /// assert_eq!((bytes.as_ptr(), bytes.slice(300..302).as_ref()), (at, &[44, 45][..]));
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    fn try_from(t: Tensor<T, Frozen>) -> Result<Self> {
        Ok(t.into_bytes()?.into())
    }
}
