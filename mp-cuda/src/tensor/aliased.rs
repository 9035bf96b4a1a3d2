//! Tensors of which there may be several of one memory: clones and views.

use mp_tensor::parts::View;
use mp_tensor::{Element, Shared, aliasing_methods, view_methods};

use super::mode::CudaAliased;
use super::{CudaTensor, LentMut};
use crate::error::Result;
use crate::stream::Stream;

/// Another handle to the same memory.
impl<T: Element, M: CudaAliased> Clone for CudaTensor<T, M> {
    fn clone(&self) -> Self {
        Self::of(self.raw.clone())
    }
}

/// Views: other handles to the same memory, which see some of it, or all in another order.
impl<T: Element, M: CudaAliased> CudaTensor<T, M> {
    view_methods!(by_ref);
    aliasing_methods!();

    fn viewed(&self, f: impl FnOnce(View) -> mp_core::Result<View>) -> mp_core::Result<Self> {
        let view = f(*self.raw.view)?;
        Ok(Self::of(self.raw.another(view)))
    }

    fn pieces(&self, f: impl FnOnce(View) -> mp_core::Result<Vec<View>>) -> mp_core::Result<Vec<Self>> {
        let views = f(*self.raw.view)?.into_iter();
        Ok(views.map(|view| Self::of(self.raw.another(view))).collect())
    }
}

impl<T: Element> CudaTensor<T, Shared> {
    /// Takes it on a stream, for work that reads and writes it. The stream waits, on the device, for what the message said that
    /// brought it; not for other streams of this process, whose order is the program's own.
    ///
    /// # Errors
    /// As [`on`](Self::on).
    pub fn on_mut(&self, stream: &Stream) -> Result<LentMut<'_, T>> {
        Ok(LentMut::of(self.raw.lend(size_of::<T>(), stream, true)?, &self.raw.view))
    }
}
