//! Typed, strided tensors in shared memory, with access modes checked by the compiler.
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
//! | type | holders | reads | writes | sending |
//! |---|---|---|---|---|
//! | [`Tensor<T>`] | one owner among all processes | `&[T]` | `&mut [T]` | moves it |
//! | [`FrozenTensor<T>`] | any number | `&[T]` | never again | clones the handle |
//! | [`SharedTensor<T>`] | any number | relaxed atomic loads | relaxed atomic stores | clones the handle |
//! | [`TensorView<T>`], [`TensorViewMut<T>`] | the borrower | `&[T]` | `&mut [T]` (`Mut`) | – |
//!
//! All of them are one type, [`Tensor<T, M>`](Tensor), with a [`Mode`]. [`AnyTensor`] has a dynamic element
//! type ([`DType`]), and [`MetaTensor`] has no memory. [`SparseCoo`], [`SparseCompressed`] and
//! [`NestedTensor`] consist of tensors. [`MappedFile`] maps elements of a foreign file.
//!
//! # When a process dies
//! A tensor's memory lives while any process or any message in flight holds it, whichever process created it.
//! A dead process releases its holds. Frozen tensors stay intact, since no process writes them. An exclusive
//! tensor of the dead process is lost. A shared tensor may contain some but not all elements of an unfinished
//! write. No number is torn, but a complex element consists of two numbers.
//!
//! # Related crates
//! [`mp_core`] provides the arena, which owns the memory and records its holders. `mp-spawn` starts
//! processes, and `mp-queue` has queues.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod any;
#[cfg(feature = "dlpack")]
#[cfg_attr(docsrs, doc(cfg(feature = "dlpack")))]
pub mod dlpack;
mod element;
mod foreign;
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

/// Building blocks for tensors in other memory, in crates that depend on this one.
#[doc(hidden)]
pub mod parts {
    pub use crate::view::recent::{nothing, row_major};
    pub use crate::view::{View, count};
    pub use crate::wire::grad::Grad;
    pub use crate::wire::handle::{MOST as MOST_HANDLE, TensorHandle, TensorHeader, read_bytes};
}

/// Doc test of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
