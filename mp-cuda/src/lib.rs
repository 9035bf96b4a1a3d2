//! Tensors and events on CUDA devices, for processes that share them.
//!
//! ```no_run
//! use mp_cuda::{CudaTensor, Device, Stream};
//!
//! # fn put(_: CudaTensor<f32>) {}
//! let stream = Stream::new(&Device::new(0)?)?;
//! let mut x = CudaTensor::<f32>::zeros([1000, 1000], &stream)?;
//! let on = x.on_mut(&stream)?;
//! // … kernels of yours for `stream.as_raw()`, with `on.ptr()` and `on.len()` …
//! drop(on);
//! put(x); // into a queue: it moves to another process, whose stream waits for those kernels, on the device
//! # Ok::<(), mp_cuda::Error>(())
//! ```
//!
//! | type | is |
//! |---|---|
//! | [`Device`], [`Stream`] | a GPU, known by its [`Uuid`]; a queue of its work, this library's or another one's |
//! | [`CudaTensor`], [`FrozenCudaTensor`], [`SharedCudaTensor`] | a tensor that moves; that any process reads and none writes; that any process reads and writes |
//! | [`AnyCudaTensor`] | one whose element type is a value |
//! | [`Lent`], [`LentMut`] | a tensor on a stream: its address, as long as the stream is given work with it |
//! | [`ForeignMemory`] | memory that another library has allocated, to be a tensor |
//! | [`Event`] | a point in the work of a stream, which any process may wait for |
//!
//! Tensors are in memory of this library's own, which lives as long as any process or message holds it, whichever process has made it. No host waits for a
//! device when tensors are sent, received or dropped.
//!
//! The driver's library is looked for at the first call, so a program that is built with this crate runs everywhere. Without a driver or
//! a device each call returns an [`Error`] that says what to install:
//!
//! ```
//! match mp_cuda::Device::all() {
//!     Ok(devices) => println!("{} devices", devices.len()),
//!     Err(error) => println!("{error}"), // "no CUDA driver was found (…): install NVIDIA's driver, …"
//! }
//! ```
//!
//! Nothing here needs CUDA to build.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
pub mod codes;
mod device;
#[doc(hidden)]
pub mod driver;
mod error;
mod event;
mod exit;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
#[doc(hidden)]
pub mod memory;
mod stream;
mod sync;
mod tensor;
mod uuid;

pub use device::{Attributes, Device};
pub use error::{Error, Result};
pub use event::Event;
pub use memory::collect::{empty_cache, ipc_collect};
pub use memory::stats::{MemoryStats, memory_stats};
pub use mp_tensor::{Element, Exclusive, Frozen, MAX_RANK, Shared};
pub use stream::Stream;
pub use stream::order::{Order, order};
#[cfg(feature = "cudarc")]
#[cfg_attr(docsrs, doc(cfg(feature = "cudarc")))]
pub use tensor::cudarc::{CudarcLent, CudarcLentMut, CudarcStream};
#[cfg(feature = "dlpack")]
#[cfg_attr(docsrs, doc(cfg(feature = "dlpack")))]
pub use tensor::dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor, Dlpack,
    DlpackUnversioned,
};
pub use tensor::{
    AnyCudaTensor, CudaAliased, CudaDowncastError, CudaMode, CudaStorageId, CudaTensor, ForeignMemory,
    FrozenCudaTensor, How, Lent, LentMut, Refused, SharedCudaTensor, WeakCudaTensor,
};
pub use uuid::Uuid;

/// Members were swept: what only they kept is given up.
fn deaths() {
    stream::order::events::deaths();
    memory::deaths();
}
