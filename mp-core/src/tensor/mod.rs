//! Typed, strided tensors in shared memory, in three modes of ownership.
//!
//! | type | who | reads | writes | travels |
//! |---|---|---|---|---|
//! | [`Tensor<T>`] | one owner among all processes | `&[T]` | `&mut [T]` | by value: it is gone here |
//! | [`FrozenTensor<T>`] | any number | `&[T]` | nobody, ever again | as a clone |
//! | [`SharedTensor<T>`] | any number | relaxed atomic loads | relaxed atomic stores | as a clone |

mod display;
mod element;
mod exclusive;
mod frozen;
mod raw;
mod shared;
mod view;

pub use element::{DType, Element, Number};
pub use exclusive::Tensor;
pub use frozen::FrozenTensor;
pub use shared::SharedTensor;
pub use view::MAX_RANK;
