//! Memory of other programs: copied in, mapped where it is; and memory of the arena handed out.
//!
//! | from | safe, copies into the arena | where it is |
//! |---|---|---|
//! | a memfd, an open file | [`Tensor::from_fd`] | [`MappedFile::from_fd`] if it can't shrink, else `unsafe` |
//! | a name under `/dev/shm` | [`Tensor::from_shm`] | `unsafe` [`MappedFile::from_unsealed`] |
//! | a path | [`Tensor::from_file`] | `unsafe` [`MappedFile::from_unsealed`] |
//!
//! | to | |
//! |---|---|
//! | a memfd of its own | [`Tensor::to_memfd`] |
//! | a name under `/dev/shm` | [`Tensor::to_shm`] |
//! | a path | [`Tensor::to_file`] |
//!
//! A storage of the arena has no file of its own, so that handing one out is a copy: otherwise the receiver would get
//! the whole arena. What is foreign is not sent either: [`MappedFile::to_tensor`] copies it, and the copy travels and no
//! longer depends on the maker of the file.

mod copy;
mod export;
mod mapped;

pub use mapped::MappedFile;

#[cfg(doc)]
use crate::Tensor;
