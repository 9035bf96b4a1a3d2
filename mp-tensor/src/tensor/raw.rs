//! # Safety
//! Common part of all tensors, for any element type and mode. Unsafe, because it determines the access under
//! which memory is attached to messages. Sound, because each mode attaches the memory with the access that
//! all its tensors have, and a tensor is received in the mode in which it was sent.
#![allow(unsafe_code)]

use std::borrow::Borrow;
use std::num::NonZero;

use crate::tensor::mode::{Exclusive, Mode, Sendable};
use crate::view::View;
use crate::view::recent::{self, ViewBox};
use crate::wire::grad::Grad;
use crate::wire::handle::{self, TensorHandle, TensorHeader};
use mp_core::DType;
use mp_core::Storage;
use mp_core::message::{Attached, Codec, LoanedValue, Outgoing, ReceivedAttachments, UnsentValues};
use mp_core::words::{Access, Grant};
use mp_core::{Error, Result};

/// Parts of a tensor without its element type: the storage, and a view of it. The view is within the storage,
/// in elements of the tensor. In a writable mode, no two indices of the view refer to the same element.
pub(crate) struct RawTensor<M: Mode> {
    pub(crate) keep: M::Keep,
    pub(crate) view: ViewBox,
    pub(crate) grad: Grad,
}

impl<M: Mode<Keep: Clone>> Clone for RawTensor<M> {
    fn clone(&self) -> Self {
        Self { keep: self.keep.clone(), view: self.view.clone(), grad: self.grad }
    }
}

/// Returns the grant for elements of this type. Frozen memory may be read as any type, so its grant has no
/// type: a storage and tensors of several types can view one attachment.
fn grant(access: Access, dtype: DType) -> Grant {
    Grant::new(access, if access == Access::Frozen { 0 } else { dtype.code() })
}

impl<M: Mode> RawTensor<M> {
    #[inline]
    pub(crate) fn storage(&self) -> &Storage {
        self.keep.borrow()
    }

    /// Returns another handle to the storage, with the view `view`.
    #[inline]
    pub(crate) fn another(&self, view: Box<View>) -> Self
    where
        M::Keep: Clone,
    {
        Self { keep: self.keep.clone(), view: ViewBox::Own(view), grad: self.grad.derived() }
    }

    /// Returns this handle with the view `view`.
    pub(crate) fn viewed(self, view: View) -> Self {
        Self { view: view.into(), grad: self.grad.derived(), keep: self.keep }
    }

    /// Checks that this process has mapped the memory.
    ///
    /// # Errors
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy.
    #[inline]
    pub(crate) fn here(&self) -> Result<()> {
        self.storage().hold().arena().me().map(drop)
    }

    /// Checks that the tensor is contiguous and its memory is mapped.
    #[inline]
    pub(crate) fn contiguous(&self) -> Result<()> {
        if !self.view.is_contiguous() {
            return not_a_slice(&self.view);
        }
        self.here()
    }
}

fn not_a_slice(view: &View) -> Result<()> {
    Err(Error::Shape(format!(
        "no slice: the tensor is not contiguous (strides {:?} of shape {:?}): use iter(), or contiguous()",
        view.strides(),
        view.shape()
    )))
}

#[cold]
fn overlaps(view: &View) -> Error {
    Error::Malformed(format!(
        "an exclusive tensor whose elements overlap: shape {:?}, strides {:?}",
        view.shape(),
        view.strides()
    ))
}

impl<M: Mode<Keep = Storage>> RawTensor<M> {
    /// Takes a tensor out of a message, and validates it.
    #[inline(always)]
    pub(crate) fn receive(
        inc: &mut ReceivedAttachments,
        handle: TensorHandle,
        access: Access,
        dtype: DType,
    ) -> Result<Self> {
        let sent = handle.dtype()?;
        if sent != dtype {
            return Err(Error::DType { expected: dtype, found: sent });
        }
        let TensorHandle { header, view, storage } = handle;
        let mut keep = Storage::received(inc.take(header.attachment(), grant(access, dtype))?);
        match view.end().and_then(|end| end.checked_mul(dtype.size())) {
            Some(end) if end <= keep.len() => {
                keep.set_end(end, storage)?;
            }
            _ => return Err(view.beyond(keep.len() / dtype.size())),
        }
        if access == Access::Exclusive && !view.is_injective() {
            return Err(overlaps(&view));
        }
        Ok(Self { keep, view: view.into(), grad: Grad::from_wire(header.requires()) })
    }
}

