//! Typed, strided tensors in shared memory, in modes that say which access is allowed.
//!
//! | type | holders | reads | writes | travels |
//! |---|---|---|---|---|
//! | [`Tensor<T>`] | one owner among all processes | `&[T]` | `&mut [T]` | by value: it is gone here |
//! | [`FrozenTensor<T>`] | any number | `&[T]` | none, ever again | as a clone |
//! | [`SharedTensor<T>`] | any number | relaxed atomic loads | relaxed atomic stores | as a clone |
//! | [`TensorView<T>`], [`TensorViewMut<T>`] | the borrower | `&[T]` | `&mut [T]` (`Mut`) | – |
//!
//! They are one type, [`Tensor<T, M>`](Tensor), with a [`Mode`]; `raw` has what doesn't depend on `T`, `view` the
//! arithmetic. [`AnyTensor`] has its element type as a value.

#[macro_use]
mod dtype;

mod aliased;
mod any;
mod borrowed;
mod dims;
mod display;
mod element;
mod exclusive;
mod frozen_bytes;
mod grad;
mod handle;
mod meta;
mod methods;
mod mode;
#[cfg(feature = "ndarray")]
mod ndarray;
mod nested;
mod raw;
mod read;
mod recent;
mod scalars;
mod share_memory;
mod shared;
mod sparse;
#[allow(clippy::module_inception, reason = "the type of that name")]
mod tensor;
mod typed_storage;
mod view;
mod views;
mod write;

pub use any::{AnyTensor, DowncastError};
pub use dtype::DType;
pub use element::{Element, Integer, Number};
pub use frozen_bytes::FrozenBytes;
pub use half::{bf16, f16};
pub use meta::MetaTensor;
pub use mode::{
    Aliased, Borrowed, BorrowedMut, Exclusive, Frozen, Mode, Readable, Sendable, Shared, Writable,
};
pub use nested::NestedTensor;
pub use num_complex::Complex;
pub(crate) use raw::Lent;
pub use scalars::{Bool, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU};
pub use share_memory::ShareMemory;
pub use sparse::{Layout, SparseCompressed, SparseCoo};
pub use tensor::{FrozenTensor, SharedTensor, Tensor, TensorView, TensorViewMut};
pub use typed_storage::{FrozenStorage, TypedStorage};
pub use view::MAX_RANK;
