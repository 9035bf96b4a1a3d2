//! Tensors in messages. A message contains the view, the ticks for which receivers' streams wait, and the
//! attached piece. Encoding and decoding open no memory of a device.

use mp_core::message::{Codec, Incoming, Message, Outgoing, ReceivedAttachments, UnsentValues, scope};
use mp_core::{DType, Error as CoreError, Result as CoreResult};
use mp_tensor::parts::{Grad, TensorHandle, TensorHeader, View, nothing};
use mp_tensor::{Element, Exclusive};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::mode::{CudaAliased, CudaMode};
use super::raw::RawCudaTensor;
use super::wire::{self, ReceivedTensor};
use super::{AnyCudaTensor, CudaTensor};
use crate::error::Error;
use crate::memory::{Piece, PieceMode};
use crate::stream::order::tick;

fn unsendable(error: Error) -> CoreError {
    match error {
        Error::Core(error) => error,
        other => CoreError::Unsendable(other.to_string()),
    }
}

fn malformed(error: Error) -> CoreError {
    match error {
        Error::Core(error) => error,
        other => CoreError::Malformed(other.to_string()),
    }
}

impl<M: CudaMode> RawCudaTensor<M> {
    fn handle(&self, dtype: DType) -> CoreResult<TensorHandle<&View>> {
        let requires = self.grad.to_wire()?;
        Ok(TensorHandle {
            header: TensorHeader::new(0, dtype.code(), requires),
            view: &self.view,
            storage: None,
        })
    }

    /// Takes a tensor out of a message, and checks it.
    #[inline(always)]
    fn receive(
        arrived: &mut ReceivedAttachments,
        ReceivedTensor(handle, attachment): ReceivedTensor,
        dtype: DType,
    ) -> CoreResult<Self> {
        let found = handle.dtype()?;
        if found != dtype {
            return Err(CoreError::DType { expected: dtype, found });
        }
        let TensorHandle { header, view, .. } = handle;
        if M::MODE == PieceMode::Exclusive && !view.is_injective() {
            let why = format!(
                "an exclusive tensor whose elements overlap: shape {:?}, strides {:?}",
                view.shape(),
                view.strides()
            );
            return Err(CoreError::Malformed(why));
        }
        let grad = Grad::from_wire(header.requires());
        let Some((number, ticks)) = attachment else {
            return if view.is_empty() { Ok(Self::of(None, view, grad)) } else { Err(view.beyond(0)) };
        };
        for tick in &ticks {
            // Lost work is reported when a stream uses the tensor.
            if let Err(error @ Error::Malformed(_)) = tick::is_complete(*tick) {
                return Err(malformed(error));
            }
        }
        let piece = Piece::take(arrived, number, M::MODE).map_err(malformed)?;
        let elements = usize::try_from(piece.bytes()).unwrap_or(usize::MAX) / dtype.size();
        view.within(elements)?;
        piece.uses().record_received(&ticks);
        Ok(Self::of(Some(piece), view, grad))
    }
}

impl<M: CudaAliased> RawCudaTensor<M> {
    /// Encodes the tensor as part of the value that is being sent. The parts are written one by one, because
    /// the processor would wait for the copy of a combined value.
    fn write<S: Serializer>(&self, s: S, dtype: DType) -> Result<S::Ok, S::Error> {
        let refused = |error| S::Error::custom(unsendable(error));
        let handle = self.handle(dtype).map_err(S::Error::custom)?;
        let Some(piece) = &self.piece else {
            // A tensor without memory returns the same errors as a tensor with memory.
            scope::outgoing(M::WHAT, |_| Ok(())).map_err(S::Error::custom)?;
            return wire::bytes(&handle, None, |bytes| s.serialize_bytes(bytes));
        };
        piece.is_here().map_err(refused)?;
        let number = scope::outgoing(M::WHAT, |out| piece.attach(out).map_err(unsendable));
        let number = number.map_err(S::Error::custom)?;
        let written = M::MODE == PieceMode::Frozen;
        let ticks = piece.uses().cover(written).map_err(refused)?;
        wire::bytes(&handle, Some((number, &ticks)), |bytes| s.serialize_bytes(bytes))
    }

    /// Decodes the tensor as part of the value that is being received.
    fn read<'de, D: Deserializer<'de>>(d: D, dtype: Option<DType>) -> Result<(Self, DType), D::Error> {
        wire::read(d, |arriving| {
            let dtype = dtype.map_or_else(|| arriving.0.dtype(), Ok)?;
            scope::incoming(M::WHAT, |arrived| Ok((Self::receive(arrived, arriving, dtype)?, dtype)))
        })
    }
}

impl RawCudaTensor<Exclusive> {
    /// Moves the tensor into a message, which leaves an empty tensor.
    fn move_into<C: Codec>(&mut self, out: &mut Outgoing, dtype: DType) -> CoreResult<()> {
        let handle = self.handle(dtype)?;
        let Some(piece) = &self.piece else {
            return wire::bytes(&handle, None, |bytes| C::write_bytes(out, bytes));
        };
        piece.is_here().map_err(unsendable)?;
        let ticks = piece.uses().cover(false).map_err(unsendable)?;
        let number = piece.lend(out.attached(), &self.view).map_err(unsendable)?;
        // The message owns the piece from here on: another process may have it before this call returns.
        piece.leave();
        let attachment = Some((number, &ticks[..]));
        let written = wire::bytes(&handle, attachment, |bytes| C::write_bytes(out, bytes));
        let Some(piece) = self.piece.take() else { return written };
        self.view = nothing();
        let note = self.grad.bits();
        let mark = out.attached().lends_object(number, piece.into_moved(), note)?;
        self.grad = Grad::lent(mark);
        written
    }

