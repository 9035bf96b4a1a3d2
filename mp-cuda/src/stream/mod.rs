//! Streams: queues of a device's work.
//!
//! # Safety
//! Unsafe, because streams are objects of the driver, and users may give one of theirs; sound, because
//! - a stream that was made here is destroyed when its last owner drops it, and reached by owners alone;
//! - of a user's stream the user vouches for as much, and gives what keeps it alive;
//! - a stream's clock is its own as long as either lives.
#![allow(unsafe_code)]

pub(crate) mod ended;
pub(crate) mod order;
pub(crate) mod work;

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use mp_core::clocks::Tick;
use mp_core::{Arena, Wait, mutant};

use crate::device::Device;
use crate::driver::Driver;
use crate::driver::api::Handle;
use crate::driver::context;
use crate::error::Result;
use order::StreamClock;
use work::Work;

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: usize = 2;

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
/// A clone is the same stream, and a tensor that was used on a stream keeps a clone until that use is told to another process or over.
/// With the last clone the stream is destroyed. Work that it still has runs on.
///
/// # Many that wait
/// A process has 8 hardware queues for its streams, unless `CUDA_DEVICE_MAX_CONNECTIONS` (1 to 32, in its environment when the driver is first used) says
/// otherwise. If as many streams wait for other processes, its other streams go on when these do.
///
/// # When a process ends
/// A process that ends by itself waits until its streams have run what other processes may wait for, at most 5 seconds. If it is
/// killed, what its streams have not run yet is lost, and said to be by
/// [`ProducerDied`](crate::Error::ProducerDied) where another process needs it.
#[doc(alias = "torch.cuda.Stream")]
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    stream: Handle,
    owned: Owned,
    work: Arc<Work>,
}

/// What destroys the stream.
enum Owned {
    Here,
    /// What a user gave with a stream, kept as long as that is used.
    Elsewhere {
        keep_alive: Box<dyn Any + Send + Sync>,
    },
}

impl Stream {
    /// A new stream, which waits for no other one by itself.
    ///
    /// # Errors
    /// What the driver refuses; [`Forked`](crate::Error::Forked) in a copy of the process that made the device.
    #[doc(alias = "cuStreamCreate")]
    pub fn new(device: &Device) -> Result<Self> {
        ended::sweep();
        Self::beside_locks(device)
    }

    /// A new stream, for a caller that has locks: no other one is ended, whose user's code would run then.
    pub(crate) fn beside_locks(device: &Device) -> Result<Self> {
        let stream = device.bind()?.stream_create()?;
        Ok(Self::of(device.clone(), stream, Owned::Here))
    }

    /// A stream of another library (`CUcontext` and `CUstream`), which is used, and not destroyed. A null `stream` is the context's
    /// default stream.
    ///
    /// # Errors
    /// [`OtherContext`](crate::Error::OtherContext) if the context is not its device's primary one, or the stream is of
    /// another context; [`mp_core::Error::InvalidArgument`] for `CU_STREAM_PER_THREAD`, which is another stream in each thread; what the
    /// driver refuses.
    ///
    /// # Safety
    /// Context and stream are alive until `keep_alive` is dropped. It is when the last clone of the returned value is gone and what other
    /// processes wait for has run: at once, or, in whichever thread, when another stream is made, dropped or waited for, or an event is recorded;
    /// not if the process ends before.
    #[doc(alias = "torch.cuda.ExternalStream")]
    pub unsafe fn from_raw(
        context: *mut c_void,
        stream: *mut c_void,
        keep_alive: impl Any + Send + Sync,
    ) -> Result<Self> {
        if stream.addr() == PER_THREAD {
            let why = "the per-thread default stream is another one in each thread, and can't be given as one: make a stream";
            return Err(mp_core::Error::InvalidArgument(why.into()).into());
        }
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
        Ok(Self::of(device, stream, Owned::Elsewhere { keep_alive: Box::new(keep_alive) }))
    }

