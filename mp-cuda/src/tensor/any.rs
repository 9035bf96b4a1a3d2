//! Tensors on devices whose element type is known when the program runs.

use std::fmt;

use mp_core::message::PlainOutcome;
use mp_core::{DType, Error as CoreError};
use mp_tensor::parts::View;
use mp_tensor::{
    Element, Exclusive, Frozen, Shared, aliasing_methods, dispatch, grad_methods, shape_methods, view_methods,
};

use super::mode::{CudaAliased, CudaMode};
use super::raw::Raw;
use super::{CudaStorageId, CudaTensor};
use crate::error::{Error, Result};
use crate::stream::Stream;
use crate::uuid::Uuid;

/// A tensor on a device whose element type is a value, in any [`CudaMode`].
///
/// ```no_run
/// use mp_cuda::{AnyCudaTensor, Device, Stream};
///
/// let stream = Stream::new(&Device::new(0)?)?;
/// let t = AnyCudaTensor::zeros([2, 3], "float32".parse()?, &stream)?;
/// let row = t.freeze().select(0, 1)?; // views need no type
/// let row = row.downcast::<f32>()?;
/// assert_eq!(row.len(), 3);
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// It travels as a typed one does; sender and receiver need not know the type.
#[doc(alias = "torch.Tensor")]
pub struct AnyCudaTensor<M: CudaMode = Exclusive> {
    pub(crate) raw: Raw<M>,
    pub(super) dtype: DType,
}

impl<M: CudaMode> PlainOutcome for AnyCudaTensor<M> {}

/// A tensor has another element type than was asked for. It comes back.
pub struct CudaDowncastError<M: CudaMode> {
    /// The tensor.
    pub tensor: AnyCudaTensor<M>,
    /// The type asked for.
    pub expected: DType,
}

impl<M: CudaMode> CudaDowncastError<M> {
    fn told(&self) -> CoreError {
        CoreError::DType { expected: self.expected, found: self.tensor.dtype }
    }
}

impl<M: CudaMode> fmt::Debug for CudaDowncastError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDowncastError")
            .field("expected", &self.expected)
            .field("found", &self.tensor.dtype)
            .finish_non_exhaustive()
    }
}

impl<M: CudaMode> fmt::Display for CudaDowncastError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.told().fmt(f)
    }
}

impl<M: CudaMode> std::error::Error for CudaDowncastError<M> {}

impl<M: CudaMode> From<CudaDowncastError<M>> for Error {
    fn from(error: CudaDowncastError<M>) -> Self {
        error.told().into()
    }
}

impl<T: Element, M: CudaMode> From<CudaTensor<T, M>> for AnyCudaTensor<M> {
    fn from(t: CudaTensor<T, M>) -> Self {
        Self { raw: t.raw, dtype: T::DTYPE }
    }
}

impl<M: CudaAliased> Clone for AnyCudaTensor<M> {
    fn clone(&self) -> Self {
        Self { raw: self.raw.clone(), dtype: self.dtype }
    }
}

impl<M: CudaMode> AnyCudaTensor<M> {
    shape_methods!(raw.view);
    grad_methods!();

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device whose memory it is in; `None` without elements.
    pub fn device(&self) -> Option<Uuid> {
        self.raw.device()
    }

    /// Which memory it is a view of, in whichever process; `None` without elements.
    #[doc(alias = "untyped_storage")]
    pub fn storage(&self) -> Option<CudaStorageId> {
        self.raw.storage()
    }

    /// The same tensor, typed.
    ///
    /// # Errors
    /// The tensor, when its elements have another type.
    pub fn downcast<T: Element>(self) -> std::result::Result<CudaTensor<T, M>, CudaDowncastError<M>> {
        if self.dtype == T::DTYPE {
            return Ok(CudaTensor::of(self.raw));
        }
        Err(CudaDowncastError { tensor: self, expected: T::DTYPE })
    }

    /// The same elements, as a leaf that requires no gradients.
    #[must_use]
    pub fn detach(mut self) -> Self {
        self.raw.grad = Default::default();
        self
    }
}

impl AnyCudaTensor<Exclusive> {
    /// A tensor on the stream's device, whose elements are whatever the memory held.
    ///
    /// # Errors
    /// As [`CudaTensor::empty`].
    pub fn empty(shape: impl AsRef<[usize]>, dtype: DType, stream: &Stream) -> Result<Self> {
        Ok(Self { raw: Raw::new(shape.as_ref(), dtype, stream)?, dtype })
    }

    /// A tensor of zeros, on the stream's device.
    ///
    /// # Errors
    /// As [`CudaTensor::empty`].
    pub fn zeros(shape: impl AsRef<[usize]>, dtype: DType, stream: &Stream) -> Result<Self> {
        let shape = shape.as_ref();
        dispatch!(dtype, T => Ok(CudaTensor::<T>::zeros(shape, stream)?.into()))
    }

    /// Makes it readable by any process and writable by none, for ever.
    pub fn freeze(self) -> AnyCudaTensor<Frozen> {
        AnyCudaTensor { raw: self.raw.open(), dtype: self.dtype }
    }

    /// Makes it readable and writable by any process.
    #[doc(alias = "share_memory_")]
    pub fn share(self) -> AnyCudaTensor<Shared> {
        AnyCudaTensor { raw: self.raw.open(), dtype: self.dtype }
    }
}

/// Views, as those of [`CudaTensor`].
impl<M: CudaAliased> AnyCudaTensor<M> {
    view_methods!(by_ref);
    aliasing_methods!();

    fn viewed(&self, f: impl FnOnce(View) -> mp_core::Result<View>) -> mp_core::Result<Self> {
        let view = f(*self.raw.view)?;
        Ok(Self { raw: self.raw.another(view), dtype: self.dtype })
    }

    fn pieces(&self, f: impl FnOnce(View) -> mp_core::Result<Vec<View>>) -> mp_core::Result<Vec<Self>> {
        let views = f(*self.raw.view)?.into_iter();
        Ok(views.map(|view| Self { raw: self.raw.another(view), dtype: self.dtype }).collect())
    }
}

/// Views by value, as those of [`CudaTensor`].
impl AnyCudaTensor<Exclusive> {
    view_methods!(by_value);

    fn viewed(self, f: impl FnOnce(View) -> mp_core::Result<View>) -> mp_core::Result<Self> {
        let view = f(*self.raw.view)?;
        Ok(Self { raw: self.raw.viewed(view), dtype: self.dtype })
    }
}

impl<M: CudaMode> fmt::Debug for AnyCudaTensor<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(&self.raw, self.dtype, f)
    }
}

/// In one line, without its elements, which are on the device.
pub(super) fn show<M: CudaMode>(raw: &Raw<M>, dtype: DType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (shape, grad) = (raw.view.shape(), if raw.grad.requires() { ", requires_grad" } else { "" });
    write!(f, "{}<{dtype}>({shape:?}{grad}", M::NAME)?;
    match &raw.piece {
        Some(piece) => write!(f, ", {piece:?})"),
        None => f.write_str(")"),
    }
}
