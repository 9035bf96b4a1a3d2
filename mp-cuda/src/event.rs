//! Events: points in the work of a stream that any process may wait for.
//!
//! | word | contents | written by |
//! |---|---|---|
//! | 0 | last recorded tick (point in the work of a stream), or 0 before the first record | any holder of the event, after the driver has accepted the tick |
//!
//! A process that is killed before it writes the word leaves the previous tick, and an additional tick in the
//! clock of the killed process's stream. No other process reads that tick.
//!
//! # Safety
//! Unsafe, because it uses a word of the arena. Sound, because the event holds the structure that contains
//! the word, and only events use structures of its name.
#![allow(unsafe_code)]

use std::fmt;
use std::time::Duration;

use mp_core::clocks::Tick;
use mp_core::mem::Mem;
use mp_core::{Structure, Wait};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Result;
use crate::stream::order::tick;
use crate::stream::work::StreamWaitPurpose;
use crate::stream::{CudaStream, host, ownerless};

const NAME: &str = "mp_cuda::Event";
const WHAT: &str = "a CudaEvent";
const TICK: u64 = 0;
const WORDS: u64 = 1;

/// Point in the work of a stream that streams and hosts of all processes may wait for.
///
/// ```no_run
/// use mp_cuda::{Device, CudaEvent, CudaStream};
///
/// let device = Device::new(0)?;
/// let (stream, other) = (CudaStream::new(&device)?, CudaStream::new(&device)?);
/// let done = CudaEvent::new()?;
/// assert!(done.query()?); // it was never recorded
/// // … work for `stream` …
/// done.record(&stream)?;
/// done.wait(&other)?; // `other` continues after that work; this thread doesn't wait
/// // … work for `other` …
/// done.synchronize()?; // this thread waits
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// Clones refer to the same event. In a message, an event is an ordinary serde value. Any process that has
/// the event may record it, and wait for the last record. Creating, sending, receiving and querying an event
/// needs no GPU and no driver call.
///
/// [`wait`](Self::wait) and [`synchronize`](Self::synchronize) use the last record at the time of the call.
/// Later records do not affect them, and nothing waits for a future record. So send a message after `record`,
/// and wait after that message has arrived.
///
/// The time between two events is not available (`elapsed_time` of torch), because CUDA's events between
/// processes don't have it either.
///
/// # When a process dies
/// Suppose that the dead process made the last record. If the record was complete, it stays complete. If it
/// was pending, streams that wait for it continue. Hosts that wait for it, and later queries, get
/// [`ProducerDied`](crate::Error::ProducerDied) until the event is recorded again.
#[derive(Clone)]
#[doc(alias("torch.cuda.Event", "cuEventCreate", "cuIpcGetEventHandle", "cuIpcOpenEventHandle"))]
#[doc(alias = "reduce_event")]
#[doc(alias = "rebuild_event")]
#[doc(alias = "ipc_handle")]
#[doc(alias = "from_ipc_handle")]
pub struct CudaEvent(Structure);

impl CudaEvent {
    /// Creates an event without a record, which counts as complete.
    ///
    /// # Errors
    /// [`mp_core::Error::OutOfMemory`], [`mp_core::Error::ArenaFull`] or [`mp_core::Error::Forked`].
    pub fn new() -> Result<Self> {
        Ok(Self(Structure::new(NAME, WORDS)?))
    }

    /// Records the event: the record is complete when all earlier work of `stream` has run. Doesn't block.
    ///
    /// # Errors
    /// [`Capturing`](crate::Error::Capturing), [`TooManyStreams`](crate::Error::TooManyStreams); errors of
    /// the driver. After an error the event is unchanged.
    #[doc(alias = "cuEventRecord")]
    pub fn record(&self, stream: &CudaStream) -> Result<()> {
        self.0.arena().me()?;
        ownerless::end_some();
        let tick = stream.tick()?;
        // SAFETY: this structure's own word.
        unsafe { self.0.arena().words() }.store(self.0.word(TICK), tick.raw());
        Ok(())
    }

    /// Returns the tick of the last record.
    fn last(&self) -> Result<Option<Tick>> {
        self.0.arena().me()?;
        // SAFETY: nothing is changed, and the word is this structure's own.
        Ok(Tick::from_raw(unsafe { self.0.arena().words() }.load(self.0.word(TICK))))
    }

    /// Has `stream`, of any process and device, wait until the last record is complete, before it runs later
    /// work. Doesn't block the calling thread.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if the record will never be complete;
    /// [`Capturing`](crate::Error::Capturing); errors of the driver.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait(&self, stream: &CudaStream) -> Result<()> {
        match self.last()? {
            Some(tick) => stream.wait_for(tick, StreamWaitPurpose::Results),
            None => Ok(()),
        }
    }

    /// Returns `true` if the last record is complete, or if the event has no record. Doesn't block, and calls
    /// no driver.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if the record will never be complete.
    #[doc(alias = "cuEventQuery")]
    pub fn query(&self) -> Result<bool> {
        self.last()?.map_or(Ok(true), tick::is_complete)
    }

    /// Blocks until the last record is complete.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if the record will never be complete;
    /// [`mp_core::Error::Interrupted`].
    #[doc(alias = "cuEventSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        self.within(Wait::Forever).map(drop)
    }

    /// Blocks until the last record is complete, at most for `timeout`. Returns `true` if it is complete.
    ///
    /// # Errors
    /// Errors of [`synchronize`](Self::synchronize).
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<bool> {
        self.within(Wait::at_most(timeout))
    }

    fn within(&self, wait: Wait) -> Result<bool> {
        let Some(tick) = self.last()? else { return Ok(true) };
        host::wait(tick, wait)
    }
}

impl fmt::Debug for CudaEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.query() {
            Ok(complete) => {
                write!(f, "CudaEvent({:?}, {})", self.0.hold(), if complete { "complete" } else { "pending" })
            }
            Err(_) => write!(f, "CudaEvent({:?})", self.0.hold()),
        }
    }
}

impl Serialize for CudaEvent {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.send(WHAT, s)
    }
}

impl<'de> Deserialize<'de> for CudaEvent {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let structure = Structure::receive(WHAT, NAME, d)?;
        if structure.len() < WORDS {
            return Err(serde::de::Error::custom("an event without a word arrived"));
        }
        Ok(Self(structure))
    }
}
