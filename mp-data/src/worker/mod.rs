//! The worker: it has the dataset, and makes the batch of each task.
//!
//! | moment | the worker is killed | its batch |
//! |---|---|---|
//! | before it takes the task | the task goes to another worker, unread | is made there |
//! | while it writes rows | their memory is freed | is made again by another worker, with the same items and random numbers |
//! | when the reply is not put | as before | as before |
//! | after that | nothing | is the trainer's |

#[cfg(feature = "log")]
pub(crate) mod dataset_size;
pub(crate) mod freed;
pub(crate) mod here;

use std::sync::Arc;
use std::time::Instant;

use mp_core::message::{Codec, Incoming, Level, Message, Outgoing, Returned};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::batch::Fill;
use crate::batch::rows::check;
use crate::dataset::context::{Context, UNWRITTEN};
use crate::dataset::info::WorkerInfo;
use crate::dataset::row_threads::RowThreads;
use crate::error::failure::is_out_of_memory;
use crate::{AnyResult, Batch, Dataset, Item};

/// A dataset on its way to workers: encoded once, decoded by each.
pub(crate) struct Sent<D>(pub(crate) Arc<D>);

impl<D> Clone for Sent<D> {
    fn clone(&self) -> Self {
        Sent(Arc::clone(&self.0))
    }
}

impl<D: Serialize> Serialize for Sent<D> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(s)
    }
}

impl<'de, D: Deserialize<'de>> Deserialize<'de> for Sent<D> {
    fn deserialize<De: Deserializer<'de>>(d: De) -> Result<Self, De::Error> {
        Ok(Sent(Arc::new(D::deserialize(d)?)))
    }
}

impl<D: Serialize + DeserializeOwned + 'static> Sent<D> {
    /// The dataset as one that was received, of which there is no other holder.
    pub(crate) fn received(self) -> AnyResult<D> {
        let envelope = match Arc::try_unwrap(self.0) {
            Ok(dataset) => return Ok(dataset),
            Err(shared) => mp_reduce::pack(Sent(shared)).map_err(|error| error.error)?,
        };
        let copy: Sent<D> = mp_reduce::unpack(envelope)?;
        Arc::try_unwrap(copy.0).map_err(|_| "a dataset that was just received has two holders".into())
    }
}

/// Orders with which a worker begins: a dataset, and its order.
#[derive(Serialize, Deserialize)]
#[serde(bound = "D: Serialize + DeserializeOwned, P: Serialize + DeserializeOwned")]
pub(crate) struct Orders<D, P> {
    pub(crate) dataset: Sent<D>,
    pub(crate) num_workers: usize,
    pub(crate) threads: usize,
    /// `true` if the worker keeps memory that it has freed.
    pub(crate) keeps_freed: bool,
    pub(crate) seed: u64,
    pub(crate) plan: P,
}

impl<D, P: Clone> Clone for Orders<D, P> {
    fn clone(&self) -> Self {
        let Orders { dataset, num_workers, threads, keeps_freed, seed, plan } = self;
        Orders {
            dataset: dataset.clone(),
            num_workers: *num_workers,
            threads: *threads,
            keeps_freed: *keeps_freed,
            seed: *seed,
            plan: plan.clone(),
        }
    }
}

impl<D: Serialize + DeserializeOwned + 'static, P> Orders<D, P> {
    /// In a worker, or in the trainer if there are none: its own copy of the dataset.
    pub(crate) fn open(self) -> AnyResult<(D, WorkerInfo, P)> {
        let Orders { dataset, num_workers, threads, seed, plan, .. } = self;
        // A trainer may itself be a worker of a pool.
        let worker = if num_workers == 0 { None } else { mp_pool::current_worker() };
        Ok((dataset.received()?, WorkerInfo { worker, num_workers, threads, seed }, plan))
    }
}

/// Maker of batches, in a worker or in the trainer.
pub(crate) trait Maker: Sized + 'static {
    type Batch: Batch;
    type Task;
    /// Place after a batch, which is sent with the batch.
    type After: Serialize + DeserializeOwned + Send + 'static;

    fn context(&self, task: &Self::Task) -> Context<Self::Batch>;
    fn make(
        &mut self,
        task: &Self::Task,
        cx: &mut Context<Self::Batch>,
    ) -> AnyResult<Made<Self::Batch, Self::After>>;
}

/// The function of the tasks.
pub(crate) fn make<W: Maker>(worker: &mut W, task: W::Task) -> AnyResult<Made<W::Batch, W::After>> {
    let mut cx = worker.context(&task);
    worker.make(&task, &mut cx)
}

/// A worker's own copy of a dataset with indices.
pub(crate) struct Worker<D> {
    dataset: D,
    info: WorkerInfo,
    row_threads: Arc<RowThreads>,
    /// Time that the worker took to begin.
    began: u64,
}

