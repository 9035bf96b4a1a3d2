//! Tensors on devices whose element type is known at run time.

use std::fmt;

use mp_core::DType;
use mp_core::message::PlainOutcome;
use mp_tensor::parts::View;
use mp_tensor::{
    Element, Exclusive, Frozen, Shared, aliasing_methods, dispatch, downcast_error, grad_methods,
    shape_methods, view_methods,
};

use super::mode::{CudaAliased, CudaMode};
use super::raw::RawCudaTensor;
use super::{CudaStorageId, CudaTensor};
use crate::error::Result;
use crate::stream::CudaStream;
use crate::uuid::Uuid;

/// Tensor on a device whose element type is known at run time, in any [`CudaMode`].
///
/// ```no_run
/// use mp_cuda::{AnyCudaTensor, Device, CudaStream};
///
/// let stream = CudaStream::new(&Device::new(0)?)?;
/// let t = AnyCudaTensor::zeros([2, 3], "float32".parse()?, &stream)?;
/// let row = t.freeze().select(0, 1)?; // views need no type
/// let row = row.downcast::<f32>()?;
/// assert_eq!(row.len(), 3);
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// An `AnyCudaTensor` is sent like a typed tensor. Code that sends and receives it does not name the element
/// type.
#[doc(alias = "torch.Tensor")]
pub struct AnyCudaTensor<M: CudaMode = Exclusive> {
    pub(crate) raw: RawCudaTensor<M>,
    pub(super) dtype: DType,
}

impl<M: CudaMode> PlainOutcome for AnyCudaTensor<M> {}

downcast_error!(CudaDowncastError, AnyCudaTensor, CudaMode, crate::error::Error);

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

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the device of the memory, or `None` if there are no elements.
    pub fn device(&self) -> Option<Uuid> {
        self.raw.device()
    }

    /// Returns the identity of the tensor's piece of device memory, which is the same in all processes.
    /// Returns `None` if there are no elements.
    #[doc(alias = "untyped_storage")]
    pub fn storage(&self) -> Option<CudaStorageId> {
        self.raw.storage()
    }

    /// Returns the same tensor with a static element type.
    ///
    /// # Errors
    /// The tensor, if its elements have another type.
    pub fn downcast<T: Element>(self) -> std::result::Result<CudaTensor<T, M>, CudaDowncastError<M>> {
        if self.dtype == T::DTYPE {
            return Ok(CudaTensor::of(self.raw));
        }
        Err(CudaDowncastError { tensor: self, expected: T::DTYPE })
    }
}

impl AnyCudaTensor<Exclusive> {
    /// Allocates a tensor on the stream's device. The elements are unspecified.
    ///
    /// # Errors
    /// Errors of [`CudaTensor::empty`].
    pub fn empty(shape: impl AsRef<[usize]>, dtype: DType, stream: &CudaStream) -> Result<Self> {
        Ok(Self { raw: RawCudaTensor::new(shape.as_ref(), dtype, stream)?, dtype })
    }

    /// Creates a tensor of zeros on the stream's device.
    ///
    /// # Errors
    /// Errors of [`CudaTensor::empty`].
    pub fn zeros(shape: impl AsRef<[usize]>, dtype: DType, stream: &CudaStream) -> Result<Self> {
        let shape = shape.as_ref();
        dispatch!(dtype, T => Ok(CudaTensor::<T>::zeros(shape, stream)?.into()))
    }

    /// Converts the tensor: forever after, any process may read it, and no process may write it.
    pub fn freeze(self) -> AnyCudaTensor<Frozen> {
        AnyCudaTensor { raw: self.raw.open(), dtype: self.dtype }
    }

    /// Converts the tensor: any process may read and write it.
    #[doc(alias = "share_memory_")]
    pub fn share(self) -> AnyCudaTensor<Shared> {
        AnyCudaTensor { raw: self.raw.open(), dtype: self.dtype }
    }
}

/// Views, as for [`CudaTensor`].
impl<M: CudaAliased> AnyCudaTensor<M> {
    view_methods!(&);
    aliasing_methods!(raw.view);

    fn another(&self, view: Box<View>) -> Self {
        Self { raw: self.raw.another(view.into()), dtype: self.dtype }
    }
}

/// Consuming views, as for [`CudaTensor`].
impl AnyCudaTensor<Exclusive> {
    view_methods!();

    fn viewed(self, change: impl FnOnce(&mut View) -> mp_core::Result<()>) -> mp_core::Result<Self> {
        let view = self.raw.view.with(change)?;
        Ok(Self { raw: self.raw.viewed(view), dtype: self.dtype })
    }
}

impl<M: CudaMode> fmt::Debug for AnyCudaTensor<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(&self.raw, self.dtype, f)
    }
}

/// Formats the tensor in one line, without its elements, which are on the device.
pub(super) fn show<M: CudaMode>(
    raw: &RawCudaTensor<M>,
    dtype: DType,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let (shape, grad) = (raw.view.shape(), if raw.grad.requires() { ", requires_grad" } else { "" });
    write!(f, "{}<{dtype}>({shape:?}{grad}", M::NAME)?;
    match &raw.piece {
        Some(piece) => write!(f, ", {piece:?})"),
        None => f.write_str(")"),
    }
}
