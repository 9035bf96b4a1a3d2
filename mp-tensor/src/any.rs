//! Tensors with a dynamic element type.

use std::fmt;

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::dispatch;
use crate::element::Element;
use crate::tensor::Tensor;
use crate::tensor::display::TensorDisplay;
use crate::tensor::mode::{Aliased, Exclusive, Frozen, Mode, Sendable, Shared};
use crate::tensor::raw::RawTensor;
use crate::view::View;
use crate::wire::handle::TensorHandle;
use crate::{aliasing_methods, downcast_error, grad_methods, shape_methods, view_methods};
use mp_core::DType;
use mp_core::Storage;
use mp_core::message::{Codec, Incoming, Message, Outgoing, PlainOutcome, UnsentValues, scope};
use mp_core::words::{Access, BlockKind};
use mp_core::{Error, Result};

/// A tensor whose element type is a runtime value, in any [`Mode`]: [`AnyTensor`], [`AnyTensor<Frozen>`],
/// [`AnyTensor<Shared>`].
///
/// ```
/// use mp_tensor::{AnyTensor, DType, dispatch};
///
/// let t = AnyTensor::zeros(&[2, 3], "float32".parse()?)?;
/// assert_eq!((t.dtype(), t.nbytes()), (DType::F32, 24));
/// let row = t.freeze().select(0, 1)?; // views need no type
/// assert_eq!(dispatch!(row.dtype(), T => row.downcast::<T>()?.len()), 3);
///
/// let ints = AnyTensor::zeros(&[4], DType::I64)?;
/// let error = ints.downcast::<f64>().unwrap_err();
/// assert_eq!(error.to_string(), "a tensor of i64 where one of f64 is expected; ask its dtype() first");
/// let ints = error.tensor.downcast::<i64>()?; // the error contains the tensor
/// assert_eq!(ints.as_slice()?, [0; 4]);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// An `AnyTensor` is sent like a typed tensor. Code that sends and receives it does not name the element
/// type.
#[doc(alias("torch.Tensor", "DynTensor"))]
pub struct AnyTensor<M: Mode = Exclusive> {
    raw: RawTensor<M>,
    dtype: DType,
}

impl<M: Mode> PlainOutcome for AnyTensor<M> {}

downcast_error!(DowncastError, AnyTensor, Mode, mp_core::Error);

impl<T: Element, M: Mode> From<Tensor<T, M>> for AnyTensor<M> {
    fn from(t: Tensor<T, M>) -> Self {
        Self { raw: t.raw, dtype: T::DTYPE }
    }
}

impl<M: Aliased> Clone for AnyTensor<M> {
    fn clone(&self) -> Self {
        Self { raw: self.raw.clone(), dtype: self.dtype }
    }
}

impl<M: Mode> AnyTensor<M> {
    shape_methods!(raw.view);
    grad_methods!();

