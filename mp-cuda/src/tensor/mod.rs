//! Tensors in the memory of devices.

mod aliased;
mod any;
mod beside;
mod copy;
#[cfg(feature = "cudarc")]
pub(crate) mod cudarc;
#[cfg(feature = "dlpack")]
pub(crate) mod dlpack;
mod exclusive;
pub(crate) mod foreign;
mod lend;
mod message;
pub(crate) mod mode;
pub(crate) mod raw;
mod weak;

use std::fmt;
use std::marker::PhantomData;

pub use any::{AnyCudaTensor, CudaDowncastError};
pub use foreign::{ForeignMemory, How, Refused};
pub use lend::{Lent, LentMut};
pub use mode::{CudaAliased, CudaMode};
use mp_core::DType;
use mp_core::message::PlainOutcome;
use mp_tensor::{Element, Exclusive, Frozen, Shared, grad_methods, shape_methods};
pub use weak::WeakCudaTensor;

use crate::error::Result;
use crate::stream::Stream;
use crate::uuid::Uuid;
use raw::Raw;

/// A tensor in the memory of a device, with one owner among all processes, which may write; in other [modes](CudaMode) there are
/// [`FrozenCudaTensor`] and [`SharedCudaTensor`].
///
/// ```no_run
/// use mp_cuda::{CudaTensor, Device, Stream};
///
/// let stream = Stream::new(&Device::new(0)?)?;
/// let mut x = CudaTensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], [2, 2], &stream)?;
/// let on = x.on_mut(&stream)?; // `stream` waits for what other streams and processes do with it
/// // … kernels of yours for `stream`, with `on.ptr()` and `on.len()` …
/// drop(on);
/// let weights = x.freeze(); // any process may read it now, without a copy
/// assert_eq!(weights.select(0, 1)?.to_vec(&stream)?.len(), 2);
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// It moves: put into a queue, it is gone here, and the receiver is its new owner. No byte is copied, and no host waits for a
/// device. The receiver's stream waits for the sender's, on the device, when the receiver takes it
/// [`on`](Self::on) one.
///
/// Sending it, receiving it and making views of it opens no memory of a device; so a process without a GPU may pass it on.
///
/// # When a process dies
/// The memory lives as long as any process or any message on its way holds it, whichever process has made it. If the process is
/// killed that was to fill it, and its kernels had not run, [`on`](Self::on) returns [`ProducerDied`](crate::Error::ProducerDied). What
/// a killed process could write to is used for no other tensor.
#[doc(alias = "rebuild_cuda_tensor")]
pub struct CudaTensor<T: Element, M: CudaMode = Exclusive> {
    pub(crate) raw: Raw<M>,
    elements: PhantomData<T>,
}

impl<T: Element, M: CudaMode> PlainOutcome for CudaTensor<T, M> {}

/// A tensor in the memory of a device that any number of processes read and none writes, ever again.
///
/// ```no_run
/// use mp_cuda::{CudaTensor, Device, Stream};
///
/// let stream = Stream::new(&Device::new(0)?)?;
/// let weights = CudaTensor::<f32>::zeros([1000], &stream)?.freeze();
/// let part = weights.narrow(0, 10, 90)?; // the same memory
/// assert_eq!(part.storage(), weights.storage());
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// Inside of a message it is an ordinary serde value; the same memory received twice is one.
pub type FrozenCudaTensor<T> = CudaTensor<T, Frozen>;

/// A tensor in the memory of a device that any number of processes read and write at once.
///
/// ```no_run
/// use mp_cuda::{CudaTensor, Device, Event, Stream};
///
/// let stream = Stream::new(&Device::new(0)?)?;
/// let x = CudaTensor::<f32>::zeros([1000], &stream)?.share();
/// // … (done, x.clone()) went to another process, which changes `x` and records `done` …
/// # let done = Event::new()?;
/// done.wait(&stream)?;
/// let values = x.to_vec(&stream)?;
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// What was written before it was sent is seen by its receivers. Which of later writes is seen, and when, the processes
/// arrange themselves, by messages or an [`Event`](crate::Event); so do several streams of one process. Without that, what is read is some of what was
/// written, element by element, or torn within an element: devices promise no more.
///
/// If a process is killed that was to write what was sent, the next [`on`](CudaTensor::on) or `on_mut` of each receiver says so
/// ([`ProducerDied`](crate::Error::ProducerDied)), and those after it go on with what is there.
pub type SharedCudaTensor<T> = CudaTensor<T, Shared>;

/// Which piece of device memory a tensor is a view of: the same in all processes, and of no other piece ever after.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct CudaStorageId(u64);

impl<T: Element, M: CudaMode> CudaTensor<T, M> {
    shape_methods!(raw.view);
    grad_methods!();

    /// Of parts that go together.
    pub(crate) fn of(raw: Raw<M>) -> Self {
        Self { raw, elements: PhantomData }
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// The device whose memory it is in; `None` without elements.
    pub fn device(&self) -> Option<Uuid> {
        self.raw.device()
    }

    /// Which memory it is a view of, in whichever process; `None` without elements.
    #[doc(alias = "untyped_storage")]
    pub fn storage(&self) -> Option<CudaStorageId> {
        self.raw.storage()
    }

    /// Takes it on a stream, for work that reads it. The stream waits, on the device, for what others write; this thread doesn't
    /// wait for that.
    ///
    /// The first time for memory of another process, that is opened: the driver is called, and may wait for the device.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if what it waits for never will be written;
    /// [`UnknownDevice`](crate::Error::UnknownDevice) or [`PeerAccess`](crate::Error::PeerAccess) if the stream's device can't reach it;
    /// [`Capturing`](crate::Error::Capturing); what else the driver refuses.
    pub fn on(&self, stream: &Stream) -> Result<Lent<'_, T>> {
        Ok(Lent::of(self.raw.lend(size_of::<T>(), stream, false)?, &self.raw.view))
    }

    /// The same elements, as a leaf that requires no gradients.
    #[must_use]
    pub fn detach(mut self) -> Self {
        self.raw.grad = Default::default();
        self
    }
}

impl<T: Element, M: CudaMode> fmt::Debug for CudaTensor<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        any::show(&self.raw, T::DTYPE, f)
    }
}
