//! Streams: queues of a device's work.
//!
//! # Safety
//! Unsafe, because streams are objects of the driver, and users may give one of theirs; sound, because
//! - a stream that was made here is destroyed when its last owner drops it, and reached by owners alone;
//! - of a user's stream the user vouches for as much, and gives what keeps it alive.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use crate::device::Device;
use crate::driver::Driver;
use crate::driver::api::Handle;
use crate::driver::context;
use crate::error::Result;

/// A stream of a device: work that runs in the order in which it was given to it, while the host goes on.
///
/// ```no_run
/// use mp_cuda::{Device, Stream};
///
/// let stream = Stream::new(&Device::new(0)?)?;
/// // … kernels and copies by `stream.as_raw()` …
/// stream.synchronize()?;
/// assert!(stream.is_complete()?);
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// A clone is the same stream; with the last one it is destroyed. Work that it still has runs on.
///
/// If this process is killed, what the stream has not run yet is lost.
#[doc(alias = "torch.cuda.Stream")]
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    device: Device,
    stream: Handle,
    owned: Owned,
}

/// What destroys the stream.
enum Owned {
    Here,
    /// What a user gave with a stream, kept as long as that is used.
    Elsewhere {
        _keep_alive: Box<dyn Any + Send + Sync>,
    },
}

impl Stream {
    /// A new stream, which waits for no other one by itself.
    ///
    /// # Errors
    /// What the driver refuses; [`Forked`](crate::Error::Forked) in a copy of the process that made the device.
    #[doc(alias = "cuStreamCreate")]
    pub fn new(device: &Device) -> Result<Self> {
        let stream = device.bind()?.stream_create()?;
        Ok(Self(Arc::new(Inner { device: device.clone(), stream, owned: Owned::Here })))
    }

    /// A stream of another library (`CUcontext` and `CUstream`), which is used, and not destroyed. A null `stream` is the context's
    /// default stream.
    ///
    /// # Errors
    /// [`OtherContext`](crate::Error::OtherContext) if the context is not its device's primary one, or the stream is of
    /// another context; what the driver refuses.
    ///
    /// # Safety
    /// Context and stream are alive until `keep_alive` is dropped, which is when the last clone of the returned value is.
    #[doc(alias = "torch.cuda.ExternalStream")]
    pub unsafe fn from_raw(
        context: *mut c_void,
        stream: *mut c_void,
        keep_alive: impl Any + Send + Sync,
    ) -> Result<Self> {
        let driver = Driver::get()?;
        // SAFETY: the caller vouches for the context.
        let (primary, number) = unsafe { context::primary_of(driver, Handle(context)) }?;
        let device = Device::of(driver, number, primary)?;
        let stream = Handle(stream);
        {
            let bound = device.bind()?;
            // SAFETY: the caller vouches for the stream; without one it is the default stream of the context that is current.
            if unsafe { bound.stream_context(stream) }? != Handle(context) {
                return Err(crate::Error::OtherContext);
            }
        }
        let owned = Owned::Elsewhere { _keep_alive: Box::new(keep_alive) };
        Ok(Self(Arc::new(Inner { device, stream, owned })))
    }

    /// The device whose work it has.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The `CUstream`, for calls of other libraries. It is alive as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.0.stream.0
    }

    /// Waits until all work has run that was given to it before. It blocks the thread for as long as that takes.
    ///
    /// # Errors
    /// [`DeviceLost`](crate::Error::DeviceLost) if a kernel failed; what else the driver refuses.
    #[doc(alias = "torch.cuda.Stream.synchronize")]
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive as long as `self`.
        unsafe { self.0.device.bind()?.stream_synchronize(self.0.stream) }
    }

    /// Whether all work has run that was given to it before.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    #[doc(alias = "torch.cuda.Stream.query")]
    pub fn is_complete(&self) -> Result<bool> {
        // SAFETY: the stream is alive as long as `self`.
        unsafe { self.0.device.bind()?.stream_is_complete(self.0.stream) }
    }

    /// Whether its work is being captured into a graph, in place of being run.
    ///
    /// # Errors
    /// What the driver refuses.
    #[doc(alias = "torch.cuda.is_current_stream_capturing")]
    pub fn is_capturing(&self) -> Result<bool> {
        // SAFETY: the stream is alive as long as `self`.
        unsafe { self.0.device.bind()?.stream_is_capturing(self.0.stream) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a copy of the process that made it, there is nothing to destroy.
        if let (Owned::Here, Some(_), Ok(bound)) = (&self.owned, Driver::loaded(), self.device.bind()) {
            // SAFETY: it was made here, and its last owner is gone. A failure is one of a lost device, which has no streams.
            _ = unsafe { bound.stream_destroy(self.stream) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owned = matches!(self.0.owned, Owned::Here);
        f.debug_struct("Stream").field("device", &self.0.device.uuid()).field("owned", &owned).finish()
    }
}
