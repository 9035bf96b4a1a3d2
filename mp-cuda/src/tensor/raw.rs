//! What all tensors on devices have in common, whatever their element type is.

use std::marker::PhantomData;
use std::sync::Arc;

use mp_core::{DType, mutant};
use mp_tensor::Exclusive;
use mp_tensor::parts::{Grad, View, row_major};

use super::CudaStorageId;
use super::mode::CudaMode;
use crate::error::Result;
use crate::memory::uses::{Access, Begun};
use crate::memory::{Mode, Piece};
use crate::stream::Stream;
use crate::uuid::Uuid;

/// A piece of memory and a view of it, which lies within it, counted in elements of the tensor that this is of.
pub(crate) struct Raw<M: CudaMode> {
    /// None of a tensor without elements, and of one that was moved into a message.
    pub(crate) piece: Option<Piece>,
    pub(crate) view: Arc<View>,
    pub(crate) grad: Grad,
    mode: PhantomData<M>,
}

impl<M: super::mode::CudaAliased> Clone for Raw<M> {
    fn clone(&self) -> Self {
        Self::of(self.piece.clone(), Arc::clone(&self.view), self.grad)
    }
}

impl<M: CudaMode> Raw<M> {
    /// Of parts that go together.
    pub(crate) fn of(piece: Option<Piece>, view: Arc<View>, grad: Grad) -> Self {
        Self { piece, view, grad, mode: PhantomData }
    }

    /// Of a view of it.
    pub(super) fn viewed(self, view: View) -> Self {
        Self::of(self.piece, Arc::new(view), self.grad.derived())
    }

    /// The device whose memory it has.
    pub(super) fn device(&self) -> Option<Uuid> {
        self.piece.as_ref().map(Piece::uuid)
    }

    pub(super) fn storage(&self) -> Option<CudaStorageId> {
        self.piece.as_ref().map(|piece| CudaStorageId(piece.id()))
    }

    /// Begins a use by a stream.
    pub(super) fn lend(&self, element: usize, stream: &Stream, writes: bool) -> Result<Used<'_>> {
        let access = Access { writes, shared: M::MODE == Mode::Shared };
        let stream = stream.clone();
        let Some(piece) = self.piece.as_ref().filter(|_| !self.view.is_empty()) else {
            return Ok(Used { piece: None, stream, access, address: 0, begun: None, ran: false });
        };
        let base = piece.open(stream.device())?;
        let begun = piece.uses().begin(&stream, access, &piece.row())?;
        let address = base + (self.view.offset() * element) as u64;
        Ok(Used { piece: Some(piece), stream, access, address, begun, ran: false })
    }
}

impl<M: super::mode::CudaAliased> Raw<M> {
    /// Another one, of a view of it.
    pub(super) fn another(&self, view: View) -> Self {
        Self::of(self.piece.clone(), Arc::new(view), self.grad.derived())
    }
}

impl Raw<Exclusive> {
    /// New memory, of the stream's device, for what the stream is given from now on.
    pub(super) fn new(shape: &[usize], dtype: DType, stream: &Stream) -> Result<Self> {
        let view = row_major(0, shape)?;
        let bytes = (view.len() * dtype.size()) as u64;
        let piece = if bytes == 0 { None } else { Some(Piece::allocate(stream.device(), bytes, stream)?) };
        Ok(Self::of(piece, view, Grad::default()))
    }

    /// The same, in another mode.
    pub(super) fn open<M: CudaMode>(self) -> Raw<M> {
        // It is the only one of its piece, which was opened in no mode before.
        if let Some(piece) = &self.piece {
            _ = piece.open_to_others(M::MODE);
        }
        Raw::of(self.piece, self.view, self.grad)
    }
}

/// A use of a piece by a stream, which ends when this is dropped. What it leaves when it is forgotten is a use without an end.
pub(super) struct Used<'a> {
    piece: Option<&'a Piece>,
    pub(super) stream: Stream,
    access: Access,
    /// Of the first element; 0 without elements.
    pub(super) address: u64,
    begun: Begun,
    ran: bool,
}

impl Used<'_> {
    /// Leaves it open: the value that has the piece ends it. Whether there is one.
    #[cfg(feature = "dlpack")]
    pub(super) fn into_open(mut self) -> bool {
        self.piece.take().is_some()
    }

    /// Waits until the stream has run what it was given; then the use is over.
    pub(super) fn synchronize(mut self) -> Result<()> {
        self.stream.synchronize()?;
        self.ran = true;
        // The stream may have been released from a wait for a process that died.
        match self.piece {
            Some(piece) if !self.access.shared && !mutant!("cuda.uses.read-though-lost") => {
                piece.uses().is_whole()
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        if let Some(piece) = self.piece {
            piece.uses().end(&self.stream, self.access, self.begun.filter(|_| self.ran));
        }
    }
}
