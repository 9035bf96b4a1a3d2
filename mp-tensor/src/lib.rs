//! Typed, strided tensors in shared memory, in modes that say which access is allowed.
//!
//! ```
//! use mp_tensor::Tensor;
//!
//! let mut t = Tensor::<f32>::zeros(&[3, 4])?; // in shared memory from the start
//! t.as_mut_slice()?.fill(0.5);
//! let weights = t.freeze(); // any process may read it now, without copying
//! assert_eq!(weights.select(0, 1)?.iter().sum::<f32>(), 2.0);
//! # Ok::<(), mp_tensor::Error>(())
//! ```
//!
//! | type | holders | reads | writes | travels |
//! |---|---|---|---|---|
//! | [`Tensor<T>`] | one owner among all processes | `&[T]` | `&mut [T]` | by value: it is gone here |
//! | [`FrozenTensor<T>`] | any number | `&[T]` | none, ever again | as a clone |
//! | [`SharedTensor<T>`] | any number | relaxed atomic loads | relaxed atomic stores | as a clone |
//! | [`TensorView<T>`], [`TensorViewMut<T>`] | the borrower | `&[T]` | `&mut [T]` (`Mut`) | – |
//!
//! They are one type, [`Tensor<T, M>`](Tensor), with a [`Mode`]. [`AnyTensor`] has its element type as a value ([`DType`]),
//! [`MetaTensor`] no memory; [`SparseCoo`], [`SparseCompressed`] and [`NestedTensor`] are made of tensors; [`MappedFile`] is
//! elements in a file of another program, where they are.
//!
//! # When a process dies
//! The memory of a tensor lives as long as any process or any message on its way holds it, whichever process made it. A process
//! that dies, at any instruction, gives up what it held. Frozen tensors are whole, since they are not written; what a process
//! was writing to an exclusive tensor is lost with it, and what it was writing to a shared one may be half written, element by
//! element.
//!
//! # Where it is
//! In the arena of [`mp_core`], which has the memory, and knows what it is held by; processes come from `mp-spawn`, queues from
//! `mp-queue`.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod any;
mod element;
mod foreign;
#[cfg(all(any(test, feature = "fuzz"), not(mp_loom)))]
#[doc(hidden)]
pub mod fuzz;
mod meta;
mod nested;
mod sparse;
mod storage;
mod tensor;
mod view;
mod wire;

pub use any::{AnyTensor, DowncastError};
pub use element::{Bool, Element, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0FNU, Integer, Number};
pub use foreign::MappedFile;
pub use half::{bf16, f16};
pub use meta::MetaTensor;
pub use mp_core::{DType, Error, Result};
pub use nested::NestedTensor;
pub use num_complex::Complex;
pub use sparse::{Layout, SparseCompressed, SparseCoo};
pub use storage::Atomic;
pub use tensor::{
    Aliased, Borrowed, BorrowedMut, Exclusive, Frozen, FrozenBytes, FrozenStorage, FrozenTensor, Mode,
    Readable, Sendable, ShareMemory, Shared, SharedTensor, Tensor, TensorView, TensorViewMut, TypedStorage,
    Writable,
};
pub use view::MAX_RANK;

/// What tensors of other memory are made of, in crates above this one.
#[doc(hidden)]
pub mod parts {
    pub use crate::view::recent::{nothing, row_major};
    pub use crate::view::{View, count};
    pub use crate::wire::grad::Grad;
    pub use crate::wire::handle::{Handle, MOST as MOST_HANDLE, What};
}

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
