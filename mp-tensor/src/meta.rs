//! Tensors without memory.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::any::AnyTensor;
use crate::element::Element;
use crate::tensor::Tensor;
use crate::tensor::mode::{Exclusive, Mode};
use crate::view::{SerializedView, View};
use crate::{aliasing_methods, shape_methods, view_methods};
use mp_core::DType;
use mp_core::{Error, Result};

/// Shape, strides and element type of a tensor without elements, like torch's tensors on the device "meta".
///
/// ```
/// use mp_tensor::{DType, MetaTensor};
///
/// // A tensor of 4 TiB, planned but not allocated.
/// let plan = MetaTensor::new(&[1 << 20, 1 << 20], DType::F32)?;
/// assert_eq!(plan.narrow(0, 0, 1024)?.t()?.shape(), [1 << 20, 1024]);
/// let part = plan.narrow(0, 0, 2)?.narrow(1, 0, 3)?.materialize()?;
/// assert_eq!((part.shape(), part.dtype()), (&[2, 3][..], DType::F32));
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// A meta tensor is plain data: it can be sent in messages and written to files.
#[derive(Clone, Copy)]
#[doc(alias = "meta")]
#[doc(alias = "rebuild_meta_tensor")]
pub struct MetaTensor {
    view: View,
    dtype: DType,
}

impl MetaTensor {
    shape_methods!(view);
    view_methods!(&);
    aliasing_methods!(view);

    /// Creates a meta tensor of this shape.
    ///
    /// # Errors
    /// [`Error::LimitExceeded`] for too many dimensions or elements.
    pub fn new(shape: &[usize], dtype: DType) -> Result<Self> {
        Ok(Self { view: View::contiguous(shape)?, dtype })
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns `false`: the tensor has no memory.
    pub fn is_shared(&self) -> bool {
        false
    }

    /// Creates a contiguous tensor of this shape and type with unspecified elements.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`].
    #[doc(alias = "to_empty")]
    pub fn materialize(&self) -> Result<AnyTensor<Exclusive>> {
        AnyTensor::empty(self.shape(), self.dtype)
    }

    #[expect(clippy::boxed_local, reason = "other tensors keep it in the box")]
    fn another(&self, view: Box<View>) -> Self {
        Self { view: *view, ..*self }
    }
}

impl<T: Element, M: Mode> From<&Tensor<T, M>> for MetaTensor {
    fn from(t: &Tensor<T, M>) -> Self {
        Self { view: *t.raw.view, dtype: T::DTYPE }
    }
}

impl PartialEq for MetaTensor {
    fn eq(&self, other: &Self) -> bool {
        let of = |m: &Self| (m.dtype, m.offset());
        of(self) == of(other) && self.shape() == other.shape() && self.strides() == other.strides()
    }
}
impl Eq for MetaTensor {}

impl fmt::Debug for MetaTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MetaTensor<{}>{:?}", self.dtype, self.shape())
    }
}

impl Serialize for MetaTensor {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        (self.dtype.torch_name(), self.view.to_wire()).serialize(s)
    }
}

impl<'de> Deserialize<'de> for MetaTensor {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let (dtype, wire) = <(String, SerializedView)>::deserialize(d)?;
        let made = || -> Result<Self> {
            // Without a storage, any view that strides can express is valid.
            Ok(Self { view: View::from_wire(&wire, usize::MAX)?, dtype: dtype.parse()? })
        };
        made().map_err(D::Error::custom)
    }
}

impl TryFrom<MetaTensor> for AnyTensor<Exclusive> {
    type Error = Error;

    /// See [`MetaTensor::materialize`].
    fn try_from(m: MetaTensor) -> Result<Self> {
        m.materialize()
    }
}
