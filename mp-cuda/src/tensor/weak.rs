//! Weak references to tensors.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use mp_tensor::Element;
use mp_tensor::parts::{Grad, View};

use super::CudaTensor;
use super::mode::CudaAliased;
use super::raw::RawCudaTensor;
use crate::memory::WeakPiece;

/// Weak reference to a tensor, from [`downgrade`](CudaTensor::downgrade). The reference does not keep the
/// memory alive.
///
/// ```no_run
/// use mp_cuda::{CudaTensor, Device, CudaStream};
///
/// let stream = CudaStream::new(&Device::new(0)?)?;
/// let weights = CudaTensor::<f32>::zeros([1000], &stream)?.freeze();
/// let weak = weights.downgrade();
/// assert_eq!(weak.upgrade().map(|t| t.storage()), Some(weights.storage()));
/// drop(weights);
/// assert!(weak.expired()); // in this process; other processes may have the tensor
/// # Ok::<(), mp_cuda::Error>(())
/// ```
#[doc(alias = "StorageWeakRef")]
pub struct WeakCudaTensor<T: Element, M: CudaAliased> {
    /// Piece of memory. `None` for a tensor without elements.
    piece: Option<WeakPiece>,
    view: Arc<View>,
    grad: Grad,
    kind: PhantomData<(T, M)>,
}

impl<T: Element, M: CudaAliased> WeakCudaTensor<T, M> {
    /// Returns the tensor, if this process still has a handle of its memory.
    #[must_use]
    pub fn upgrade(&self) -> Option<CudaTensor<T, M>> {
        let piece = match &self.piece {
            Some(piece) => Some(piece.upgrade()?),
            None => None,
        };
        Some(CudaTensor::of(RawCudaTensor::of(piece, Arc::clone(&self.view), self.grad)))
    }

    /// Returns `true` if this process has no handle of the memory, even if another process has one.
    #[must_use]
    pub fn expired(&self) -> bool {
        self.piece.as_ref().is_some_and(|piece| piece.upgrade().is_none())
    }
}

impl<T: Element, M: CudaAliased> CudaTensor<T, M> {
    /// Returns a weak reference, which does not keep the memory alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakCudaTensor<T, M> {
        let RawCudaTensor { piece, view, grad, .. } = &self.raw;
        let piece = piece.as_ref().map(crate::memory::Piece::downgrade);
        WeakCudaTensor { piece, view: Arc::clone(view), grad: *grad, kind: PhantomData }
    }
}

impl<T: Element, M: CudaAliased> Clone for WeakCudaTensor<T, M> {
    fn clone(&self) -> Self {
        let Self { piece, view, grad, .. } = self;
        Self { piece: piece.clone(), view: Arc::clone(view), grad: *grad, kind: PhantomData }
    }
}

impl<T: Element, M: CudaAliased> fmt::Debug for WeakCudaTensor<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakCudaTensor").field("expired", &self.expired()).finish_non_exhaustive()
    }
}
