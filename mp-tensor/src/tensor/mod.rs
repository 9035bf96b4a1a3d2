//! The tensor type, with what all of its modes have; what each mode can do beside.

pub(crate) mod aliased;
pub(crate) mod borrowed;
pub(crate) mod display;
pub(crate) mod exclusive;
mod frozen_bytes;
pub(crate) mod methods;
pub(crate) mod mode;
#[cfg(feature = "ndarray")]
mod ndarray;
pub(crate) mod raw;
mod read;
mod share_memory;
mod shared;
mod typed_storage;
mod write;

use std::marker::PhantomData;

pub use frozen_bytes::FrozenBytes;
pub use mode::{
    Aliased, Borrowed, BorrowedMut, Exclusive, Frozen, Mode, Readable, Sendable, Shared, Writable,
};
use mp_core::DType;
use mp_core::message::PlainOutcome;
pub use share_memory::ShareMemory;
pub use typed_storage::{FrozenStorage, TypedStorage};

use crate::element::Element;
use crate::storage::StorageElements;
use crate::tensor::raw::Raw;
use crate::{grad_methods, shape_methods};

/// A tensor in shared memory with one owner among all processes, which may write; in other [modes](Mode)
/// there are [`FrozenTensor`], [`SharedTensor`], [`TensorView`] and [`TensorViewMut`].
///
/// ```
/// use mp_tensor::Tensor;
///
/// let mut t = Tensor::<f32>::zeros(&[2, 3])?;
/// t.as_mut_slice()?[4] = 1.5;
/// assert_eq!(t[[1, 1]], 1.5);
/// let frozen = t.freeze(); // from now on any process may read it, and none write
/// assert_eq!(frozen.select(0, 1)?.to_vec(), [0.0, 1.5, 0.0]);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// It moves: putting it into a queue takes it away from the sender without copying a byte, and the receiver is its
/// new owner. If the owner dies, its memory is free again.
///
/// In a copy of the process that was made by a raw `fork` there is no memory behind a tensor. What needs its elements returns
/// [`Error::Forked`](mp_core::Error::Forked) there, if it returns a `Result`; what returns an element or an iterator ends the
/// copy by SIGSEGV. Views can be made, and `Debug` and `Display` say that it was forked.
#[doc(alias = "reduce_tensor")]
#[doc(alias = "rebuild_tensor")]
#[doc(alias = "rebuild_storage_empty")]
pub struct Tensor<T: Element, M: Mode = Exclusive> {
    pub(crate) raw: Raw<M>,
    elements: PhantomData<T>,
}

impl<T: Element, M: Mode> PlainOutcome for Tensor<T, M> {}

/// A tensor in shared memory that any number of processes read and none writes, ever again.
///
/// Cloning it, viewing a part of it and sending it copy no element. Inside of a message it is an ordinary serde value;
/// the same storage sent twice is one storage at the receiver.
///
/// ```
/// use mp_tensor::Tensor;
///
/// let images = Tensor::<u8>::from_fn(&[4, 8, 8], |i| i as u8)?.freeze();
/// let third = images.select(0, 2)?;
/// assert_eq!(third.shape(), [8, 8]);
/// assert_eq!(third.as_slice()?[0], 128);
/// assert_eq!(third.storage(), images.storage());
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// The memory lives as long as any process or any message on its way holds it; no process in particular has to.
pub type FrozenTensor<T> = Tensor<T, Frozen>;

/// A tensor in shared memory that any number of processes read and write at once, element by element, through relaxed
/// atomics of the element's own width.
///
/// That is what lock-free training ("Hogwild", Niu et al. 2011) needs: no element is ever torn, reads and
/// writes cost what plain ones do (in loops, those of the slice [`as_atomics`](Tensor::as_atomics)), and
/// nothing is promised about the order in which other threads and processes see them. To hand over more than
/// single elements, send a message: what was written before a `put` is seen after the `get`. (An element of
/// [`Complex<f64>`](crate::Complex) is two numbers, each of which is whole.)
///
/// ```
/// use mp_tensor::Tensor;
///
/// let weights = Tensor::<f32>::zeros(&[10])?.share();
/// weights.store(3, 0.5);
/// assert_eq!(weights.fetch_add(3, 0.25), 0.5); // atomic: no addition is lost
/// assert_eq!(weights.load(3), 0.75);
/// weights.as_atomics()?.iter().for_each(|w| w.store(0.9 * w.load()));
/// assert_eq!(weights.load(3), 0.75 * 0.9);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
pub type SharedTensor<T> = Tensor<T, Shared>;

/// A borrowed view of a tensor, to read: what [`Tensor::view`] gives.
pub type TensorView<'a, T> = Tensor<T, Borrowed<'a>>;

/// A borrowed view of a tensor, or of a part of it that no other view has, to read and write: what
/// [`Tensor::view_mut`] gives.
pub type TensorViewMut<'a, T> = Tensor<T, BorrowedMut<'a>>;

impl<T: Element, M: Mode> Tensor<T, M> {
    shape_methods!(raw.view);
    grad_methods!();

    /// The memory that it is a view of.
    #[doc(alias = "untyped_storage")]
    pub fn storage(&self) -> &mp_core::Storage {
        self.raw.storage()
    }

    /// Of parts that go together, see [`Raw`].
    pub(crate) fn of(raw: Raw<M>) -> Self {
        Self { raw, elements: PhantomData }
    }

    /// Its elements in row-major order, each as it is when it is reached: in whatever mode.
    pub(crate) fn loads(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        self.raw.view.positions().map(|p| self.raw.storage().load(p))
    }

    /// The `i`-th element in row-major order; there is one.
    #[inline]
    pub(crate) fn load_nth(&self, i: usize) -> T {
        self.raw.storage().load(self.raw.view.nth(i))
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// The same elements, as a leaf that requires no gradients.
    #[must_use]
    pub fn detach(mut self) -> Self {
        self.raw.grad = Default::default();
        self
    }
}
