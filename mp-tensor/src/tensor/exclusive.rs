//! Exclusive tensors: constructors, and conversions to other modes.

use crate::element::Element;
use crate::tensor::mode::{Exclusive, Frozen, Mode, Shared};
use crate::tensor::raw::RawTensor;
use crate::view::recent;
use crate::view::{View, count};
use crate::view_methods;
use crate::wire::handle::TensorHandle;
use crate::{FrozenTensor, SharedTensor, Tensor};
use mp_core::Storage;
use mp_core::message::{Codec, Incoming, Message, Outgoing, UnsentValues};
use mp_core::words::{Access, BlockKind};
use mp_core::{Error, Result};

impl RawTensor<Exclusive> {
    /// Allocates a tensor of this shape, with elements of `element` bytes.
    pub(crate) fn new(shape: &[usize], element: usize) -> Result<Self> {
        let view = recent::row_major(0, shape)?;
        let keep = Storage::new(mp_core::Arena::current()?, view.len(), element)?;
        Ok(Self { keep, view: view.into(), grad: Default::default() })
    }

    /// Converts the tensor to mode `M`. Marks its block as `kind`, which is the kind for that mode.
    pub(crate) fn open<M: Mode<Keep = Storage>>(self, kind: BlockKind) -> RawTensor<M> {
        self.keep.share_as(kind);
        RawTensor { keep: self.keep, view: self.view, grad: self.grad }
    }
}

impl<T: Element> Tensor<T, Exclusive> {
    /// Creates a tensor with unspecified elements. A shape is an array, a slice or a `Vec`, by value or by
    /// reference, in this and all other functions.
    ///
    /// ```
    /// use mp_tensor::Tensor;
    ///
    /// let (rows, batch) = (vec![3, 4], Tensor::<u8>::zeros([2, 3, 4])?);
    /// assert_eq!(Tensor::<u8>::zeros(rows)?, batch.view().select(0, 0)?);
    /// # Ok::<(), mp_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::LimitExceeded`] for a shape that is too
    /// large.
    pub fn empty(shape: impl AsRef<[usize]>) -> Result<Self> {
        Ok(Self::of(RawTensor::new(shape.as_ref(), size_of::<T>())?))
    }

    /// Creates a tensor of equal elements.
    ///
    /// # Errors
    /// See [`Tensor::empty`].
    pub fn full(shape: impl AsRef<[usize]>, value: T) -> Result<Self> {
        let mut t = Self::empty(shape)?;
        t.as_mut_slice()?.fill(value);
        Ok(t)
    }

    /// Creates a tensor of zeros.
    ///
    /// # Errors
    /// See [`Tensor::empty`].
    pub fn zeros(shape: impl AsRef<[usize]>) -> Result<Self> {
        Self::full(shape, T::zeroed())
    }

    /// Copies `data`, in row-major order.
    ///
    /// # Errors
    /// See [`Tensor::empty`], and [`Error::Shape`] if `shape` has another number of elements.
    #[doc(alias = "share_memory_")]
    #[doc(alias = "from_vec")]
    pub fn from_slice(data: &[T], shape: impl AsRef<[usize]>) -> Result<Self> {
        let shape = shape.as_ref();
        let wanted = count(shape)?;
        if wanted != data.len() {
            let why = format!("{} elements for a tensor of shape {shape:?}, which has {wanted}", data.len());
            return Err(Error::Shape(why));
        }
        let mut t = Self::empty(shape)?;
        t.as_mut_slice()?.copy_from_slice(data);
        Ok(t)
    }

    /// Creates a tensor from an iterator with as many elements as its shape.
    pub(crate) fn made_of(shape: &[usize], elements: impl Iterator<Item = T>) -> Result<Self> {
        let mut t = Self::empty(shape)?;
        let mut to = t.as_mut_slice()?.iter_mut();
        elements.for_each(|v| _ = to.next().map(|to| *to = v));
        Ok(t)
    }

    /// Creates a tensor of `f(0)`, `f(1)`, …, in row-major order.
    ///
    /// # Errors
    /// See [`Tensor::empty`].
    pub fn from_fn(shape: impl AsRef<[usize]>, mut f: impl FnMut(usize) -> T) -> Result<Self> {
        let mut t = Self::empty(shape)?;
        t.as_mut_slice()?.iter_mut().enumerate().for_each(|(i, to)| *to = f(i));
        Ok(t)
    }

    /// Makes the tensor readable by any process. The tensor can never be written again.
    pub fn freeze(self) -> FrozenTensor<T> {
        Tensor::<T, Frozen>::of(self.raw.open(BlockKind::Frozen))
    }

    /// Makes the tensor readable and writable by any process, through relaxed atomics.
    #[doc(alias = "share_memory_")]
    pub fn share(self) -> SharedTensor<T> {
        Tensor::<T, Shared>::of(self.raw.open(BlockKind::Shared))
    }
}

/// View methods that consume the tensor. Elements outside the view become unreachable, and an error drops the
/// tensor. To view a part and keep the whole, use [`view`](Tensor::view) and [`view_mut`](Tensor::view_mut).
impl<T: Element> Tensor<T, Exclusive> {
    view_methods!();

    fn viewed(self, change: impl FnOnce(&mut View) -> Result<()>) -> Result<Self> {
        let view = self.raw.view.with(change)?;
        Ok(Self::of(self.raw.viewed(view)))
    }
}

impl<T: Element> Message for Tensor<T, Exclusive> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> Result<()> {
        self.raw.lend::<C>(out, T::DTYPE)
    }

    fn take_back(&mut self, back: &mut UnsentValues) {
        self.raw.take_back(back, T::DTYPE);
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self> {
        let handle = C::read_bytes(inc, TensorHandle::read)?;
        Ok(Self::of(RawTensor::receive(inc.arrived(), handle, Access::Exclusive, T::DTYPE)?))
    }
}
