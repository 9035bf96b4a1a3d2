//! # Safety
//! What all tensors have in common, whatever their element type is and whichever access they allow. Unsafe, because it says as
//! what their memory is attached to messages; sound, because each mode attaches it as what all its tensors do with it, and a
//! tensor is made of what arrives in the mode that it was sent in.
#![allow(unsafe_code)]

use std::borrow::Borrow;
use std::num::NonZero;
use std::sync::Arc;

use crate::tensor::mode::{Exclusive, Mode, Sendable};
use crate::view::View;
use crate::view::recent;
use crate::wire::grad::Grad;
use crate::wire::handle::{self, Handle, What};
use mp_core::DType;
use mp_core::Storage;
use mp_core::message::{Arrived, Attached, Codec, Lent, Outgoing, Returned};
use mp_core::words::{Access, Grant};
use mp_core::{Error, Result};

/// A storage and a view of it. The view lies within the storage, counted in elements of the tensor that this is of;
/// in a mode that writes, no two of its indices are one element.
pub(crate) struct Raw<M: Mode> {
    pub(crate) keep: M::Keep,
    /// Apart, since a view is large: a tensor is moved more often than it is made, and clones share it.
    pub(crate) view: Arc<View>,
    pub(crate) grad: Grad,
}

impl<M: Mode<Keep: Clone>> Clone for Raw<M> {
    fn clone(&self) -> Self {
        Self { keep: self.keep.clone(), view: self.view.clone(), grad: self.grad }
    }
}

/// What the attachment word says about the elements. Frozen memory may be read as any type, so that a storage and
/// tensors of several types can be views of one attachment.
fn grant(access: Access, dtype: DType) -> Grant {
    Grant::new(access, if access == Access::Frozen { 0 } else { dtype.code() })
}

impl<M: Mode> Raw<M> {
    #[inline]
    pub(crate) fn storage(&self) -> &Storage {
        self.keep.borrow()
    }

    /// Another one, of a view of it.
    pub(crate) fn another(&self, view: View) -> Self
    where
        M::Keep: Clone,
    {
        Self { keep: self.keep.clone(), view: Arc::new(view), grad: self.grad.derived() }
    }

    /// Of a view of it.
    pub(crate) fn viewed(self, view: View) -> Self {
        Self { view: Arc::new(view), grad: self.grad.derived(), keep: self.keep }
    }

    /// # Errors
    /// [`Error::Forked`](mp_core::Error::Forked) in a forked copy of a process, where the memory isn't mapped.
    #[inline]
    pub(crate) fn here(&self) -> Result<()> {
        self.storage().hold().arena().me().map(drop)
    }

    /// # Errors
    /// When it is not a slice, or there is no memory here.
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
        "no slice, since it is not contiguous (strides {:?} of shape {:?}): iterate by iter(), or copy by contiguous()",
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

impl<M: Mode<Keep = Storage>> Raw<M> {
    /// Takes it out of a message, checked.
    #[inline(always)]
    pub(crate) fn receive(inc: &mut Arrived, handle: Handle, access: Access, dtype: DType) -> Result<Self> {
        let sent = handle.dtype()?;
        if sent != dtype {
            return Err(Error::DType { expected: dtype, found: sent });
        }
        let Handle { what, view, storage } = handle;
        let mut keep = Storage::received(inc.take(what.attachment(), grant(access, dtype))?);
        match view.end().and_then(|end| end.checked_mul(dtype.size())) {
            Some(end) if end <= keep.len() || mp_core::mutant!("handle.view-not-within") => {
                keep.ends_at(end, storage)?;
            }
            _ => return Err(view.beyond(keep.len() / dtype.size())),
        }
        if access == Access::Exclusive
            && !view.is_injective()
            && !mp_core::mutant!("handle.overlap-not-refused")
        {
            return Err(overlaps(&view));
        }
        Ok(Self { keep, view, grad: Grad::from_wire(what.requires()) })
    }
}

impl Raw<Exclusive> {
    /// Moves its memory into a message; what is left is an empty tensor.
    ///
    /// # Errors
    /// When it can't be attached; then it stays as it is.
    pub(crate) fn lend<C: Codec>(&mut self, out: &mut Outgoing, dtype: DType) -> Result<()> {
        let requires = self.grad.to_wire()?;
        let grant = grant(Access::Exclusive, dtype);
        // SAFETY: this tensor is the only one of its memory, and keeps nothing of it but by `take_back`.
        let (attachment, bytes) = unsafe { self.keep.lend(out.attached(), grant) }?;
        let view = std::mem::replace(&mut self.view, recent::nothing());
        let what = What::new(attachment, dtype.code(), requires);
        let storage = beyond(&view, dtype, bytes);
        let mut wire = [0; handle::MOST];
        let written = C::write_bytes(out, Handle { what, view: &*view, storage }.write(&mut wire));
        let note = self.grad.bits();
        // SAFETY: moved there just now, and described as this tensor was.
        let mark = unsafe { out.attached().lends(Lent { attachment, grant, bytes, beside: view, note }) }?;
        self.grad = Grad::lent(mark);
        written
    }

