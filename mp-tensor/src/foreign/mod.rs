//! Exchange of tensors with programs outside of the arena: copying, mapping and exporting.
//!
//! | source | copy into the arena (safe) | mapping |
//! |---|---|---|
//! | memfd or open file | [`Tensor::from_fd`] | [`MappedFile::from_fd`] if it can't shrink, otherwise `unsafe` |
//! | name under `/dev/shm` | [`Tensor::from_shm`] | `unsafe` [`MappedFile::from_unsealed`] |
//! | path | [`Tensor::from_file`] | `unsafe` [`MappedFile::from_unsealed`] |
//!
//! | target | copy |
//! |---|---|
//! | new memfd | [`Tensor::to_memfd`] |
//! | name under `/dev/shm` | [`Tensor::to_shm`] |
//! | path | [`Tensor::to_file`] |
//!
//! Storages in the arena have no file of their own, and the receiver of the arena's file could access all of
//! it. So an export is a copy. Mapped files are not sent: [`MappedFile::to_tensor`] makes a copy, which can
//! be sent and does not depend on the file.

mod copy;
mod export;
mod mapped;

pub use mapped::MappedFile;

#[cfg(doc)]
use crate::Tensor;