impl RawTensor<Exclusive> {
    /// Moves the memory into a message. An empty tensor remains.
    ///
    /// # Errors
    /// If the memory can't be attached. The tensor is unchanged then.
    pub(crate) fn lend<C: Codec>(&mut self, out: &mut Outgoing, dtype: DType) -> Result<()> {
        let requires = self.grad.to_wire()?;
        let grant = grant(Access::Exclusive, dtype);
        // SAFETY: this tensor is the only handle to its memory, and regains it only by `take_back`.
        let (attachment, bytes) = unsafe { self.keep.attach_to(out.attached(), grant) }?;
        let view = std::mem::replace(&mut self.view, recent::nothing().into()).into_shared();
        let header = TensorHeader::new(attachment, dtype.code(), requires);
        let storage = beyond(&view, dtype, bytes);
        let mut wire = [0; handle::MOST];
        let written = C::write_bytes(out, TensorHandle { header, view: &*view, storage }.write(&mut wire));
        let note = self.grad.bits();
        // SAFETY: the memory was moved into `out` above, and the loan describes it as this tensor did.
        let mark =
            unsafe { out.attached().lends(LoanedValue { attachment, grant, bytes, beside: view, note }) }?;
        self.grad = Grad::lent(mark);
        written
    }

    /// Takes the memory back from a message that was not sent, if this tensor has lent it.
    pub(crate) fn take_back(&mut self, back: &mut UnsentValues, dtype: DType) {
        if !self.keep.hold().is_nowhere() {
            return;
        }
        let Some(mark) = self.grad.lent_as() else { return };
        let Some((hold, lent)) = back.take(mark, grant(Access::Exclusive, dtype)) else { return };
        let keep = Storage::from_hold(hold, lent.bytes);
        // Another process may have overwritten the envelope that named the memory, so the view is validated
        // like a received one.
        let Ok(view) = lent.beside.clone().downcast::<View>() else { return };
        if view.fits(keep.len() / dtype.size()) && view.is_injective() {
            *self = Self { keep, view: view.into(), grad: Grad::from_bits(lent.note) };
        }
    }
}

impl<M: Sendable> RawTensor<M> {
    /// Attaches the memory to a message.
    pub(crate) fn send(&self, out: &mut Attached, dtype: DType) -> Result<TensorHandle<&View>> {
        let requires = self.grad.to_wire()?;
        // SAFETY: all tensors of this memory have this mode, and access it as the grant allows.
        let attachment = unsafe { out.attach(self.keep.hold(), grant(M::ACCESS, dtype)) }?;
        let storage = beyond(&self.view, dtype, self.keep.len());
        Ok(TensorHandle {
            header: TensorHeader::new(attachment, dtype.code(), requires),
            view: &self.view,
            storage,
        })
    }
}

/// Returns the size of a storage in bytes, or `None` if the storage ends with the last element of the view.
#[inline]
fn beyond(view: &View, dtype: DType, bytes: usize) -> Option<NonZero<u64>> {
    let end = view.end().and_then(|end| end.checked_mul(dtype.size()));
    if end == Some(bytes) { None } else { NonZero::new(bytes as u64) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mp_core::message::Outgoing;

    use super::*;
    use crate::Tensor;
    use crate::tensor::mode::Frozen;

    /// Lends a tensor of `elements` elements under another view, and takes the tensor back.
    fn lent_with(elements: usize, view: View) -> RawTensor<Exclusive> {
        let mut t = Tensor::full([elements], 1.5_f32).unwrap();
        let (mut out, grant) = (Outgoing::default(), grant(Access::Exclusive, DType::F32));
        // SAFETY: no other code accesses the memory of this tensor.
        let (attachment, bytes) = unsafe { t.raw.keep.attach_to(out.attached(), grant) }.unwrap();
        let lent = LoanedValue { attachment, grant, bytes, beside: Arc::new(view), note: 0 };
        // SAFETY: no element is accessed; the test checks that a wrong view is refused.
        t.raw.grad = Grad::lent(unsafe { out.attached().lends(lent) }.unwrap());
        t.raw.take_back(&mut out.returned(None), DType::F32);
        t.raw
    }

    #[test]
    fn tensor_loan_by_overlapping_or_long_view_is_refused() {
        let view =
            |shape: &[usize], strides: &[isize]| View::from_parts(0, shape, strides, usize::MAX).unwrap();
        assert_eq!(lent_with(4, view(&[2, 2], &[1, 2])).view.len(), 4);
        for (shape, strides) in [([2, 4], [0, 1]), ([4, 1], [0, 1]), ([2, 3], [1, 1]), ([5, 1], [1, 1])] {
            let raw = lent_with(4, view(&shape, &strides));
            assert!(raw.keep.hold().is_nowhere(), "{shape:?} {strides:?}");
        }
    }

    /// The bytes of a message can describe any view of an attached tensor.
    #[test]
    fn received_tensor_view_beyond_its_memory_is_refused() {
        let received = |elements: usize| {
            let t = Tensor::full([6], 1.5_f32).unwrap().freeze();
            let mut out = Outgoing::default();
            let header = t.raw.send(out.attached(), DType::F32).unwrap().header;
            let view = Arc::new(View::from_parts(0, &[elements], &[1], usize::MAX).unwrap());
            let handle = TensorHandle { header, view, storage: None };
            let mut inc = out.into_incoming();
            RawTensor::<Frozen>::receive(inc.arrived(), handle, Access::Frozen, DType::F32).map(drop)
        };
        received(6).unwrap();
        for beyond in [1 << 20, 1 << 40] {
            let refused = received(beyond);
            assert!(matches!(refused, Err(Error::OutOfBounds(_))), "{beyond}: {refused:?}");
        }
    }
}
