//! Tensors in shared memory with one owner, many readers, or many writers.
//!
//! ```
//! use mp::{FrozenTensor, SharedTensor, Tensor};
//!
//! let mut images = Tensor::<f32>::zeros(&[2, 3])?; // one owner, which writes; sending moves it
//! images.as_mut_slice()?.fill(0.5);
//! let images: FrozenTensor<f32> = images.freeze(); // any number of readers
//! assert_eq!(images.select(0, 1)?.to_vec(), [0.5; 3]);
//! let weights: SharedTensor<f32> = Tensor::zeros(&[3])?.share(); // any number of readers and writers
//! weights.store(1, 2.0);
//! assert_eq!(weights.to_vec(), [0.0, 2.0, 0.0]);
//! # Ok::<(), mp::Error>(())
//! ```
//!
//! Start with three types: [`Tensor`], [`FrozenTensor`] and [`SharedTensor`]. All three are one type in
//! different [modes](Mode). Freezing, sharing, viewing and sending a tensor copy nothing.
//!
//! | task | items |
//! |---|---|
//! | borrowed views | [`TensorView`], [`TensorViewMut`] |
//! | element types | [`Element`]; at run time, [`DType`], [`AnyTensor`], [`dispatch!`] |
//! | shapes without elements | [`MetaTensor`] |
//! | compositions of tensors | [`SparseCoo`], [`SparseCompressed`], [`NestedTensor`] |
//! | conversion of vectors, slices and arrays | [`ShareMemory`], [`Tensor::from_slice`], [`Tensor::from_iter`] |
//! | memory of a tensor | [`TypedStorage`]; [`memory::Storage`](crate::memory::Storage) |

#[doc(no_inline)]
pub use crate::{
    AnyTensor, DType, Element, FrozenTensor, ShareMemory, SharedTensor, Tensor, TensorView, TensorViewMut,
};
pub use mp_tensor::{
    Aliased, Atomic, Bool, Borrowed, BorrowedMut, Complex, DowncastError, Exclusive, F8E4M3FN, F8E4M3FNUZ,
    F8E5M2, F8E5M2FNUZ, F8E8M0FNU, Frozen, FrozenBytes, FrozenStorage, Integer, Layout, MAX_RANK, MetaTensor,
    Mode, NestedTensor, Number, Readable, Sendable, Shared, SparseCompressed, SparseCoo, TypedStorage,
    Writable, bf16, dispatch, f16,
};
