//! The tensor with one owner: where tensors come from, and what becomes of them.

use mp_tensor::parts::View;
use mp_tensor::{Element, Exclusive, view_methods};

use super::raw::Raw;
use super::{CudaTensor, FrozenCudaTensor, LentMut, SharedCudaTensor};
use crate::error::Result;
use crate::stream::Stream;

impl<T: Element> CudaTensor<T, Exclusive> {
    /// A tensor on the stream's device, whose elements are whatever the memory held.
    ///
    /// It may call the driver for memory, and wait for the device then; without elements it calls none. Work of other streams is waited
    /// for by `stream`: give other streams their work by [`on_mut`](Self::on_mut).
    ///
    /// # Errors
    /// [`OutOfDeviceMemory`](crate::Error::OutOfDeviceMemory); a shape that is too large; what the driver refuses.
    pub fn empty(shape: impl AsRef<[usize]>, stream: &Stream) -> Result<Self> {
        Ok(Self::of(Raw::new(shape.as_ref(), T::DTYPE, stream)?))
    }

    /// Makes it readable by any process and writable by none, for ever.
    pub fn freeze(self) -> FrozenCudaTensor<T> {
        CudaTensor::of(self.raw.open())
    }

    /// Makes it readable and writable by any process.
    #[doc(alias = "share_memory_")]
    pub fn share(self) -> SharedCudaTensor<T> {
        CudaTensor::of(self.raw.open())
    }

    /// Takes it on a stream, for work that reads and writes it. The stream waits, on the device, for all that others do with it;
    /// this thread doesn't wait for that.
    ///
    /// # Errors
    /// As [`on`](Self::on).
    pub fn on_mut(&mut self, stream: &Stream) -> Result<LentMut<'_, T>> {
        Ok(LentMut::of(self.raw.lend(size_of::<T>(), stream, true)?, &self.raw.view))
    }
}

/// Seen otherwise, by value: what is left out can't be reached any more, and on an error the tensor is gone.
impl<T: Element> CudaTensor<T, Exclusive> {
    view_methods!(by_value);

    fn viewed(self, f: impl FnOnce(View) -> mp_core::Result<View>) -> mp_core::Result<Self> {
        let view = f(*self.raw.view)?;
        Ok(Self::of(self.raw.viewed(view)))
    }
}
