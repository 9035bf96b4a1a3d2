//! # Safety
//! The tensor with one owner. Unsafe, because it makes `&mut [T]` of shared memory; sound, because a
//! `Tensor` is the only handle to its storage among all processes: it is made with fresh memory, it is no
//! `Clone`; sending and receiving it require that no other handle exists in the process and that the block has never
//! been frozen or shared, which the block itself remembers.
#![allow(unsafe_code)]

use super::element::Element;
use super::frozen::FrozenTensor;
use super::raw::{Raw, shape_methods};
use super::shared::SharedTensor;
use crate::error::{Error, Result};
use crate::message::{Codec, Incoming, Message, Outgoing};
use crate::words::{Access, Kind};

/// A tensor in shared memory with one owner among all processes, who may write.
///
/// ```
/// use mp_core::Tensor;
///
/// let mut t = Tensor::<f32>::zeros(&[2, 3])?;
/// t.as_mut_slice()?[4] = 1.5;
/// assert_eq!(t.get(&[1, 1])?, 1.5);
/// let frozen = t.freeze(); // from now on anybody may read it, and nobody write
/// assert_eq!(frozen.select(0, 1)?.to_vec(), [0.0, 1.5, 0.0]);
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// It moves: putting it into a queue takes it away from the sender without copying a byte, and the receiver is its
/// new owner. If the owner dies, its memory is free again.
pub struct Tensor<T: Element>(pub(crate) Raw<T>);

impl<T: Element> Tensor<T> {
    shape_methods!();

    /// A tensor whose elements are whatever the memory held.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::Shape`] for a shape that is too large.
    pub fn empty(shape: &[usize]) -> Result<Self> {
        Ok(Self(Raw::new(shape)?))
    }

    /// A tensor of one value.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn full(shape: &[usize], value: T) -> Result<Self> {
        let mut t = Self::empty(shape)?;
        t.as_mut_slice()?.fill(value);
        Ok(t)
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn zeros(shape: &[usize]) -> Result<Self> {
        Self::full(shape, T::zeroed())
    }

    /// A copy of `data`, in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::empty`], and [`Error::Shape`] when `shape` has another number of elements.
    #[doc(alias = "share_memory_")]
    pub fn from_slice(data: &[T], shape: &[usize]) -> Result<Self> {
        let mut t = Self::empty(shape)?;
        if t.len() != data.len() {
            return Err(Error::Shape(format!("{} elements for a tensor of shape {shape:?}", data.len())));
        }
        t.as_mut_slice()?.copy_from_slice(data);
        Ok(t)
    }

    /// A tensor of `f(0)`, `f(1)`, …, in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn from_fn(shape: &[usize], mut f: impl FnMut(usize) -> T) -> Result<Self> {
        let mut t = Self::empty(shape)?;
        t.as_mut_slice()?.iter_mut().enumerate().for_each(|(i, to)| *to = f(i));
        Ok(t)
    }

    /// Its elements, in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`] when it is not contiguous (after [`transpose`](Self::transpose), say).
    pub fn as_slice(&self) -> Result<&[T]> {
        self.contiguous()?;
        // SAFETY: `self` is the only handle, and is borrowed: nobody writes.
        Ok(unsafe { self.0.storage.slice(self.offset(), self.len()) })
    }

    /// Its elements, in row-major order, to write.
    ///
    /// # Errors
    /// [`Error::Shape`] when it is not contiguous.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        self.contiguous()?;
        let (first, len) = (self.offset(), self.len());
        // SAFETY: `self` is the only handle among all processes, and is borrowed mutably.
        Ok(unsafe { self.0.storage.slice_mut(first, len) })
    }

    fn contiguous(&self) -> Result<()> {
        if self.is_contiguous() {
            return Ok(());
        }
        Err(Error::Shape(format!("strides {:?} of shape {:?} are no slice", self.strides(), self.shape())))
    }

    /// One element.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such element.
    pub fn get(&self, index: &[usize]) -> Result<T> {
        self.0.storage.hold().arena().me()?;
        Ok(self.0.storage.load(self.0.view.position(index)?))
    }

    /// Writes one element.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such element.
    pub fn set(&mut self, index: &[usize], value: T) -> Result<()> {
        self.0.storage.hold().arena().me()?;
        self.0.storage.store(self.0.view.position(index)?, value);
        Ok(())
    }

    /// Its elements, in row-major order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        self.0.positions().map(|p| self.0.storage.load(p))
    }

    /// A copy of its elements in ordinary memory, in row-major order.
    pub fn to_vec(&self) -> Vec<T> {
        self.as_slice().map_or_else(|_| self.iter().collect(), <[T]>::to_vec)
    }

    /// As [`FrozenTensor::narrow`], for the whole tensor: the rest of the storage can't be reached any more.
    ///
    /// # Errors
    /// [`Error::Shape`] when there are not that many entries.
    pub fn narrow(mut self, dim: usize, start: usize, len: usize) -> Result<Self> {
        self.0.view = self.0.view.narrow(dim, start, len)?;
        Ok(self)
    }

    /// As [`FrozenTensor::transpose`].
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such dimension.
    pub fn transpose(mut self, a: usize, b: usize) -> Result<Self> {
        self.0.view = self.0.view.transpose(a, b)?;
        Ok(self)
    }

    /// As [`FrozenTensor::reshape`].
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of elements differs, or it is not contiguous.
    pub fn reshape(mut self, shape: &[usize]) -> Result<Self> {
        self.0.view = self.0.view.reshape(shape)?;
        Ok(self)
    }

    /// Makes it readable by anybody and writable by nobody, for ever.
    pub fn freeze(self) -> FrozenTensor<T> {
        self.0.storage.open_to_others(Kind::Frozen);
        FrozenTensor(self.0)
    }

    /// Makes it readable and writable by anybody, through relaxed atomics.
    #[doc(alias = "share_memory_")]
    pub fn share(self) -> SharedTensor<T> {
        self.0.storage.open_to_others(Kind::Shared);
        SharedTensor(self.0)
    }
}

impl<T: Element> Message for Tensor<T> {
    fn encode<C: Codec>(&self, out: &mut Outgoing) -> Result<()> {
        let handle = self.0.attach(out.attached(), Access::Exclusive)?;
        C::write(out, &handle)
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self> {
        let handle = C::read(inc)?;
        Ok(Self(Raw::receive(inc.arrived(), &handle, Access::Exclusive)?))
    }
}
