//! Reply of a worker: the batch that it made.

use std::time::Instant;

use mp_core::message::{Codec, Incoming, Level, Message, Outgoing, UnsentValues};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::dataset::info::WorkerInfo;
use crate::error::failure::is_out_of_memory;
use crate::{AnyResult, Batch};

/// Reply with a batch.
pub(crate) struct WorkerReply<B, A> {
    /// `None` if shared memory was exhausted.
    pub(crate) batch: Option<B>,
    /// Text of the error if shared memory was exhausted.
    pub(crate) no_memory: Option<String>,
    pub(crate) worker: Option<usize>,
    pub(crate) pid: u32,
    pub(crate) nanos: u64,
    /// Nanoseconds that the start of the worker took.
    pub(crate) began: u64,
    /// Samples of a stream's batch, and the position of the lane after them.
    pub(crate) progress: Option<A>,
}

impl<B, A> WorkerReply<B, A> {
    /// Wraps the result of `fetch`, which was called at `start`.
    pub(crate) fn of(fetched: AnyResult<B>, info: &WorkerInfo, start: Instant) -> AnyResult<Self> {
        let (batch, no_memory) = match fetched {
            Ok(batch) => (Some(batch), None),
            Err(error) if is_out_of_memory(&*error) => (None, Some(error.to_string())),
            Err(error) => return Err(error),
        };
        Ok(WorkerReply { no_memory, ..WorkerReply::new(batch, info, start) })
    }

    pub(crate) fn new(batch: Option<B>, info: &WorkerInfo, start: Instant) -> Self {
        let (nanos, pid) = (nanos_since(start), std::process::id());
        WorkerReply { batch, no_memory: None, worker: info.worker, pid, nanos, began: 0, progress: None }
    }
}

impl<B: Batch, A: Serialize + DeserializeOwned + Send + 'static> Message for WorkerReply<B, A> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        let _level = Level::enter()?;
        let WorkerReply { batch, no_memory, worker, pid, nanos, began, progress } = &*self;
        C::write(out, &(batch.is_some(), no_memory, worker, pid, nanos, began, progress))?;
        self.batch.iter_mut().try_for_each(|batch| batch.send::<C>(out))
    }

    fn take_back(&mut self, back: &mut UnsentValues) {
        let Ok(_level) = Level::enter() else { return };
        self.batch.iter_mut().for_each(|batch| batch.get_back(back));
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let _level = Level::enter()?;
        let (is_there, no_memory, worker, pid, nanos, began, progress) = C::read(inc)?;
        let batch = if is_there { Some(B::receive::<C>(inc)?) } else { None };
        Ok(WorkerReply { batch, no_memory, worker, pid, nanos, began, progress })
    }
}

pub(crate) fn nanos_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
