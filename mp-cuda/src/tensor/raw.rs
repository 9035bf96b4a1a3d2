//! Tensor on a device without its element type.

use std::marker::PhantomData;
use std::sync::Arc;

use mp_core::DType;
use mp_tensor::Exclusive;
use mp_tensor::parts::{Grad, View, row_major};

use super::CudaStorageId;
use super::mode::CudaMode;
use crate::error::Result;
use crate::memory::stream_uses::{UseAccess, UseNumber};
use crate::memory::{Piece, PieceMode};
use crate::stream::CudaStream;
use crate::uuid::Uuid;

/// Tensor without its element type: a piece of memory, and a view that lies within the piece. The view counts
/// elements.
pub(crate) struct RawCudaTensor<M: CudaMode> {
    /// Piece of memory. `None` for a tensor without elements, and for a tensor that was moved into a message.
    pub(crate) piece: Option<Piece>,
    pub(crate) view: Arc<View>,
    pub(crate) grad: Grad,
    mode: PhantomData<M>,
}

impl<M: super::mode::CudaAliased> Clone for RawCudaTensor<M> {
    fn clone(&self) -> Self {
        Self::of(self.piece.clone(), Arc::clone(&self.view), self.grad)
    }
}

impl<M: CudaMode> RawCudaTensor<M> {
    /// Creates a tensor. The caller guarantees that the view lies within the piece.
    pub(crate) fn of(piece: Option<Piece>, view: Arc<View>, grad: Grad) -> Self {
        Self { piece, view, grad, mode: PhantomData }
    }

    /// Replaces the view.
    pub(super) fn viewed(self, view: View) -> Self {
        Self::of(self.piece, Arc::new(view), self.grad.derived())
    }

    /// Returns the device of the memory.
    pub(super) fn device(&self) -> Option<Uuid> {
        self.piece.as_ref().map(Piece::uuid)
    }

    pub(super) fn storage(&self) -> Option<CudaStorageId> {
        self.piece.as_ref().map(|piece| CudaStorageId(piece.id()))
    }

    /// Begins a use of the tensor by a stream. `element` is the size of an element in bytes.
    pub(super) fn lend(&self, element: usize, stream: &CudaStream, writes: bool) -> Result<TensorUse<'_>> {
        let access = UseAccess { writes, shared: M::MODE == PieceMode::Shared };
        let stream = stream.clone();
        let Some(piece) = self.piece.as_ref().filter(|_| !self.view.is_empty()) else {
            return Ok(TensorUse { piece: None, stream, access, address: 0, begun: None, ran: false });
        };
        let base = piece.open(stream.device())?;
        let begun = piece.uses().begin(&stream, access, &piece.row())?;
        let address = base + (self.view.offset() * element) as u64;
        Ok(TensorUse { piece: Some(piece), stream, access, address, begun, ran: false })
    }
}

impl<M: super::mode::CudaAliased> RawCudaTensor<M> {
    /// Returns a tensor with this view, which shares the memory.
    pub(super) fn another(&self, view: Arc<View>) -> Self {
        Self::of(self.piece.clone(), view, self.grad.derived())
    }
}

impl RawCudaTensor<Exclusive> {
    /// Allocates memory of the stream's device, for work that is submitted to the stream from now on.
    pub(super) fn new(shape: &[usize], dtype: DType, stream: &CudaStream) -> Result<Self> {
        let view = row_major(0, shape)?;
        let bytes = (view.len() * dtype.size()) as u64;
        let piece = if bytes == 0 { None } else { Some(Piece::allocate(stream.device(), bytes, stream)?) };
        Ok(Self::of(piece, view, Grad::default()))
    }

    /// Converts the tensor to another mode.
    pub(super) fn open<M: CudaMode>(self) -> RawCudaTensor<M> {
        // This is the only tensor of its piece, which was never opened.
        if let Some(piece) = &self.piece {
            _ = piece.share_as(M::MODE);
        }
        RawCudaTensor::of(self.piece, self.view, self.grad)
    }
}

/// Use of a piece by a stream. Dropping the value ends the use. If the value is forgotten, the use never
/// ends.
pub(super) struct TensorUse<'a> {
    piece: Option<&'a Piece>,
    pub(super) stream: CudaStream,
    access: UseAccess,
    /// Address of the first element, or 0 if there are no elements.
    pub(super) address: u64,
    begun: UseNumber,
    ran: bool,
}

impl TensorUse<'_> {
    /// Drops the value without ending the use, which the caller has to end. Returns `true` if there is a
    /// piece.
    #[cfg(feature = "dlpack")]
    pub(super) fn into_open(mut self) -> bool {
        self.piece.take().is_some()
    }

    /// Waits until the stream has run its work, and ends the use.
    pub(super) fn synchronize(mut self) -> Result<()> {
        self.stream.synchronize()?;
        self.ran = true;
        // The stream may have been released from a wait for a dead process.
        match self.piece {
            Some(piece) if !self.access.shared => piece.uses().check_complete(),
            _ => Ok(()),
        }
    }
}

impl Drop for TensorUse<'_> {
    fn drop(&mut self) {
        if let Some(piece) = self.piece {
            piece.uses().end(&self.stream, self.access, self.begun.filter(|_| self.ran));
        }
    }
}
