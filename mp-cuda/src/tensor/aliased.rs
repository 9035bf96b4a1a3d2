//! Tensors that share memory with other tensors: clones and views.

use mp_tensor::parts::View;
use mp_tensor::{Element, Shared, aliasing_methods, view_methods};

use super::mode::CudaAliased;
use super::{CudaTensor, StreamGuardMut};
use crate::error::Result;
use crate::stream::CudaStream;

/// Clones share the memory of the tensor.
impl<T: Element, M: CudaAliased> Clone for CudaTensor<T, M> {
    fn clone(&self) -> Self {
        Self::of(self.raw.clone())
    }
}

/// Views: tensors that share the memory, with fewer elements or another order of elements.
impl<T: Element, M: CudaAliased> CudaTensor<T, M> {
    view_methods!(&);
    aliasing_methods!(raw.view);

    fn another(&self, view: Box<View>) -> Self {
        Self::of(self.raw.another(view.into()))
    }
}

impl<T: Element> CudaTensor<T, Shared> {
    /// Loans the tensor to a stream, for work that reads and writes it. The stream waits, on the device, for
    /// the work that the sender had submitted before it sent the tensor. The stream does not wait for other
    /// streams of this process, which the program orders itself.
    ///
    /// # Errors
    /// Errors of [`on`](Self::on).
    pub fn on_mut(&self, stream: &CudaStream) -> Result<StreamGuardMut<'_, T>> {
        Ok(StreamGuardMut::of(self.raw.lend(size_of::<T>(), stream, true)?, &self.raw.view))
    }
}
