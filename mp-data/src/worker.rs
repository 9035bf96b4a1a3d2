//! What a worker does: it has the dataset, and makes the batch of each task.
//!
//! | moment | the worker is killed | its batch |
//! |---|---|---|
//! | before it takes the task | the task goes to another worker, unread | is made there |
//! | while it writes rows | their memory is freed | is made again by another worker, with the same items and random numbers |
//! | when the reply is not put | as before | as before |
//! | after that | nothing | is the trainer's |

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use mp_core::message::{Codec, Incoming, Level, Message, Outgoing, Returned};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::batch::Fill;
use crate::context::Context;
use crate::info::WorkerInfo;
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

impl<D: Dataset> Sent<D> {
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

/// What a worker begins with.
#[derive(Serialize, Deserialize)]
#[serde(bound = "D: Dataset")]
pub(crate) struct Orders<D> {
    pub(crate) dataset: Sent<D>,
    pub(crate) num_workers: usize,
    pub(crate) threads: usize,
    pub(crate) seed: u64,
}

impl<D> Clone for Orders<D> {
    fn clone(&self) -> Self {
        let Orders { dataset, num_workers, threads, seed } = self;
        Orders { dataset: dataset.clone(), num_workers: *num_workers, threads: *threads, seed: *seed }
    }
}

/// A worker's own copy of the dataset.
pub(crate) struct Worker<D> {
    dataset: D,
    info: WorkerInfo,
}

impl<D: Dataset> Worker<D> {
    /// In a worker, or in the trainer if there are none.
    pub(crate) fn begin(orders: Orders<D>) -> AnyResult<Self> {
        let Orders { dataset, num_workers, threads, seed } = orders;
        // A trainer may itself be a worker of a pool.
        let worker = if num_workers == 0 { None } else { mp_pool::current_worker() };
        let info = WorkerInfo { worker, num_workers, threads, seed };
        let mut dataset = dataset.received()?;
        dataset.init(&info)?;
        Ok(Worker { dataset, info })
    }

    pub(crate) fn context(&self, task: &Task) -> Context<D::Batch> {
        let fill = match task.poison {
            Some(byte) => Fill::With(byte),
            None if cfg!(debug_assertions) => Fill::With(0xa5),
            None => Fill::AsItIs,
        };
        let mut seed = self.info.seed;
        if mp_core::mutant!("loader.rng.by-worker") {
            seed ^= self.info.worker.map_or(0, |worker| worker as u64 + 1);
        }
        Context::new(self.info, (seed, task.epoch), task.items(), task.threads as usize, fill)
    }

    /// Makes a batch.
    pub(crate) fn make(&mut self, task: &Task, cx: &mut Context<D::Batch>) -> AnyResult<Made<D::Batch>> {
        let start = Instant::now();
        let (batch, no_memory) = match self.dataset.fetch(&task.items(), cx) {
            Ok(batch) => (Some(batch), None),
            Err(error) if is_out_of_memory(&*error) => (None, Some(error.to_string())),
            Err(error) => return Err(error),
        };
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Made { batch, no_memory, worker: self.info.worker, pid: std::process::id(), nanos })
    }
}

fn is_out_of_memory(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(mp_core::Error::OutOfMemory { .. } | mp_core::Error::ArenaFull { .. }) =
            error.downcast_ref()
        {
            return true;
        }
        next = error.source();
    }
    false
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
        let items = items.iter().flat_map(|item| [item.index as u64, item.position]).collect();
        Task { epoch, threads: threads as u32, poison, items }
    }

    fn items(&self) -> Vec<Item> {
        let (items, _) = self.items.as_chunks::<2>();
        items.iter().map(|&[index, position]| Item { index: index as usize, position }).collect()
    }
}

/// The function of the tasks.
pub(crate) fn make<D: Dataset>(worker: &mut Worker<D>, task: Task) -> AnyResult<Made<D::Batch>> {
    let mut cx = worker.context(&task);
    worker.make(&task, &mut cx)
}

/// A batch that was made.
pub(crate) struct Made<B> {
    /// `None` if there was no memory for it.
    pub(crate) batch: Option<B>,
    /// What was said of that.
    pub(crate) no_memory: Option<String>,
    pub(crate) worker: Option<usize>,
    pub(crate) pid: u32,
    pub(crate) nanos: u64,
}

impl<B: Batch> Message for Made<B> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> mp_core::Result<()> {
        let _level = Level::enter()?;
        C::write(out, &(self.batch.is_some(), &self.no_memory, self.worker, self.pid, self.nanos))?;
        self.batch.iter_mut().try_for_each(|batch| batch.send::<C>(out))
    }

    fn take_back(&mut self, back: &mut Returned) {
        let Ok(_level) = Level::enter() else { return };
        self.batch.iter_mut().for_each(|batch| batch.get_back(back));
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> mp_core::Result<Self> {
        let _level = Level::enter()?;
        let (is_there, no_memory, worker, pid, nanos) = C::read(inc)?;
        let batch = if is_there { Some(B::receive::<C>(inc)?) } else { None };
        Ok(Made { batch, no_memory, worker, pid, nanos })
    }
}
