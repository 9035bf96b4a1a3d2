//! Tensors in the memory of devices.

mod aliased;
mod any;
mod copy;
#[cfg(feature = "cudarc")]
pub(crate) mod cudarc;
#[cfg(feature = "dlpack")]
pub(crate) mod dlpack;
mod exclusive;
pub(crate) mod foreign;
mod guard;
mod message;
pub(crate) mod mode;
pub(crate) mod raw;
mod weak;
mod wire;

use std::fmt;
use std::marker::PhantomData;

pub use any::{AnyCudaTensor, CudaDowncastError};
pub use foreign::{ConversionError, ForeignMemory, ShareMethod};
pub use guard::{StreamGuard, StreamGuardMut};
pub use mode::{CudaAliased, CudaMode};
use mp_core::DType;
use mp_core::message::PlainOutcome;
use mp_tensor::{Element, Exclusive, Frozen, Shared, grad_methods, shape_methods};
pub use weak::WeakCudaTensor;

use crate::error::Result;
use crate::stream::CudaStream;
use crate::uuid::Uuid;
use raw::RawCudaTensor;

/// Tensor in the memory of a device. One process owns the tensor, and may write to it. For other
/// [modes](CudaMode), see [`FrozenCudaTensor`] and [`SharedCudaTensor`].
///
/// ```no_run
/// use mp_cuda::{CudaTensor, Device, CudaStream};
///
/// let stream = CudaStream::new(&Device::new(0)?)?;
/// let mut x = CudaTensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], [2, 2], &stream)?;
/// let on = x.on_mut(&stream)?; // `stream` waits for earlier work of other streams and processes with `x`
/// // … kernels of yours for `stream`, with `on.ptr()` and `on.len()` …
/// drop(on);
/// let weights = x.freeze(); // any process may read it now, without a copy
/// assert_eq!(weights.select(0, 1)?.to_vec(&stream)?.len(), 2);
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// A message moves the tensor: after a put into a queue, the receiver owns it, and this process no longer has
/// it. No byte is copied, and no host waits for a device, except with [`Order::Host`](crate::Order::Host).
/// When the receiver calls [`on`](Self::on), its stream waits for the sender's stream, on the device.
///
/// Sending, receiving and making views open no memory of a device, so a process without a GPU can forward
/// tensors.
///
/// # When a process dies
/// The memory lives as long as any process or message holds it, also after its maker's death. If the process
/// that fills the tensor is killed, and its kernels have not run, [`on`](Self::on) returns
/// [`ProducerDied`](crate::Error::ProducerDied). Memory that a killed process could write to is not used for
/// another tensor.
#[doc(alias = "rebuild_cuda_tensor")]
pub struct CudaTensor<T: Element, M: CudaMode = Exclusive> {
    pub(crate) raw: RawCudaTensor<M>,
    elements: PhantomData<T>,
}

impl<T: Element, M: CudaMode> PlainOutcome for CudaTensor<T, M> {}

/// Tensor in the memory of a device that any number of processes read, and none ever writes again.
///
/// ```no_run
/// use mp_cuda::{CudaTensor, Device, CudaStream};
///
/// let stream = CudaStream::new(&Device::new(0)?)?;
/// let weights = CudaTensor::<f32>::zeros([1000], &stream)?.freeze();
/// let part = weights.narrow(0, 10, 90)?; // the same memory
/// assert_eq!(part.storage(), weights.storage());
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// In a message, the tensor is an ordinary serde value. If a process receives a tensor twice, both values
/// refer to the same memory.
pub type FrozenCudaTensor<T> = CudaTensor<T, Frozen>;

/// Tensor in the memory of a device that any number of processes read and write at the same time.
///
/// ```no_run
/// use mp_cuda::{CudaTensor, Device, CudaEvent, CudaStream};
///
/// let stream = CudaStream::new(&Device::new(0)?)?;
/// let x = CudaTensor::<f32>::zeros([1000], &stream)?.share();
/// // … (done, x.clone()) went to another process, which changes `x` and records `done` …
/// # let done = CudaEvent::new()?;
/// done.wait(&stream)?;
/// let values = x.to_vec(&stream)?;
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// Receivers see the data that was written before the tensor was sent. For later writes, processes must
/// synchronize by messages or a [`CudaEvent`](crate::CudaEvent). Several streams of one process must
/// synchronize, too. Otherwise a reader may get a mixture of old and new elements, or torn elements.
///
/// If the process that writes the sent data is killed before its work has run, the next
/// [`on`](CudaTensor::on) or `on_mut` of each receiver returns [`ProducerDied`](crate::Error::ProducerDied).
/// Later calls succeed, with the contents at that time.
pub type SharedCudaTensor<T> = CudaTensor<T, Shared>;

/// Identity of the piece of device memory that a tensor views. The identity is the same in all processes, and
/// no other piece ever gets it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CudaStorageId(u64);

impl<T: Element, M: CudaMode> CudaTensor<T, M> {
    shape_methods!(raw.view);
    grad_methods!();

    /// Wraps a tensor whose elements have the type `T`.
    pub(crate) fn of(raw: RawCudaTensor<M>) -> Self {
        Self { raw, elements: PhantomData }
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// Returns the device of the memory, or `None` if there are no elements.
    pub fn device(&self) -> Option<Uuid> {
        self.raw.device()
    }

    /// Returns the identity of the tensor's piece of device memory, which is the same in all processes.
    /// Returns `None` if there are no elements.
    #[doc(alias = "untyped_storage")]
    pub fn storage(&self) -> Option<CudaStorageId> {
        self.raw.storage()
    }

    /// Loans the tensor to a stream, for work that reads it. The stream waits, on the device, for earlier
    /// writes. This thread doesn't wait.
    ///
    /// The first call for memory of another process opens the memory by the driver, which may wait for the
    /// device.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if the data will never be written;
    /// [`UnknownDevice`](crate::Error::UnknownDevice) or [`PeerAccess`](crate::Error::PeerAccess) if the
    /// stream's device can't reach the memory; [`Capturing`](crate::Error::Capturing); errors of the driver.
    pub fn on(&self, stream: &CudaStream) -> Result<StreamGuard<'_, T>> {
        Ok(StreamGuard::of(self.raw.lend(size_of::<T>(), stream, false)?, &self.raw.view))
    }
}

impl<T: Element, M: CudaMode> fmt::Debug for CudaTensor<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        any::show(&self.raw, T::DTYPE, f)
    }
}
