//! Events: points in the work of a stream that any process may wait for.
//!
//! | word | what | written by |
//! |---|---|---|
//! | 0 | the tick that was recorded last; 0: none | any holder of the event, after the driver has accepted that tick |
//!
//! A process that is killed between the two leaves the tick before, and one more in its clock, which no other process knows of.
//!
//! # Safety
//! Unsafe, because it reaches a word of the arena; sound, because that is the word of a structure of this name, which is used for
//! nothing else, and is held by the event.
#![allow(unsafe_code)]

use std::fmt;
use std::time::Duration;

use mp_core::clocks::Tick;
use mp_core::mem::Mem;
use mp_core::{Structure, Wait};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Result;
use crate::stream::order::{clock, host};
use crate::stream::{Stream, ended};

const NAME: &str = "mp_cuda::Event";
const WHAT: &str = "an Event";
const TICK: u64 = 0;
const WORDS: u64 = 1;

/// A point in the work of a stream, which streams and hosts of all processes may wait for.
///
/// ```no_run
/// use mp_cuda::{Device, Event, Stream};
///
/// let device = Device::new(0)?;
/// let (stream, other) = (Stream::new(&device)?, Stream::new(&device)?);
/// let done = Event::new()?;
/// assert!(done.query()?); // it was never recorded
/// // … work for `stream` …
/// done.record(&stream)?;
/// done.wait(&other)?; // `other` goes on after that work; this thread doesn't wait
/// // … work for `other` …
/// done.synchronize()?; // this thread waits
/// # Ok::<(), mp_cuda::Error>(())
/// ```
///
/// A clone is the same event. Inside of a message it is an ordinary serde value; any process that has it may record it, and wait for
/// what was recorded. To make, send and receive one, and to ask whether it is complete, takes no GPU and no call of the driver.
///
/// What [`wait`](Self::wait) and [`synchronize`](Self::synchronize) mean is decided when they are called: what was recorded last,
/// then. A record that comes later changes nothing for them, and nothing waits for one that is yet to come. So send a message
/// after `record`, and wait after that message has come.
///
/// There is no time between two events, as `elapsed_time` of torch gives: neither have CUDA's events that several processes share.
///
/// # When a process dies
/// If what was recorded is complete, it stays so. If not, streams that wait for it go on, and hosts that wait get
/// [`ProducerDied`](crate::Error::ProducerDied), as does each later question, until the event is recorded again.
#[derive(Clone)]
#[doc(alias("torch.cuda.Event", "cuEventCreate", "cuIpcGetEventHandle", "cuIpcOpenEventHandle"))]
#[doc(alias = "reduce_event")]
#[doc(alias = "rebuild_event")]
#[doc(alias = "ipc_handle")]
#[doc(alias = "from_ipc_handle")]
pub struct Event(Structure);

impl Event {
    /// An event that was never recorded, which is as one that is complete.
    ///
    /// # Errors
    /// [`mp_core::Error::OutOfMemory`], [`mp_core::Error::ArenaFull`] or [`mp_core::Error::Forked`].
    pub fn new() -> Result<Self> {
        Ok(Self(Structure::new(NAME, WORDS)?))
    }

    /// Records all work that `stream` was given before. It doesn't block.
    ///
    /// # Errors
    /// [`Capturing`](crate::Error::Capturing), [`TooManyStreams`](crate::Error::TooManyStreams); what the driver refuses. Then it is as it was.
    #[doc(alias = "cuEventRecord")]
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.0.arena().me()?;
        ended::sweep_some();
        let tick = stream.tick()?;
        // SAFETY: this structure's own word.
        unsafe { self.0.arena().words() }.store(self.0.word(TICK), tick.raw());
        Ok(())
    }

    /// What was recorded last.
    fn last(&self) -> Result<Option<Tick>> {
        self.0.arena().me()?;
        // SAFETY: nothing is changed; the word is this structure's own.
        Ok(Tick::from_raw(unsafe { self.0.arena().words() }.load(self.0.word(TICK))))
    }

    /// Has `stream`, whose process and device may be any, wait until what was recorded is complete, before it runs what it is given
    /// from now on. It doesn't block the calling thread.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if what was recorded never will be complete; [`Capturing`](crate::Error::Capturing); what the driver refuses.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        match self.last()? {
            Some(tick) => stream.wait_for(tick).map(drop),
            None => Ok(()),
        }
    }

    /// Whether what was recorded is complete; also true if nothing was. It doesn't block, and calls no driver.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if it never will be.
    #[doc(alias = "cuEventQuery")]
    pub fn query(&self) -> Result<bool> {
        self.last()?.map_or(Ok(true), clock::is_complete)
    }

    /// Waits until what was recorded is complete. It blocks the thread for as long as that takes.
    ///
    /// # Errors
    /// [`ProducerDied`](crate::Error::ProducerDied) if it never will be; [`mp_core::Error::Interrupted`].
    #[doc(alias = "cuEventSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        self.within(Wait::Forever).map(drop)
    }

    /// Waits until what was recorded is complete, at most `timeout`; whether it is.
    ///
    /// # Errors
    /// As [`synchronize`](Self::synchronize).
    pub fn synchronize_timeout(&self, timeout: Duration) -> Result<bool> {
        self.within(Wait::at_most(timeout))
    }

    fn within(&self, wait: Wait) -> Result<bool> {
        let Some(tick) = self.last()? else { return Ok(true) };
        host::wait(tick, wait)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.query() {
            Ok(complete) => {
                write!(f, "Event({:?}, {})", self.0.hold(), if complete { "complete" } else { "pending" })
            }
            Err(_) => write!(f, "Event({:?})", self.0.hold()),
        }
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.send(WHAT, s)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let structure = Structure::receive(WHAT, NAME, d)?;
        if structure.len() < WORDS {
            return Err(serde::de::Error::custom("an event without a word arrived"));
        }
        Ok(Self(structure))
    }
}
