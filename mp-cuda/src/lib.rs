//! Tensors and events on CUDA devices, for processes that share them.
//!
//! ```no_run
//! use mp_cuda::{CudaTensor, Device, CudaStream};
//!
//! # fn put(_: CudaTensor<f32>) {}
//! let stream = CudaStream::new(&Device::new(0)?)?;
//! let mut x = CudaTensor::<f32>::zeros([1000, 1000], &stream)?;
//! let on = x.on_mut(&stream)?;
//! // … kernels of yours for `stream.as_raw()`, with `on.ptr()` and `on.len()` …
//! drop(on);
//! put(x); // into a queue: it moves to another process, whose stream waits for those kernels, on the device
//! # Ok::<(), mp_cuda::Error>(())
//! ```
//!
//! | type | meaning |
//! |---|---|
//! | [`Device`], [`CudaStream`] | a GPU, which its [`Uuid`] identifies; a stream of a GPU, created by this library or by another one |
//! | [`CudaTensor`], [`FrozenCudaTensor`], [`SharedCudaTensor`] | a tensor with one owner, which is moved; a tensor that no process writes; a tensor that any process reads and writes |
//! | [`AnyCudaTensor`] | a tensor whose element type is known at run time |
//! | [`StreamGuard`], [`StreamGuardMut`] | a tensor that a stream uses, with its address |
//! | [`ForeignMemory`] | memory that another library has allocated, to become a tensor |
//! | [`CudaEvent`] | a point in the work of a stream that any process may wait for |
//!
//! Tensors are in memory that this library allocates. The memory lives as long as any process or message
//! holds it, even after the death of the process that allocated it. No host waits for a device when tensors
//! are sent, received or dropped, except with [`Order::Host`].
//!
//! The driver's library is loaded at the first call, so a program with this crate runs everywhere. Without a
//! driver or a device, each call returns an [`Error`] with advice on the installation:
//!
//! ```
//! match mp_cuda::Device::all() {
//!     Ok(devices) => println!("{} devices", devices.len()),
//!     Err(error) => println!("{error}"), // "no CUDA driver was found (…): install NVIDIA's driver, …"
//! }
//! ```
//!
//! No CUDA toolkit is needed to build this crate.

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
pub use event::CudaEvent;
pub use memory::collect::{empty_cache, ipc_collect, memory_stats};
pub use memory::stats::DeviceMemoryStats;
#[cfg(feature = "dlpack")]
#[cfg_attr(docsrs, doc(cfg(feature = "dlpack")))]
pub use mp_tensor::dlpack::{
    DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor,
};
pub use mp_tensor::{Element, Exclusive, Frozen, MAX_RANK, Shared};
pub use stream::CudaStream;
pub use stream::order::{Order, order};
#[cfg(feature = "cudarc")]
#[cfg_attr(docsrs, doc(cfg(feature = "cudarc")))]
pub use tensor::cudarc::{CudarcGuard, CudarcGuardMut, CudarcStream};
#[cfg(feature = "dlpack")]
#[cfg_attr(docsrs, doc(cfg(feature = "dlpack")))]
pub use tensor::dlpack::{Dlpack, DlpackUnversioned};
pub use tensor::{
    AnyCudaTensor, ConversionError, CudaAliased, CudaDowncastError, CudaMode, CudaStorageId, CudaTensor,
    ForeignMemory, FrozenCudaTensor, ShareMethod, SharedCudaTensor, StreamGuard, StreamGuardMut,
    WeakCudaTensor,
};
pub use uuid::Uuid;

/// Drops cached resources of dead members, after a reclaim.
fn on_deaths() {
    stream::order::events::on_deaths();
    memory::on_deaths();
}
