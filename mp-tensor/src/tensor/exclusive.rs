//! The tensor with one owner: where tensors come from, and what becomes of them.

use crate::element::Element;
use crate::tensor::mode::{Exclusive, Frozen, Mode, Shared};
use crate::tensor::raw::Raw;
use crate::view::recent;
use crate::view::{View, count};
use crate::view_methods;
use crate::wire::handle::Handle;
use crate::{FrozenTensor, SharedTensor, Tensor};
use mp_core::Storage;
use mp_core::message::{Codec, Incoming, Message, Outgoing, Returned};
use mp_core::words::{Access, Kind};
use mp_core::{Error, Result};

impl Raw<Exclusive> {
    /// New memory.
    pub(crate) fn new(shape: &[usize], element: usize) -> Result<Self> {
        let view = recent::row_major(0, shape)?;
        let keep = Storage::new(mp_core::Arena::current()?, view.len(), element)?;
        Ok(Self { keep, view, grad: Default::default() })
    }

    /// The same, in another mode.
    pub(crate) fn open<M: Mode<Keep = Storage>>(self, kind: Kind) -> Raw<M> {
        self.keep.open_to_others(kind);
        Raw { keep: self.keep, view: self.view, grad: self.grad }
    }
}

impl<T: Element> Tensor<T, Exclusive> {
    /// A tensor whose elements are whatever the memory held. A shape is an array, a slice or a `Vec`, by value or by reference, here
    /// and wherever one is asked for.
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
    /// [`Error::OutOfMemory`], [`Error::ArenaFull`], or [`Error::LimitExceeded`] for a shape that is too large.
    pub fn empty(shape: impl AsRef<[usize]>) -> Result<Self> {
        Ok(Self::of(Raw::new(shape.as_ref(), size_of::<T>())?))
    }

    /// A tensor of one value.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn full(shape: impl AsRef<[usize]>, value: T) -> Result<Self> {
        let mut t = Self::empty(shape)?;
        t.as_mut_slice()?.fill(value);
        Ok(t)
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn zeros(shape: impl AsRef<[usize]>) -> Result<Self> {
        Self::full(shape, T::zeroed())
    }

    /// A copy of `data`, in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::empty`], and [`Error::Shape`] when `shape` has another number of elements.
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

    /// A tensor of as many elements as its shape has.
    pub(crate) fn made_of(shape: &[usize], elements: impl Iterator<Item = T>) -> Result<Self> {
        let mut t = Self::empty(shape)?;
        let mut to = t.as_mut_slice()?.iter_mut();
        elements.for_each(|v| _ = to.next().map(|to| *to = v));
        Ok(t)
    }

    /// A tensor of `f(0)`, `f(1)`, …, in row-major order.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn from_fn(shape: impl AsRef<[usize]>, mut f: impl FnMut(usize) -> T) -> Result<Self> {
        let mut t = Self::empty(shape)?;
        t.as_mut_slice()?.iter_mut().enumerate().for_each(|(i, to)| *to = f(i));
        Ok(t)
    }

    /// Makes it readable by any process and writable by none, for ever.
    pub fn freeze(self) -> FrozenTensor<T> {
        Tensor::<T, Frozen>::of(self.raw.open(Kind::Frozen))
    }

    /// Makes it readable and writable by any process, through relaxed atomics.
    #[doc(alias = "share_memory_")]
    pub fn share(self) -> SharedTensor<T> {
        Tensor::<T, Shared>::of(self.raw.open(Kind::Shared))
    }
}

/// Seen otherwise, by value: what is left out can't be reached any more, and on an error the tensor is gone. To look at a
/// part and keep the whole, use [`view`](Tensor::view) and [`view_mut`](Tensor::view_mut).
impl<T: Element> Tensor<T, Exclusive> {
    view_methods!(by_value);

    fn viewed(self, f: impl FnOnce(View) -> Result<View>) -> Result<Self> {
        let view = f(*self.raw.view)?;
        Ok(Self::of(self.raw.viewed(view)))
    }
}

impl<T: Element> Message for Tensor<T, Exclusive> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> Result<()> {
        self.raw.lend::<C>(out, T::DTYPE)
    }

    fn take_back(&mut self, back: &mut Returned) {
        self.raw.take_back(back, T::DTYPE);
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self> {
        let handle = C::read_bytes(inc, Handle::read)?;
        Ok(Self::of(Raw::receive(inc.arrived(), handle, Access::Exclusive, T::DTYPE)?))
    }
}
