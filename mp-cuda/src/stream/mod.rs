//! Streams: queues of a device's work.
//!
//! # Safety
//! Unsafe, because streams are objects of the driver, and users may pass their own. Sound, because
//! - a stream that this crate made is destroyed when its last owner drops it, and only owners use it;
//! - the user guarantees the same of a stream of another library, and passes a value that keeps it alive;
//! - a stream and its clock belong together until both have ended.
#![allow(unsafe_code)]

pub(crate) mod host;
pub(crate) mod order;
pub(crate) mod ownerless;
pub(crate) mod work;

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use mp_core::clocks::Tick;
use mp_core::{Arena, Recovery, Wait};

use crate::device::Device;
use crate::driver::Driver;
use crate::driver::api::DriverHandle;
use crate::driver::context;
use crate::error::Result;
use order::StreamClock;
use order::clock::StreamWait;
use work::{StreamWaitPurpose, StreamWork};

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

/// Stream of a device: work that runs in the order in which it was submitted, while the host continues.
///
/// ```no_run
/// use mp_cuda::{Device, CudaStream};
///
/// let stream = CudaStream::new(&Device::new(0)?)?;
/// // … kernels and copies by `stream.as_raw()` …
/// stream.synchronize()?;
/// assert!(stream.is_complete()?);
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// Clones refer to the same stream. A tensor that was used on a stream keeps a clone until the work of the
/// use has run, or the tensor has been sent or dropped. The stream is destroyed with its last clone, and its
/// remaining work still runs.
///
/// # How many streams can wait at a time?
/// A process has 8 hardware queues for its streams, or the number in `CUDA_DEVICE_MAX_CONNECTIONS` (1 to 32,
/// read when the driver is first used). If as many streams wait for other processes, the other streams of the
/// process wait, too.
///
/// # When a process ends
/// A process that ends by itself waits until its streams have run the work that other processes may wait for,
/// at most 5 seconds. If a process is killed, the remaining work of its streams is lost. Processes that need
/// it get [`ProducerDied`](crate::Error::ProducerDied).
#[doc(alias = "torch.cuda.Stream")]
#[derive(Clone)]
pub struct CudaStream(Arc<StreamInner>);

struct StreamInner {
    stream: DriverHandle,
    /// Value that keeps the stream alive, if another library created the stream.
    keep_alive: Option<Box<dyn Any + Send + Sync>>,
    work: Arc<StreamWork>,
}

impl CudaStream {
    /// Creates a stream that does not wait for other streams unless the program requests it.
    ///
    /// # Errors
    /// Errors of the driver; [`Forked`](crate::Error::Forked) in a copy of the process that made the device.
    #[doc(alias = "cuStreamCreate")]
    pub fn new(device: &Device) -> Result<Self> {
        ownerless::end_all();
        Self::new_under_locks(device)
    }

    /// Creates a stream for a caller that holds locks. Does not end other streams, because that may run the
    /// user's code.
    pub(crate) fn new_under_locks(device: &Device) -> Result<Self> {
        let stream = device.bind()?.stream_create()?;
        Ok(Self::of(device.clone(), stream, None))
    }

    /// Wraps a stream of another library (`CUcontext` and `CUstream`), which is not destroyed. A null
    /// `stream` is the default stream of the context.
    ///
    /// # Errors
    /// [`OtherContext`](crate::Error::OtherContext) if the context is not its device's primary context, or
    /// the stream belongs to another context; [`mp_core::Error::InvalidArgument`] for `CU_STREAM_PER_THREAD`,
    /// which refers to another stream in each thread; errors of the driver.
    ///
    /// # Safety
    /// Context and stream are alive until `keep_alive` is dropped. `keep_alive` is dropped when the last
    /// clone of the returned value is dropped, and the work for which other processes wait has run. It may be
    /// dropped at once, or later in any thread: when another stream is made, dropped or waited for, or an
    /// event is recorded. If the process ends before that, `keep_alive` is not dropped.
    #[doc(alias = "torch.cuda.ExternalStream")]
    pub unsafe fn from_raw(
        context: *mut c_void,
        stream: *mut c_void,
        keep_alive: impl Any + Send + Sync,
    ) -> Result<Self> {
        if stream.addr() == PER_THREAD {
            let why = "the per-thread default stream is another one in each thread, and can't be wrapped: \
                       make a stream";
            return Err(mp_core::Error::InvalidArgument(why.into()).into());
        }
        let driver = Driver::get()?;
        // SAFETY: the caller vouches for the context.
        let (primary, number) = unsafe { context::primary_of(driver, DriverHandle(context)) }?;
        let device = Device::of(driver, number, primary)?;
        let stream = DriverHandle(stream);
        {
            let bound = device.bind()?;
            // SAFETY: the caller vouches for the stream; a null stream is the default stream of the current
            // context.
            if unsafe { bound.stream_context(stream) }? != DriverHandle(context) {
                return Err(crate::Error::OtherContext);
            }
        }
        Ok(Self::of(device, stream, Some(Box::new(keep_alive))))
    }