impl<D: Dataset> Worker<D> {
    pub(crate) fn begin(orders: Orders<D, ()>) -> AnyResult<Self> {
        let start = Instant::now();
        let (mut dataset, info, ()) = orders.open()?;
        dataset.init(&info)?;
        Ok(Worker { dataset, info, row_threads: Arc::default(), began: nanos_since(start) })
    }
}

pub(crate) fn nanos_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns `true` if the worker searches for unwritten rows. Returns `false` in `verify`, which compares.
pub(crate) fn looks(poison: Option<u8>) -> bool {
    cfg!(debug_assertions) && poison.is_none()
}

/// Returns the contents of rows before they are written.
pub(crate) fn fill(poison: Option<u8>) -> Fill {
    match poison {
        Some(byte) => Fill::With(byte),
        None if cfg!(debug_assertions) => Fill::With(UNWRITTEN),
        None => Fill::AsItIs,
    }
}

impl<D: Dataset> Maker for Worker<D> {
    type Batch = D::Batch;
    type Task = Task;
    type After = ();

    fn context(&self, task: &Task) -> Context<D::Batch> {
        let seed = self.info.seed;
        let threads = (task.threads as usize, Arc::clone(&self.row_threads));
        Context::new(self.info, (seed, task.epoch), task.items(), threads, fill(task.poison))
            .looking(looks(task.poison))
    }

    fn make(&mut self, _: &Task, cx: &mut Context<D::Batch>) -> AnyResult<Made<D::Batch, ()>> {
        let start = Instant::now();
        let items = cx.items();
        let fetched = self.dataset.fetch(&items, cx).and_then(|batch| check(batch, items.len()));
        let made = Made::of(fetched, &self.info, start)?;
        Ok(Made { began: self.began, ..made })
    }
}

/// A batch that is to be made.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Task {
    epoch: u64,
    threads: u32,
    poison: Option<u8>,
    /// Index and position of each item: numbers in a row travel as one byte string.
    items: Vec<u64>,
}

impl Task {
    pub(crate) fn new(epoch: u64, threads: usize, poison: Option<u8>, items: &[Item]) -> Task {
        let mut words = Vec::with_capacity(2 * items.len());
        items.iter().for_each(|item| words.extend([item.index as u64, item.position]));
        Task { epoch, threads: threads as u32, poison, items: words }
    }

    fn items(&self) -> Arc<[Item]> {
        let (items, _) = self.items.as_chunks::<2>();
        items.iter().map(|&[index, position]| Item { index: index as usize, position }).collect()
    }
}

/// A batch that was made.
pub(crate) struct Made<B, A> {
    /// `None` if there was no memory for it.
    pub(crate) batch: Option<B>,
    /// Text of that error.
    pub(crate) no_memory: Option<String>,
    pub(crate) worker: Option<usize>,
    pub(crate) pid: u32,
    pub(crate) nanos: u64,
    /// Time that its worker took to begin.
    pub(crate) began: u64,
    /// Samples of a stream's batch, and the place of the lane after them.
    pub(crate) after: Option<A>,
}

impl<B, A> Made<B, A> {
    /// Wraps the result of `fetch`, which was called at `start`.
    pub(crate) fn of(fetched: AnyResult<B>, info: &WorkerInfo, start: Instant) -> AnyResult<Self> {
        let (batch, no_memory) = match fetched {
            Ok(batch) => (Some(batch), None),
            Err(error) if is_out_of_memory(&*error) => (None, Some(error.to_string())),
            Err(error) => return Err(error),
        };
        Ok(Made { no_memory, ..Made::new(batch, info, start) })
    }

    pub(crate) fn new(batch: Option<B>, info: &WorkerInfo, start: Instant) -> Self {
        let (nanos, pid) = (nanos_since(start), std::process::id());
        Made { batch, no_memory: None, worker: info.worker, pid, nanos, began: 0, after: None }
    }
}

impl<B: Batch, A: Serialize + DeserializeOwned + Send + 'static> Message for Made<B, A> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        let _level = Level::enter()?;
        let Made { batch, no_memory, worker, pid, nanos, began, after } = &*self;
        C::write(out, &(batch.is_some(), no_memory, worker, pid, nanos, began, after))?;
        self.batch.iter_mut().try_for_each(|batch| batch.send::<C>(out))
    }

    fn take_back(&mut self, back: &mut Returned) {
        let Ok(_level) = Level::enter() else { return };
        self.batch.iter_mut().for_each(|batch| batch.get_back(back));
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let _level = Level::enter()?;
        let (is_there, no_memory, worker, pid, nanos, began, after) = C::read(inc)?;
        let batch = if is_there { Some(B::receive::<C>(inc)?) } else { None };
        Ok(Made { batch, no_memory, worker, pid, nanos, began, after })
    }
}