    /// Returns the memory that this tensor is a view of.
    #[doc(alias = "untyped_storage")]
    pub fn storage(&self) -> &mp_core::Storage {
        self.raw.storage()
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Converts to a typed tensor.
    ///
    /// # Errors
    /// Returns the tensor in the error if it has another element type.
    pub fn downcast<T: Element>(self) -> std::result::Result<Tensor<T, M>, DowncastError<M>> {
        if self.dtype == T::DTYPE {
            return Ok(Tensor::of(self.raw));
        }
        Err(DowncastError { tensor: self, expected: T::DTYPE })
    }
}

impl AnyTensor<Exclusive> {
    /// Creates a tensor with unspecified elements.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::LimitExceeded`] for a shape that is too
    /// large.
    pub fn empty(shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self> {
        Ok(Self { raw: RawTensor::new(shape.as_ref(), dtype.size())?, dtype })
    }

    /// Creates a tensor of zeros.
    ///
    /// # Errors
    /// See [`AnyTensor::empty`].
    pub fn zeros(shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self> {
        let shape = shape.as_ref();
        dispatch!(dtype, T => Ok(Tensor::<T>::zeros(shape)?.into()))
    }

    /// Copies the bytes of elements, in row-major order and native byte order.
    ///
    /// # Errors
    /// See [`AnyTensor::empty`], and [`Error::Shape`] if the number of bytes does not match.
    #[doc(alias = "frombuffer")]
    pub fn from_bytes(bytes: &[u8], shape: impl AsRef<[usize]>, dtype: DType) -> Result<Self> {
        let shape = shape.as_ref();
        let asked = View::contiguous(shape)?.len().saturating_mul(dtype.size());
        if bytes.len() != asked {
            let why = format!("{} bytes for shape {shape:?} of {dtype}, which has {asked}", bytes.len());
            return Err(Error::Shape(why));
        }
        dispatch!(dtype, T => {
            let mut t = Tensor::<T>::empty(shape)?;
            bytemuck::cast_slice_mut(t.as_mut_slice()?).copy_from_slice(bytes);
            Ok(t.into())
        })
    }

    /// Makes the tensor readable by any process. The tensor can never be written again.
    pub fn freeze(self) -> AnyTensor<Frozen> {
        AnyTensor { raw: self.raw.open(BlockKind::Frozen), dtype: self.dtype }
    }

    /// Makes the tensor readable and writable by any process, through relaxed atomics.
    #[doc(alias = "share_memory_")]
    pub fn share(self) -> AnyTensor<Shared> {
        AnyTensor { raw: self.raw.open(BlockKind::Shared), dtype: self.dtype }
    }
}

/// View methods, like those of [`Tensor`].
impl<M: Aliased> AnyTensor<M> {
    view_methods!(&);
    aliasing_methods!(raw.view);

    fn another(&self, view: Box<View>) -> Self {
        Self { raw: self.raw.another(view), dtype: self.dtype }
    }
}

/// View methods that consume the tensor, like those of [`Tensor`].
impl AnyTensor<Exclusive> {
    view_methods!();

    fn viewed(self, change: impl FnOnce(&mut View) -> Result<()>) -> Result<Self> {
        let view = self.raw.view.with(change)?;
        Ok(Self { raw: self.raw.viewed(view), dtype: self.dtype })
    }
}

impl<M: Mode<Keep = Storage>> AnyTensor<M> {
    fn receive(
        inc: &mut mp_core::message::ReceivedAttachments,
        handle: TensorHandle,
        access: Access,
    ) -> Result<Self> {
        let dtype = handle.dtype()?;
        Ok(Self { raw: RawTensor::receive(inc, handle, access, dtype)?, dtype })
    }
}

impl Message for AnyTensor<Exclusive> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> Result<()> {
        self.raw.lend::<C>(out, self.dtype)
    }

    fn take_back(&mut self, back: &mut UnsentValues) {
        self.raw.take_back(back, self.dtype);
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self> {
        let handle = C::read_bytes(inc, TensorHandle::read)?;
        Self::receive(inc.arrived(), handle, Access::Exclusive)
    }
}

impl<M: Sendable> Serialize for AnyTensor<M> {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        scope::outgoing(M::WHAT, |out| self.raw.send(out, self.dtype)).map_err(S::Error::custom)?.serialize(s)
    }
}

impl<'de, M: Sendable> Deserialize<'de> for AnyTensor<M> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let handle = TensorHandle::deserialize(d)?;
        scope::incoming(M::WHAT, |inc| Self::receive(inc, handle, M::ACCESS)).map_err(D::Error::custom)
    }
}

/// Prints one line.
impl<M: Mode> fmt::Debug for AnyTensor<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&TensorDisplay::of(&self.raw, self.dtype), f)
    }
}

/// Prints rows.
impl<M: Mode> fmt::Display for AnyTensor<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&TensorDisplay::of(&self.raw, self.dtype), f)
    }
}
