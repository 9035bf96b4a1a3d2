//! What the three tensor types have in common.

use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use super::element::Element;
use super::view::{View, Wire};
use crate::error::{Error, Result};
use crate::message::{Arrived, Attached};
use crate::storage::Storage;
use crate::words::Access;

/// A storage and a view of it. Says nothing about who may do what; the three tensor types do.
#[derive(Clone)]
pub(crate) struct Raw<T> {
    pub(crate) storage: Storage,
    pub(crate) view: View,
    pub(crate) elements: PhantomData<T>,
}

/// A tensor as it travels: which attachment, and which elements of it. The element type is in the attachment.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Handle(u32, Wire);

impl<T: Element> Raw<T> {
    pub(crate) fn new(shape: &[usize]) -> Result<Self> {
        let view = View::contiguous(shape)?;
        let storage = Storage::new::<T>(crate::Arena::current()?, view.numel())?;
        Ok(Self { storage, view, elements: PhantomData })
    }

    pub(crate) fn with(&self, view: View) -> Self {
        Self { storage: self.storage.clone(), view, elements: PhantomData }
    }

    /// Element positions in row-major order.
    pub(crate) fn positions(&self) -> impl ExactSizeIterator<Item = usize> + use<T> {
        let view = self.view;
        (0..view.numel()).map(move |i| view.nth(i))
    }

    pub(crate) fn chunks(&self, chunks: usize, dim: usize) -> Result<Vec<View>> {
        let n = match self.view.shape().get(dim) {
            Some(&n) if chunks > 0 => n,
            _ => return Err(Error::Shape(format!("{chunks} chunks along dimension {dim}"))),
        };
        let len = n.div_ceil(chunks).max(1);
        (0..n.max(1)).step_by(len).map(|at| self.view.narrow(dim, at, len.min(n - at))).collect()
    }

    pub(crate) fn attach(&self, out: &mut Attached, access: Access) -> Result<Handle> {
        let attachment = out.attach(self.storage.hold(), access, T::DTYPE as u8)?;
        Ok(Handle(attachment, self.view.to_wire()))
    }

    pub(crate) fn receive(inc: &mut Arrived, handle: &Handle, access: Access) -> Result<Self> {
        let Handle(attachment, view) = handle;
        let storage = Storage::received(inc.take(*attachment, access, T::DTYPE as u8)?);
        let view = View::from_wire(view, storage.len() / size_of::<T>())?;
        Ok(Self { storage, view, elements: PhantomData })
    }
}

/// The methods about shape that all three have.
macro_rules! shape_methods {
    () => {
        /// How many entries each dimension has.
        #[doc(alias = "size")]
        pub fn shape(&self) -> &[usize] {
            self.0.view.shape()
        }

        /// How many elements apart two neighbours are, along each dimension.
        #[doc(alias = "stride")]
        pub fn strides(&self) -> &[isize] {
            self.0.view.strides()
        }

        /// Which element of the storage the first one is.
        #[doc(alias = "storage_offset")]
        pub fn offset(&self) -> usize {
            self.0.view.offset()
        }

        /// How many elements it has.
        #[doc(alias = "numel")]
        pub fn len(&self) -> usize {
            self.0.view.numel()
        }

        /// Whether it has no elements.
        pub fn is_empty(&self) -> bool {
            self.len() == 0
        }

        /// The type of its elements.
        pub fn dtype(&self) -> $crate::DType {
            T::DTYPE
        }

        /// Whether its elements lie one after the other, in row-major order.
        pub fn is_contiguous(&self) -> bool {
            self.0.view.is_contiguous()
        }

        /// The memory that it is a view of.
        #[doc(alias = "untyped_storage")]
        pub fn storage(&self) -> &$crate::Storage {
            &self.0.storage
        }
    };
}

/// Views that share the storage, for the types that may.
macro_rules! view_methods {
    () => {
        /// `len` entries of dimension `dim` from `start` on, as a view of the same storage.
        ///
        /// # Errors
        /// [`Error::Shape`](crate::Error::Shape) when there are not that many.
        pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
            Ok(Self(self.0.with(self.0.view.narrow(dim, start, len)?)))
        }

        /// One entry of dimension `dim`, which disappears, as a view of the same storage.
        ///
        /// # Errors
        /// [`Error::Shape`](crate::Error::Shape) when there is no such entry.
        pub fn select(&self, dim: usize, index: usize) -> Result<Self> {
            Ok(Self(self.0.with(self.0.view.select(dim, index)?)))
        }

        /// Two dimensions exchanged, as a view of the same storage.
        ///
        /// # Errors
        /// [`Error::Shape`](crate::Error::Shape) when there is no such dimension.
        pub fn transpose(&self, a: usize, b: usize) -> Result<Self> {
            Ok(Self(self.0.with(self.0.view.transpose(a, b)?)))
        }

        /// Another shape for the same elements in the same order, as a view of the same storage.
        ///
        /// # Errors
        /// [`Error::Shape`](crate::Error::Shape) when the number of elements differs, or it is not contiguous.
        #[doc(alias = "view")]
        pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
            Ok(Self(self.0.with(self.0.view.reshape(shape)?)))
        }

        /// Cut along dimension `dim` into `chunks` views of equal length (the last one may be shorter).
        ///
        /// # Errors
        /// [`Error::Shape`](crate::Error::Shape) when there is no such dimension, or no chunks are asked.
        pub fn chunk(&self, chunks: usize, dim: usize) -> Result<Vec<Self>> {
            Ok(self.0.chunks(chunks, dim)?.into_iter().map(|v| Self(self.0.with(v))).collect())
        }
    };
}

pub(crate) use {shape_methods, view_methods};