    /// Restores the tensor from a message that was not sent.
    fn take_back(&mut self, back: &mut UnsentValues) {
        let Some(mark) = self.grad.lent_as() else { return };
        let Some((hold, lent)) = back.take_object(mark) else { return };
        let Some((piece, view)) = Piece::from_moved(&lent.beside) else { return };
        if piece.take_back(hold).is_ok() {
            *self = Self::of(Some(piece), view, Grad::from_bits(lent.note));
        }
    }
}

impl<T: Element> Message for CudaTensor<T, Exclusive> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> CoreResult<()> {
        self.raw.move_into::<C>(out, T::DTYPE)
    }

    fn take_back(&mut self, back: &mut UnsentValues) {
        self.raw.take_back(back);
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> CoreResult<Self> {
        let arriving = C::read_bytes(inc, ReceivedTensor::read)?;
        Ok(Self::of(RawCudaTensor::receive(inc.arrived(), arriving, T::DTYPE)?))
    }
}

impl Message for AnyCudaTensor<Exclusive> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> CoreResult<()> {
        self.raw.move_into::<C>(out, self.dtype)
    }

    fn take_back(&mut self, back: &mut UnsentValues) {
        self.raw.take_back(back);
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> CoreResult<Self> {
        let arriving = C::read_bytes(inc, ReceivedTensor::read)?;
        let dtype = arriving.0.dtype()?;
        Ok(Self { raw: RawCudaTensor::receive(inc.arrived(), arriving, dtype)?, dtype })
    }
}

impl<T: Element, M: CudaAliased> Serialize for CudaTensor<T, M> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.raw.write(s, T::DTYPE)
    }
}

impl<'de, T: Element, M: CudaAliased> Deserialize<'de> for CudaTensor<T, M> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        RawCudaTensor::read(d, Some(T::DTYPE)).map(|(raw, _)| Self::of(raw))
    }
}

impl<M: CudaAliased> Serialize for AnyCudaTensor<M> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.raw.write(s, self.dtype)
    }
}

impl<'de, M: CudaAliased> Deserialize<'de> for AnyCudaTensor<M> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        RawCudaTensor::read(d, None).map(|(raw, dtype)| Self { raw, dtype })
    }
}

#[cfg(test)]
mod tests {
    use mp_core::Arena;
    use mp_core::clocks::{Clock, Tick};
    use mp_core::message::Incoming;
    use mp_tensor::Frozen;
    use mp_tensor::parts::row_major;

    use super::*;
    use crate::Uuid;

    const BYTES: u64 = 4096;

    /// Receives a message with a frozen tensor. `offset` and `elements` are its view, and receivers wait for
    /// `tick`.
    fn received(offset: usize, elements: usize, tick: Tick) -> CoreResult<RawCudaTensor<Frozen>> {
        let piece = Piece::without_driver(Uuid([7; 16]), BYTES).unwrap();
        assert!(piece.share_as(PieceMode::Frozen));
        let mut out = Outgoing::default();
        let number = piece.attach(out.attached()).unwrap();
        let view = row_major(offset, &[elements])?;
        let handle =
            TensorHandle { header: TensorHeader::new(0, DType::F32.code(), false), view, storage: None };
        let mut inc: Incoming = out.into_incoming();
        RawCudaTensor::receive(inc.arrived(), ReceivedTensor(handle, Some((number, vec![tick]))), DType::F32)
    }

    #[track_caller]
    fn refused(offset: usize, elements: usize, tick: Tick, why: &str) {
        let error = received(offset, elements, tick).map(drop).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn device_tensor_with_invalid_view_or_tick_is_refused() {
        let mut clock = Clock::claim(Arena::current().unwrap()).unwrap();
        let tick = clock.next().unwrap();
        refused(0, 1024, tick, "is not a tick of a stream");
        clock.submitted(tick).unwrap();
        let there = received(0, 1024, tick).unwrap();
        let piece = there.piece.as_ref().unwrap();
        assert_eq!(piece.uses().cover(true).unwrap(), [tick], "the receiver waits for the tick");
        for (offset, elements) in [(0, 1025), (1, 1024), (1024, 1), (usize::MAX / 8, 1)] {
            refused(offset, elements, tick, "outside of a storage of 1024 elements");
        }
        assert!(received(1023, 1, tick).is_ok() && received(1024, 0, tick).is_ok());
        clock.complete(tick).unwrap();
    }

    #[test]
    fn exclusive_device_view_with_overlap_is_refused() {
        let receive = |view: View| {
            let piece = Piece::without_driver(Uuid([7; 16]), BYTES).unwrap();
            let mut out = Outgoing::default();
            let number = piece.lend(out.attached(), &nothing()).unwrap();
            let header = TensorHeader::new(0, DType::F32.code(), false);
            let handle = TensorHandle { header, view: view.into(), storage: None };
            let mut inc: Incoming = out.into_incoming();
            let arriving = ReceivedTensor(handle, Some((number, Vec::new())));
            RawCudaTensor::<Exclusive>::receive(inc.arrived(), arriving, DType::F32).map(drop)
        };
        assert!(receive(View::contiguous(&[4, 1]).unwrap()).is_ok());
        let error =
            receive(View::contiguous(&[4, 1]).unwrap().with(|v| v.expand(&[4, 2])).unwrap()).unwrap_err();
        assert!(error.to_string().contains("whose elements overlap"), "{error}");
    }
}
