//! Tensors with one owner: creation and conversion.

use mp_tensor::parts::View;
use mp_tensor::{Element, Exclusive, view_methods};

use super::raw::RawCudaTensor;
use super::{CudaTensor, FrozenCudaTensor, SharedCudaTensor, StreamGuardMut};
use crate::error::Result;
use crate::stream::CudaStream;

impl<T: Element> CudaTensor<T, Exclusive> {
    /// Allocates a tensor on the stream's device. The elements are unspecified.
    ///
    /// The call may allocate memory from the driver, which may wait for the device. For a tensor without
    /// elements, the driver is not called. `stream` waits for earlier work with the memory. To use the tensor
    /// on another stream, call [`on_mut`](Self::on_mut).
    ///
    /// # Errors
    /// [`OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory); a shape that is too large; errors of the
    /// driver.
    pub fn empty(shape: impl AsRef<[usize]>, stream: &CudaStream) -> Result<Self> {
        Ok(Self::of(RawCudaTensor::new(shape.as_ref(), T::DTYPE, stream)?))
    }

    /// Converts the tensor: forever after, any process may read it, and no process may write it.
    pub fn freeze(self) -> FrozenCudaTensor<T> {
        CudaTensor::of(self.raw.open())
    }

    /// Converts the tensor: any process may read and write it.
    #[doc(alias = "share_memory_")]
    pub fn share(self) -> SharedCudaTensor<T> {
        CudaTensor::of(self.raw.open())
    }

    /// Loans the tensor to a stream, for work that reads and writes it. The stream waits, on the device, for
    /// all earlier work with the tensor. This thread doesn't wait.
    ///
    /// # Errors
    /// Errors of [`on`](Self::on).
    pub fn on_mut(&mut self, stream: &CudaStream) -> Result<StreamGuardMut<'_, T>> {
        Ok(StreamGuardMut::of(self.raw.lend(size_of::<T>(), stream, true)?, &self.raw.view))
    }
}

/// Views that consume the tensor. Elements outside of the view become unreachable. A call that returns an
/// error drops the tensor.
impl<T: Element> CudaTensor<T, Exclusive> {
    view_methods!();

    fn viewed(self, change: impl FnOnce(&mut View) -> mp_core::Result<()>) -> mp_core::Result<Self> {
        let view = self.raw.view.with(change)?;
        Ok(Self::of(self.raw.viewed(view)))
    }
}