    fn of(device: Device, stream: DriverHandle, keep_alive: Option<Box<dyn Any + Send + Sync>>) -> Self {
        let work = StreamWork::new(&device, StreamClock::default());
        let stream = Self(Arc::new(StreamInner { stream, keep_alive, work }));
        ownerless::register(&stream);
        stream
    }

    /// Returns the device of the stream.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.work.device
    }

    /// Returns the `CUstream`, for calls of other libraries. The stream is alive as long as this value.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.0.stream.0
    }

    /// Blocks until all previously submitted work has run.
    ///
    /// If the stream waits for other processes, the call recovers and reclaims dead processes meanwhile. The
    /// driver's `cuStreamSynchronize` does not. So while a thread is in `cuStreamSynchronize`, the stream's
    /// wait for a killed process ends only after another thread or process of the program has found the
    /// death.
    ///
    /// # Errors
    /// [`DeviceLost`](crate::Error::DeviceLost) if a kernel failed;
    /// [`ProducerDied`](crate::Error::ProducerDied) if the stream waits for a process that was killed, and
    /// can't be released ([`Order::IpcEvents`](crate::Order::IpcEvents)); [`mp_core::Error::Interrupted`];
    /// errors of the driver.
    #[doc(alias = "torch.cuda.Stream.synchronize")]
    pub fn synchronize(&self) -> Result<()> {
        ownerless::end_some();
        if self.waits()? {
            let look = || Ok(!self.waits()? || self.has_run_now()?);
            host::until(look, || Ok(()), "what a stream was given", Wait::Forever)?;
        }
        let ended = self.0.work.ended_uses();
        // SAFETY: the stream is alive as long as `self`.
        self.check_device(unsafe { self.0.work.device.bind()?.stream_synchronize(self.0.stream) })?;
        self.0.work.covered(ended);
        Ok(())
    }

    /// Returns `true` if all previously submitted work has run.
    ///
    /// # Errors
    /// Errors of [`synchronize`](Self::synchronize).
    #[doc(alias = "torch.cuda.Stream.query")]
    pub fn is_complete(&self) -> Result<bool> {
        if self.waits()? {
            // A caller that polls must find deaths, like a caller that blocks.
            Recovery(Arena::current()?).reclaim_if_due()?;
        }
        self.has_run_now()
    }

    /// Returns `true` if the stream waits for a pending tick.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if a tick will never be complete, and nothing releases
    /// the stream.
    fn waits(&self) -> Result<bool> {
        let mut awaited = self.0.work.awaited.lock();
        awaited.prune();
        if awaited.ticks.is_empty() {
            return Ok(false);
        }
        let releases = order::releases(&self.0.work.device)?;
        let pending = |tick: &Tick| match order::tick::is_complete(*tick) {
            Ok(complete) => Ok(!complete),
            Err(_) if releases => Ok(false),
            Err(error) => Err(error),
        };
        awaited.ticks.iter().try_fold(false, |waits, tick| Ok(pending(tick)? || waits))
    }

    /// Counts a use of a piece by the stream, before waits are submitted to the stream. Returns the number of
    /// uses that have begun.
    pub(crate) fn use_begins(&self) -> u64 {
        let mut awaited = self.0.work.awaited.lock();
        let died = |tick: &Tick| order::tick::is_complete(*tick).is_err();
        // If the stream has run all its work, later work does not depend on lost ticks.
        awaited.prune();
        if awaited.uses == 0 && awaited.ticks.iter().any(died) && matches!(self.has_run(), Ok(true)) {
            awaited.ticks.retain(|tick| !died(tick));
            awaited.sources.retain(|tick| !died(tick));
        }
        awaited.uses += 1;
        self.0.work.use_begins()
    }

    /// Records that a host has seen that the work of use `number` has run. Has no effect if another use has
    /// begun since.
    pub(crate) fn record_use_has_run(&self, number: u64) {
        self.0.work.has_run(number);
    }

    /// Ends a use. Returns the pending or lost ticks for which the stream waits, and whose results its work
    /// may use.
    pub(crate) fn use_ends(&self) -> Vec<Tick> {
        let mut awaited = self.0.work.awaited.lock();
        awaited.uses = awaited.uses.saturating_sub(1);
        awaited.prune();
        awaited.sources.clone()
    }

    fn has_run_now(&self) -> Result<bool> {
        // SAFETY: the stream is alive as long as `self`.
        self.check_device(unsafe { self.0.work.device.bind()?.stream_is_complete(self.0.stream) })
    }

    /// Returns `true` if the driver reports that all work has run. Does not recover dead processes. Returns
    /// `false` for a stream that is being captured, because a query would invalidate the capture.
    ///
    /// # Errors
    /// Errors of [`synchronize`](Self::synchronize).
    pub(crate) fn has_run(&self) -> Result<bool> {
        if self.is_capturing()? {
            return Ok(false);
        }
        self.has_run_now()
    }

    /// Returns the result. If it reports a lost device, records the loss for other processes.
    fn check_device<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if matches!(error, crate::Error::DeviceLost { .. }) {
                ownerless::mark_lost(&self.0.work.device);
            }
        })
    }

    /// Returns `true` if the stream's work is being captured into a graph, instead of run.
    ///
    /// # Errors
    /// Errors of the driver.
    #[doc(alias = "torch.cuda.is_current_stream_capturing")]
    pub fn is_capturing(&self) -> Result<bool> {
        // SAFETY: the stream is alive as long as `self`.
        unsafe { self.0.work.device.bind()?.stream_is_capturing(self.0.stream) }
    }

    /// Makes a tick, which is complete when all previously submitted work has run. Any process may use the
    /// tick.
    ///
    /// # Errors
    /// [`Capturing`](crate::Error::Capturing), [`TooManyStreams`](crate::Error::TooManyStreams); errors of
    /// the driver.
    pub(crate) fn tick(&self) -> Result<Tick> {
        let StreamInner { stream, work, .. } = &*self.0;
        let StreamWork { device, clock, .. } = &**work;
        // Read before the tick is made: the tick does not cover uses that begin meanwhile.
        let ended = work.ended_uses();
        // SAFETY: the stream is alive as long as `self`, and the clock its own.
        let mut tick = unsafe { clock.tick(device, *stream) };
        if matches!(tick, Err(crate::Error::TooManyStreams)) {
            // Frees clocks of ended streams that have run all their work.
            ownerless::end_own();
            // SAFETY: likewise.
            tick = unsafe { clock.tick(device, *stream) };
        }
        if tick.is_ok() {
            work.covered(ended);
        }
        self.check_device(tick)
    }

    /// Makes the stream wait for a tick of any process before it runs later work. If the work before the tick
    /// is lost, the later work is lost, too, unless `purpose` is `Memory`.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if the work before the tick is lost;
    /// [`Capturing`](crate::Error::Capturing); errors of the driver.
    pub(crate) fn wait_for(&self, tick: Tick, purpose: StreamWaitPurpose) -> Result<()> {
        // SAFETY: the stream is alive as long as `self`.
        let outcome =
            self.check_device(unsafe { order::clock::wait(&self.0.work.device, self.0.stream, tick) })?;
        match outcome {
            StreamWait::Over => {}
            StreamWait::ByHost => _ = self.check_device(host::wait(tick, Wait::Forever))?,
            StreamWait::Pending => self.0.work.awaited.lock().record(tick, purpose),
        }
        Ok(())
    }

    pub(crate) fn handle(&self) -> DriverHandle {
        self.0.stream
    }
}

/// Streams are equal if their handles and their devices are equal.
impl PartialEq for CudaStream {
    fn eq(&self, other: &Self) -> bool {
        self.0.stream == other.0.stream && self.0.work.device == other.0.work.device
    }
}

impl Eq for CudaStream {}

impl Drop for StreamInner {
    fn drop(&mut self) {
        // A forked copy has nothing to destroy.
        if Driver::loaded().is_none() {
            return;
        }
        let keep_alive = self.keep_alive.take();
        let stream = keep_alive.is_none().then_some(self.stream);
        self.work.orphan_ticks();
        ownerless::add(ownerless::OwnerlessStream { work: Arc::clone(&self.work), stream, keep_alive });
        ownerless::end_some();
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaStream")
            .field("device", &self.0.work.device.uuid())
            .field("owned", &self.0.keep_alive.is_none())
            .finish()
    }
}
