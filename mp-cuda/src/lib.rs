//! GPUs by the CUDA driver, for processes that share what is on them.
//!
//! ```no_run
//! use mp_cuda::{Device, Stream};
//!
//! let device = Device::new(0)?;
//! println!("{} ({}), {} bytes", device.name()?, device.uuid(), device.total_memory()?);
//! let stream = Stream::new(&device)?;
//! // … work of yours, by `stream.as_raw()` …
//! stream.synchronize()?;
//! # Ok::<(), mp_cuda::Error>(())
//! ```
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
//! So far there are devices and streams; tensors and events between processes are built upon them. Nothing here needs CUDA to build.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
pub mod codes;
mod device;
#[doc(hidden)]
pub mod driver;
mod error;
mod event;
mod exit;
#[doc(hidden)]
pub mod memory;
mod order;
mod stream;
mod tensor;
mod uuid;

pub use device::{Attributes, Device};
pub use error::{Error, Result};
pub use event::Event;
pub use memory::collect::{empty_cache, ipc_collect};
pub use memory::stats::{MemoryStats, memory_stats};
pub use mp_tensor::{Element, Exclusive, Frozen, MAX_RANK, Shared};
pub use stream::Stream;
#[cfg(feature = "cudarc")]
#[cfg_attr(docsrs, doc(cfg(feature = "cudarc")))]
pub use tensor::cudarc::{CudarcLent, CudarcLentMut, CudarcStream};
pub use tensor::{
    AnyCudaTensor, CudaAliased, CudaDowncastError, CudaMode, CudaStorageId, CudaTensor, FrozenCudaTensor,
    Lent, LentMut, SharedCudaTensor,
};
pub use uuid::Uuid;
