//! What all tensors have in common, whatever their element type is and whoever may use them.

use std::borrow::Borrow;
use std::sync::Arc;

use super::dtype::DType;
use super::grad::Grad;
use super::handle::{Handle, What};
use super::mode::{Mode, Sendable};
use super::view::View;
use crate::error::{Error, Result};
use crate::message::{Arrived, Attached};
use crate::storage::Storage;
use crate::words::{Access, Grant};

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
    /// [`Error::Forked`](crate::Error::Forked) in a forked copy of a process, where the memory isn't mapped.
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
        "strides {:?} of shape {:?} are no slice; iterate, or copy by contiguous()",
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
    /// Attaches it to a message.
    pub(crate) fn attach(&self, out: &mut Attached, access: Access, dtype: DType) -> Result<Handle<&View>> {
        let requires = self.grad.to_wire()?;
        let attachment = out.attach(self.keep.hold(), grant(access, dtype))?;
        Ok(Handle { what: What::new(attachment, dtype.code(), requires), view: &self.view })
    }

    /// Takes it out of a message, checked.
    #[inline(always)]
    pub(crate) fn receive(inc: &mut Arrived, handle: Handle, access: Access, dtype: DType) -> Result<Self> {
        let sent = handle.dtype()?;
        if sent != dtype {
            return Err(Error::DType { expected: dtype, found: sent });
        }
        let Handle { what, view } = handle;
        let keep = Storage::received(inc.take(what.attachment(), grant(access, dtype))?);
        view.within(keep.len() / dtype.size())?;
        if access == Access::Exclusive && !view.is_injective() {
            return Err(overlaps(&view));
        }
        Ok(Self { keep, view, grad: Grad::from_wire(what.requires()) })
    }
}

impl<M: Sendable> Raw<M> {
    pub(crate) fn send(&self, out: &mut Attached, dtype: DType) -> Result<Handle<&View>> {
        self.attach(out, M::ACCESS, dtype)
    }
}
