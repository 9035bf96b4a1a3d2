//! Tensor type, with methods for all modes and for single modes.

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
use mp_core::message::{PlainOutcome, Schema};
pub use share_memory::ShareMemory;
pub use typed_storage::{FrozenStorage, TypedStorage};

use crate::element::Element;
use crate::storage;
use crate::tensor::raw::RawTensor;
use crate::{grad_methods, shape_methods};

/// A tensor in shared memory that one process owns. Only the owner reads and writes the tensor. Other
/// [modes](Mode) are [`FrozenTensor`], [`SharedTensor`], [`TensorView`] and [`TensorViewMut`].
///
/// ```
/// use mp_tensor::Tensor;
///
/// let mut t = Tensor::<f32>::zeros(&[2, 3])?;
/// t.as_mut_slice()?[4] = 1.5;
/// assert_eq!(t[[1, 1]], 1.5);
/// let frozen = t.freeze(); // any process may read it now, and none may write it
/// assert_eq!(frozen.select(0, 1)?.to_vec(), [0.0, 1.5, 0.0]);
/// # Ok::<(), mp_tensor::Error>(())
/// ```
///
/// Sending a tensor moves it: a queue takes it from the sender without copying a byte, and the receiver is
/// the new owner. If the owner dies, the memory is freed.
///
/// In a child of a raw `fork`, the memory is not mapped. Functions that access elements return
/// [`Error::Forked`](mp_core::Error::Forked) there if they return a `Result`. Functions that return elements
/// or iterators crash the child by SIGSEGV. Views can be created, and `Debug` and `Display` print a note
/// instead of the elements.
#[doc(alias = "reduce_tensor")]
#[doc(alias = "rebuild_tensor")]
#[doc(alias = "rebuild_storage_empty")]
pub struct Tensor<T: Element, M: Mode = Exclusive> {
    pub(crate) raw: RawTensor<M>,
    elements: PhantomData<T>,
}

impl<T: Element, M: Mode> PlainOutcome for Tensor<T, M> {}

/// A tensor in shared memory that any number of processes read, and that is never written again.
///
/// Cloning, viewing and sending copy no elements. In a message it is an ordinary serde value. A storage that
/// is sent twice is one storage at the receiver.
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
/// The memory lives while any process or any message in flight holds it, independent of its creator.
pub type FrozenTensor<T> = Tensor<T, Frozen>;

/// A tensor in shared memory that any number of processes read and write concurrently, by relaxed atomics of
/// the element's width.
///
/// Shared tensors suit lock-free training ("Hogwild", Niu et al. 2011). No element is ever torn. Reads and
/// writes cost as much as plain ones (in loops, use the slice [`as_atomics`](Tensor::as_atomics)). The order
/// in which other threads and processes see changes is unspecified. To publish more than single elements,
/// send a message: everything written before a `put` is visible after the `get`. (A
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

/// A read-only view of a borrowed tensor: the result of [`Tensor::view`].
pub type TensorView<'a, T> = Tensor<T, Borrowed<'a>>;

/// A writable view of a borrowed tensor, or of a part of it that no other view contains: the result of
/// [`Tensor::view_mut`].
pub type TensorViewMut<'a, T> = Tensor<T, BorrowedMut<'a>>;

impl<T: Element, M: Mode> Tensor<T, M> {
    shape_methods!(raw.view);
    grad_methods!();

    /// Returns the memory that this tensor is a view of.
    #[doc(alias = "untyped_storage")]
    pub fn storage(&self) -> &mp_core::Storage {
        self.raw.storage()
    }

    /// Creates a tensor from its parts. The element type `T` must be that of the parts, see [`RawTensor`].
    pub(crate) fn of(raw: RawTensor<M>) -> Self {
        Self { raw, elements: PhantomData }
    }

    /// Iterates over the elements in row-major order, in any mode. An element is read when the iterator
    /// reaches it.
    pub(crate) fn loads(&self) -> impl ExactSizeIterator<Item = T> + '_ {
        self.raw.view.positions().map(|p| storage::load(self.raw.storage(), p))
    }

    /// Returns the `i`-th element in row-major order. `i` is less than the number of elements.
    #[inline]
    pub(crate) fn load_nth(&self, i: usize) -> T {
        storage::load(self.raw.storage(), self.raw.view.nth(i))
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }
}

macro_rules! schemas {
    ($($mode:ty = $name:literal,)*) => {$(
        impl<T: Element> Schema for Tensor<T, $mode> {
            fn schema_text() -> String {
                format!("{}<{}>", $name, T::DTYPE)
            }
        }
    )*};
}

schemas! {
    Exclusive = "tensor",
    Frozen = "frozen",
    Shared = "shared",
}
