//! Worker of a dataset with indices.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::batch::traits::check;
use crate::dataset::context::Context;
use crate::dataset::info::WorkerInfo;
use crate::dataset::row_threads::RowThreads;
use crate::worker::batch_maker::{BatchMaker, WorkerInit, WorkerReply, nanos_since};
use crate::{AnyResult, Dataset, Item};

/// Worker of a dataset with indices, with its own copy of the dataset.
pub(crate) struct IndexedWorker<D> {
    dataset: D,
    info: WorkerInfo,
    row_threads: Arc<RowThreads>,
    /// Duration of the worker's start in nanoseconds: decoding of the dataset, and `init`.
    began: u64,
}

impl<D: Dataset> BatchMaker for IndexedWorker<D> {
    type Dataset = D;
    type Plan = ();
    type Batch = D::Batch;
    type Task = IndexedTask;
    type Progress = ();

    fn begin(init: WorkerInit<D, ()>) -> AnyResult<Self> {
        let start = Instant::now();
        let (mut dataset, info, ()) = init.open()?;
        dataset.init(&info)?;
        Ok(IndexedWorker { dataset, info, row_threads: Arc::default(), began: nanos_since(start) })
    }

    fn context(&self, task: &IndexedTask) -> Context<D::Batch> {
        let seed = self.info.seed;
        let threads = (task.threads as usize, Arc::clone(&self.row_threads));
        Context::new(self.info, (seed, task.epoch), task.items(), threads, task.poison)
    }

    fn make(&mut self, _: &IndexedTask, cx: &mut Context<D::Batch>) -> AnyResult<WorkerReply<D::Batch, ()>> {
        let start = Instant::now();
        let items = cx.items();
        let fetched = self.dataset.fetch(&items, cx).and_then(|batch| check(batch, items.len()));
        let made = WorkerReply::of(fetched, &self.info, start)?;
        Ok(WorkerReply { began: self.began, ..made })
    }
}

/// Task to make a batch.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct IndexedTask {
    epoch: u64,
    threads: u32,
    poison: Option<u8>,
    /// Index and position of each item. The numbers are encoded as one byte string.
    items: Vec<u64>,
}

impl IndexedTask {
    pub(crate) fn new(epoch: u64, threads: usize, poison: Option<u8>, items: &[Item]) -> IndexedTask {
        let mut words = Vec::with_capacity(2 * items.len());
        items.iter().for_each(|item| words.extend([item.index as u64, item.position]));
        IndexedTask { epoch, threads: threads as u32, poison, items: words }
    }

    fn items(&self) -> Arc<[Item]> {
        let (items, _) = self.items.as_chunks::<2>();
        items.iter().map(|&[index, position]| Item { index: index as usize, position }).collect()
    }
}
