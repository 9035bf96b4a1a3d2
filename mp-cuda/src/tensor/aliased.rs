//! Tensors that share memory with others: clones and views.

use mp_tensor::parts::View;
use mp_tensor::{Element, Shared, aliasing_methods, view_methods};

use super::mode::CudaAliased;
use super::{CudaTensor, StreamGuardMut};
use crate::error::Result;
use crate::stream::CudaStream;

/// Returns another handle of the same memory.
impl<T: Element, M: CudaAliased> Clone for CudaTensor<T, M> {
    fn clone(&self) -> Self {
        Self::of(self.raw.clone())
    }
}

/// Views: other handles of the same memory, with some of the elements, or another order.
impl<T: Element, M: CudaAliased> CudaTensor<T, M> {
    view_methods!(&);
    aliasing_methods!(raw.view);

    fn another(&self, view: Box<View>) -> Self {
        Self::of(self.raw.another(view.into()))
    }
}

impl<T: Element> CudaTensor<T, Shared> {
    /// Loans the tensor to a stream, for work that reads and writes it. The stream waits, on the device, for
    /// the work in the message that brought the tensor. It does not wait for other streams of this process,
    /// which the program orders itself.
    ///
    /// # Errors
    /// Errors of [`on`](Self::on).
    pub fn on_mut(&self, stream: &CudaStream) -> Result<StreamGuardMut<'_, T>> {
        Ok(StreamGuardMut::of(self.raw.lend(size_of::<T>(), stream, true)?, &self.raw.view))
    }
}
