//! Interface of the makers of batches, the dataset and settings with which they start, and their replies.

use std::sync::Arc;
use std::time::Instant;

use mp_core::message::{Codec, Incoming, Level, Message, Outgoing, UnsentValues};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::dataset::context::Context;
use crate::dataset::info::WorkerInfo;
use crate::error::failure::is_out_of_memory;
use crate::{AnyResult, Batch};

/// Maker of batches, in a worker or in the training process.
pub(crate) trait BatchMaker: Sized + 'static {
    type Dataset: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Part of the plan that workers need.
    type Plan: Clone + Serialize + DeserializeOwned + Send + Sync + 'static;
    type Batch: Batch;
    type Task: Message + Send;
    /// Position after a batch. It is sent together with the batch.
    type Progress: Serialize + DeserializeOwned + Send + 'static;

    fn begin(init: InitOf<Self>) -> AnyResult<Self>;
    fn context(&self, task: &Self::Task) -> Context<Self::Batch>;
    fn make(
        &mut self,
        task: &Self::Task,
        cx: &mut Context<Self::Batch>,
    ) -> AnyResult<WorkerReply<Self::Batch, Self::Progress>>;
}

/// Message with which a worker of a loader starts.
pub(crate) type InitOf<W> = WorkerInit<<W as BatchMaker>::Dataset, <W as BatchMaker>::Plan>;

/// Makes the batch of a task. The pool calls this function in a worker.
pub(crate) fn make<W: BatchMaker>(
    worker: &mut W,
    task: W::Task,
) -> AnyResult<WorkerReply<W::Batch, W::Progress>> {
    let mut cx = worker.context(&task);
    worker.make(&task, &mut cx)
}

/// Dataset that is sent to workers. The dataset is encoded once, and each worker decodes it.
#[derive(Serialize, Deserialize)]
#[serde(bound(serialize = "D: Serialize", deserialize = "D: Deserialize<'de>"), transparent)]
pub(crate) struct SharedDataset<D>(#[serde(with = "mp_core::serde_with::shared")] pub(crate) Arc<D>);

impl<D> Clone for SharedDataset<D> {
    fn clone(&self) -> Self {
        SharedDataset(Arc::clone(&self.0))
    }
}

impl<D: Serialize + DeserializeOwned + 'static> SharedDataset<D> {
    /// Returns the dataset of a worker. If this value has other holders, the result is a copy that was
    /// encoded and decoded.
    pub(crate) fn received(self) -> AnyResult<D> {
        let envelope = match Arc::try_unwrap(self.0) {
            Ok(dataset) => return Ok(dataset),
            Err(shared) => mp_reduce::pack(SharedDataset(shared)).map_err(|error| error.error)?,
        };
        let copy: SharedDataset<D> = mp_reduce::unpack(envelope)?;
        Arc::try_unwrap(copy.0).map_err(|_| "a dataset that was just received has two holders".into())
    }
}

/// Start message of a worker: the dataset, settings, and the plan.
#[derive(Serialize, Deserialize)]
#[serde(bound = "D: Serialize + DeserializeOwned, P: Serialize + DeserializeOwned")]
pub(crate) struct WorkerInit<D, P> {
    pub(crate) dataset: SharedDataset<D>,
    pub(crate) num_workers: usize,
    pub(crate) threads: usize,
    /// `true` if the worker keeps memory that it has freed.
    pub(crate) keep_freed_memory: bool,
    pub(crate) seed: u64,
    pub(crate) plan: P,
}

impl<D, P: Clone> Clone for WorkerInit<D, P> {
    fn clone(&self) -> Self {
        let WorkerInit { dataset, num_workers, threads, keep_freed_memory, seed, plan } = self;
        WorkerInit {
            dataset: dataset.clone(),
            num_workers: *num_workers,
            threads: *threads,
            keep_freed_memory: *keep_freed_memory,
            seed: *seed,
            plan: plan.clone(),
        }
    }
}

impl<D: Serialize + DeserializeOwned + 'static, P> WorkerInit<D, P> {
    /// Returns the worker's own copy of the dataset. Called in a worker, or in the trainer of a loader
    /// without workers.
    pub(crate) fn open(self) -> AnyResult<(D, WorkerInfo, P)> {
        let WorkerInit { dataset, num_workers, threads, seed, plan, .. } = self;
        // A trainer may itself be a worker of a pool.
        let worker = if num_workers == 0 { None } else { mp_pool::current_worker() };
        Ok((dataset.received()?, WorkerInfo { worker, num_workers, threads, seed }, plan))
    }
}

/// Reply with a batch.
pub(crate) struct WorkerReply<B, A> {
    /// `None` if shared memory was exhausted.
    pub(crate) batch: Option<B>,
    /// Text of the error if shared memory was exhausted.
    pub(crate) no_memory: Option<String>,
    pub(crate) worker: Option<usize>,
    pub(crate) pid: u32,
    pub(crate) nanos: u64,
    /// Duration of the worker's start in nanoseconds: decoding of the dataset, and `init`.
    pub(crate) began: u64,
    /// Samples of a stream's batch, and the position of the lane after them.
    pub(crate) progress: Option<A>,
}

impl<B, A> WorkerReply<B, A> {
    /// Creates the reply from the result of `fetch`, which was called at `start`.
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