    /// Takes back what it lent, if it did.
    pub(crate) fn take_back(&mut self, back: &mut Returned, dtype: DType) {
        if !self.keep.hold().is_nowhere() {
            return;
        }
        let Some(mark) = self.grad.lent_as() else { return };
        let Some((hold, lent)) = back.take(mark, grant(Access::Exclusive, dtype)) else { return };
        let keep = Storage::of(hold, lent.bytes);
        // The memory is what was found in the envelope, which another process may have overwritten; the view is checked as one that
        // arrives.
        let Ok(view) = lent.beside.clone().downcast::<View>() else { return };
        if view.fits(keep.len() / dtype.size()) && view.is_injective() {
            *self = Self { keep, view, grad: Grad::from_bits(lent.note) };
        }
    }
}

impl<M: Sendable> Raw<M> {
    /// Attaches it to a message.
    pub(crate) fn send(&self, out: &mut Attached, dtype: DType) -> Result<Handle<&View>> {
        let requires = self.grad.to_wire()?;
        // SAFETY: all tensors of this memory are of this mode, and reach it as the grant says.
        let attachment = unsafe { out.attach(self.keep.hold(), grant(M::ACCESS, dtype)) }?;
        let storage = beyond(&self.view, dtype, self.keep.len());
        Ok(Handle { what: What::new(attachment, dtype.code(), requires), view: &self.view, storage })
    }
}

/// How many bytes a storage has, if it does not end where the view does.
#[inline]
fn beyond(view: &View, dtype: DType, bytes: usize) -> Option<NonZero<u64>> {
    let end = view.end().and_then(|end| end.checked_mul(dtype.size()));
    if end == Some(bytes) { None } else { NonZero::new(bytes as u64) }
}

#[cfg(test)]
mod tests {
    use mp_core::message::Outgoing;

    use super::*;
    use crate::Tensor;
    use crate::tensor::mode::Frozen;

    /// Lends a tensor of `elements` elements with a view that its lender did not have, and takes it back.
    fn lent_with(elements: usize, view: View) -> Raw<Exclusive> {
        let mut t = Tensor::full([elements], 1.5_f32).unwrap();
        let (mut out, grant) = (Outgoing::default(), grant(Access::Exclusive, DType::F32));
        // SAFETY: nothing else reaches the memory of this tensor.
        let (attachment, bytes) = unsafe { t.raw.keep.lend(out.attached(), grant) }.unwrap();
        let lent = Lent { attachment, grant, bytes, beside: Arc::new(view), note: 0 };
        // SAFETY: none of it is reached; the test asks whether a wrong view is refused.
        t.raw.grad = Grad::lent(unsafe { out.attached().lends(lent) }.unwrap());
        t.raw.take_back(&mut out.returned(None), DType::F32);
        t.raw
    }

    #[test]
    fn loan_with_overlapping_or_long_view_is_refused() {
        let view =
            |shape: &[usize], strides: &[isize]| View::from_parts(0, shape, strides, usize::MAX).unwrap();
        assert_eq!(lent_with(4, view(&[2, 2], &[1, 2])).view.len(), 4);
        for (shape, strides) in [([2, 4], [0, 1]), ([4, 1], [0, 1]), ([2, 3], [1, 1]), ([5, 1], [1, 1])] {
            let raw = lent_with(4, view(&shape, &strides));
            assert!(raw.keep.hold().is_nowhere(), "{shape:?} {strides:?}");
        }
    }

    /// The bytes of a message can say anything of a tensor that is attached to it.
    #[test]
    fn a_view_beyond_what_is_attached_is_refused() {
        let received = |elements: usize| {
            let t = Tensor::full([6], 1.5_f32).unwrap().freeze();
            let mut out = Outgoing::default();
            let what = t.raw.send(out.attached(), DType::F32).unwrap().what;
            let view = Arc::new(View::from_parts(0, &[elements], &[1], usize::MAX).unwrap());
            let handle = Handle { what, view, storage: None };
            let mut inc = out.into_incoming();
            Raw::<Frozen>::receive(inc.arrived(), handle, Access::Frozen, DType::F32).map(drop)
        };
        received(6).unwrap();
        for beyond in [1 << 20, 1 << 40] {
            let refused = received(beyond);
            assert!(matches!(refused, Err(Error::OutOfBounds(_))), "{beyond}: {refused:?}");
        }
    }
}