    fn of(device: Device, stream: Handle, owned: Owned) -> Self {
        let work = Work::new(&device, StreamClock::default());
        let stream = Self(Arc::new(Inner { stream, owned, work }));
        ended::begins(&stream);
        stream
    }

    /// The device whose work it has.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.work.device
    }

    /// The `CUstream`, for calls of other libraries. It is alive as long as this is.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.0.stream.0
    }

    /// Waits until all work has run that was given to it before. It blocks the thread for as long as that takes.
    ///
    /// Where the stream waits for other processes, this looks after their deaths meanwhile. The driver's own `cuStreamSynchronize` doesn't:
    /// a stream that waits for a killed process goes on when some process of the family has found the death.
    ///
    /// # Errors
    /// [`DeviceLost`](crate::Error::DeviceLost) if a kernel failed; [`ProducerDied`](crate::Error::ProducerDied) if the stream waits for a process that was
    /// killed, and can't be released ([`Order::IpcEvents`](crate::Order::IpcEvents)); [`mp_core::Error::Interrupted`]; what else the driver refuses.
    #[doc(alias = "torch.cuda.Stream.synchronize")]
    pub fn synchronize(&self) -> Result<()> {
        ended::sweep_some();
        if self.waits()? && !mutant!("cuda.stream.deaths-not-looked-after") {
            let look = || Ok(!self.waits()? || self.has_run_now()?);
            order::host::until(look, || Ok(()), "what a stream was given", Wait::Forever)?;
        }
        let ended = self.0.work.ended();
        // SAFETY: the stream is alive as long as `self`.
        self.noted(unsafe { self.0.work.device.bind()?.stream_synchronize(self.0.stream) })?;
        self.0.work.told(ended);
        Ok(())
    }

    /// Whether all work has run that was given to it before.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    #[doc(alias = "torch.cuda.Stream.query")]
    pub fn is_complete(&self) -> Result<bool> {
        if self.waits()? {
            // For a caller that asks again and again, as for one that waits.
            Arena::current()?.sweep_if_due()?;
        }
        self.has_run_now()
    }

    /// Whether it waits for what has not come.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if some of that never will, and nothing releases it.
    fn waits(&self) -> Result<bool> {
        let mut awaited = self.0.work.awaited.lock();
        awaited.look();
        if awaited.ticks.is_empty() {
            return Ok(false);
        }
        let releases = order::releases(&self.0.work.device)?;
        let pending = |tick: &Tick| match order::clock::is_complete(*tick) {
            Ok(complete) => Ok(!complete),
            Err(_) if releases || mutant!("cuda.stream.unreleased-waited-for") => Ok(false),
            Err(error) => Err(error),
        };
        awaited.ticks.iter().try_fold(false, |waits, tick| Ok(pending(tick)? || waits))
    }

    /// A use of a piece of memory begins: before the stream is told what to wait for. How many have.
    pub(crate) fn use_begins(&self) -> u64 {
        let mut awaited = self.0.work.awaited.lock();
        let died = |tick: &Tick| order::clock::is_complete(*tick).is_err();
        // What it is given from now on is behind none of that, if it has run all.
        awaited.look();
        if awaited.uses == 0
            && awaited.ticks.iter().any(died)
            && matches!(self.has_run(), Ok(true))
            && !mutant!("cuda.stream.death-never-over")
        {
            awaited.ticks.retain(|tick| !died(tick));
            awaited.sources.retain(|tick| !died(tick));
        }
        awaited.uses += 1;
        self.0.work.use_begins()
    }

    /// A host has seen that all has run of a use which was the last to begin, if this is its number.
    pub(crate) fn use_has_run(&self, number: u64) {
        self.0.work.has_run(number);
    }

    /// A use ends: what its work was behind that has not come, or never will.
    pub(crate) fn use_ends(&self) -> Vec<Tick> {
        let mut awaited = self.0.work.awaited.lock();
        awaited.uses = awaited.uses.saturating_sub(1);
        awaited.look();
        awaited.sources.clone()
    }

    fn has_run_now(&self) -> Result<bool> {
        // SAFETY: the stream is alive as long as `self`.
        self.noted(unsafe { self.0.work.device.bind()?.stream_is_complete(self.0.stream) })
    }

    /// Whether all its work has run, as the driver says now: no other process is looked after. A stream that is being captured is not asked,
    /// which would end the capture, and has not run.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    pub(crate) fn has_run(&self) -> Result<bool> {
        if self.is_capturing()? {
            return Ok(false);
        }
        self.has_run_now()
    }

    /// Tells other processes if a result says that the device is lost.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| {
            if matches!(error, crate::Error::DeviceLost { .. }) {
                ended::lost(&self.0.work.device);
            }
        })
    }

    /// Whether its work is being captured into a graph, in place of being run.
    ///
    /// # Errors
    /// What the driver refuses.
    #[doc(alias = "torch.cuda.is_current_stream_capturing")]
    pub fn is_capturing(&self) -> Result<bool> {
        // SAFETY: the stream is alive as long as `self`.
        unsafe { self.0.work.device.bind()?.stream_is_capturing(self.0.stream) }
    }

    /// A tick that is complete when all work has run that was given to it before. Any process may be told.
    ///
    /// # Errors
    /// [`Capturing`](crate::Error::Capturing), [`TooManyStreams`](crate::Error::TooManyStreams); what the driver refuses.
    pub(crate) fn tick(&self) -> Result<Tick> {
        let Inner { stream, work, .. } = &*self.0;
        let Work { device, clock, .. } = &**work;
        // Before it: a use that begins meanwhile is behind it.
        let ended = work.ended();
        // SAFETY: the stream is alive as long as `self`, and the clock its own.
        let mut tick = unsafe { clock.tick(device, *stream) };
        if matches!(tick, Err(crate::Error::TooManyStreams)) {
            // Clocks of streams that have ended, and run all they had.
            ended::sweep_ours();
            // SAFETY: likewise.
            tick = unsafe { clock.tick(device, *stream) };
        }
        if tick.is_ok() {
            work.told(ended);
        }
        self.noted(tick)
    }

    /// Has it wait for a tick, whichever process made that, before it runs what it is given from now on; whether it has to.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if the work before the tick is lost; [`Capturing`](crate::Error::Capturing); what
    /// the driver refuses.
    pub(crate) fn wait_for(&self, tick: Tick) -> Result<bool> {
        self.wait(tick, true)
    }

    /// As [`wait_for`](Self::wait_for), for work of which the stream uses no result: that only has to be out of its way. If that never runs,
    /// nothing of this stream's is lost.
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for).
    pub(crate) fn wait_for_room(&self, tick: Tick) -> Result<bool> {
        self.wait(tick, false)
    }

    fn wait(&self, tick: Tick, is_source: bool) -> Result<bool> {
        // SAFETY: the stream is alive as long as `self`.
        let waits = self.noted(unsafe { order::clock::wait(&self.0.work.device, self.0.stream, tick) })?;
        if waits {
            let is_source = is_source || mutant!("cuda.stream.room-is-a-source");
            self.0.work.awaited.lock().note(tick, is_source);
        }
        Ok(waits)
    }

    pub(crate) fn handle(&self) -> Handle {
        self.0.stream
    }
}

/// The same stream of the same device.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.0.stream == other.0.stream && self.0.work.device == other.0.work.device
    }
}

impl Eq for Stream {}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a copy of the process that made it, there is nothing to destroy.
        if Driver::loaded().is_none() {
            return;
        }
        let (stream, keep_alive) = match std::mem::replace(&mut self.owned, Owned::Here) {
            Owned::Here => (Some(self.stream), None),
            Owned::Elsewhere { keep_alive } => (None, Some(keep_alive)),
        };
        self.work.leave();
        ended::add(ended::Ended { work: Arc::clone(&self.work), stream, keep_alive });
        ended::sweep_some();
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owned = matches!(self.0.owned, Owned::Here);
        f.debug_struct("Stream").field("device", &self.0.work.device.uuid()).field("owned", &owned).finish()
    }
}
