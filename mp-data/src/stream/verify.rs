//! Check that a dataset of shards makes the same batch each time, also if its shards are opened at a token.

use std::collections::VecDeque;

use mp_core::user_code::catch_panic;

use super::dataset::IterableDataset;
use super::lane::LaneProgress;
use super::loader::StreamLoader;
use super::source::{StreamContents, StreamCursor, StreamPosition, StreamSource};
use super::worker::{StreamTask, StreamWorker};
use crate::error::failure::BatchFailure;
use crate::error::text::FORKED;
use crate::indexed::verify::{POISON, difference, load_error, name_of};
use crate::loader::shared::{LoaderShared, Workers};
use crate::loader::source::{BatchSource, PlanStep};
use crate::worker::in_process::make_in_process;
use crate::worker::reply::WorkerReply;
use crate::{Difference, LoadError, VerifyReport};

impl<D: IterableDataset> StreamLoader<D> {
    /// Makes the first `batches` batches of epoch 0 twice, in memory with different initial contents, and
    /// compares them. One is made in this process by readers that continue, the other in a worker by readers
    /// that are opened at the start of the batch. Reports tokens of wrong positions, rows that are not
    /// written, and samples that depend on more than their position and random numbers. Batches that can't be
    /// encoded alone ([`Objects`](crate::Objects) with tensors) are not compared.
    ///
    /// ```
    /// # use mp_data::{AnyResult, Context, StreamLoader, IterableDataset, ShardPosition, Samples};
    /// # use mp_tensor::Tensor;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Hundreds;
    /// # type Hundred = std::iter::Map<std::ops::Range<u64>, fn(u64) -> AnyResult<u64>>;
    /// # impl IterableDataset for Hundreds {
    /// #     type Batch = Tensor<u64>;
    /// #     type Reader = Hundred;
    /// #     fn shards(&self) -> usize { 3 }
    /// #     fn open(&mut self, shard: usize, _: ShardPosition) -> AnyResult<Hundred> {
    /// #         Ok((100 * shard as u64..100 * (shard as u64 + 1)).map(Ok as fn(u64) -> AnyResult<u64>))
    /// #     }
    /// #     fn fetch(
    /// #         &mut self,
    /// #         samples: Samples<u64>,
    /// #         cx: &mut Context<Tensor<u64>>,
    /// #     ) -> AnyResult<Tensor<u64>> {
    /// #         cx.rows_from(samples, &[], |number, _, row| { row[0] = number; Ok(()) })
    /// #     }
    /// # }
    /// let loader = StreamLoader::builder(Hundreds).batch_size(8).num_workers(1).build()?;
    /// let verified = loader.verify(20)?;
    /// assert!(verified.is_same(), "{verified}");
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// A batch can't be made.
    pub fn verify(&self, batches: u64) -> Result<VerifyReport, Box<LoadError>> {
        let inner = &*self.inner;
        if inner.is_forked() {
            return Err(load_error(0, FORKED.into()));
        }
        let plan = &inner.plan;
        let mut cursor = StreamCursor::new(StreamPosition::start(plan.lanes, 0));
        let mut found = VerifyReport { batches: 0, by_one_worker: 0, differences: Vec::new() };
        let mut mine = None;
        let most = plan.steps.map_or(batches, |steps| steps.min(batches));
        while (found.batches as u64) < most
            && let PlanStep::Batch { number, mut contents, .. } =
                StreamSource::<D>::plan(plan, &mut cursor, &VecDeque::new(), 0)
        {
            let error = |failure: BatchFailure| {
                let exact = !(failure.lost && inner.settings.threads > 1);
                let at = failure.note.filter(|_| exact);
                let at =
                    at.and_then(|note| StreamSource::<D>::locate_failure(&StreamContents::default(), note));
                let description = at.and_then(|at| StreamSource::<D>::describe(&inner.dataset, &at));
                let (item, shard) = (at.map(|at| at.item), at.and_then(|at| at.shard));
                let (worker, attempts) = (failure.worker, failure.attempts);
                Box::new(LoadError {
                    item,
                    shard,
                    description,
                    worker,
                    attempts,
                    ..*load_error(number, failure.source)
                })
            };
            let task = cursor.task(&contents, inner.settings.threads);
            let first = StreamTask { poison: Some(POISON[0]), ..task.clone() };
            let second = StreamTask { poison: Some(POISON[1]), opens: true, ..task };
            let mut first = make_continuing(&mut mine, inner, &first).map_err(error)?;
            let second = make_opening(inner, second).map_err(error)?;
            if let Some(why) = first.no_memory.as_ref().or(second.no_memory.as_ref()) {
                return Err(error(BatchFailure::new(why.clone())));
            }
            let of = |made: &WorkerReply<D::Batch, LaneProgress>| {
                made.progress.as_ref().map(|progress| progress.items())
            };
            let ((items, shards), (others, _)) =
                (of(&first).unwrap_or_default(), of(&second).unwrap_or_default());
            // Compares the samples first, then the bytes.
            let most = items.len().max(others.len());
            let differs = (0..most).find(|row| items.get(*row) != others.get(*row));
            let differs = differs.map(|row| (row, 0, false));
            let differs =
                differs.or_else(|| difference(&items, first.batch.as_ref()?, second.batch.as_ref()?));
            found.differences.extend(differs.and_then(|(row, column, not_written)| {
                let item = *items.get(row).or(others.get(row))?;
                let shard = shards.get(row).copied();
                let description =
                    shard.and_then(|shard| catch_panic(|| inner.dataset.describe(shard)).flatten());
                let column_name =
                    first.batch.as_ref().map(|batch| name_of(batch, column)).unwrap_or_default();
                Some(Difference { batch: number, item, shard, description, column, column_name, not_written })
            }));
            found.batches += usize::from(first.batch.is_some());
            let here = matches!(inner.workers, Workers::InProcess(_));
            found.by_one_worker += usize::from(here && first.batch.is_some());
            StreamSource::<D>::record_arrival(&mut cursor, &mut contents, &mut first);
        }
        Ok(found)
    }
}

fn make_continuing<D: IterableDataset>(
    worker: &mut Option<StreamWorker<D>>,
    inner: &LoaderShared<StreamSource<D>>,
    task: &StreamTask,
) -> Result<WorkerReply<D::Batch, LaneProgress>, BatchFailure> {
    make_in_process(worker, || inner.worker_init(), task)
}

fn make_opening<D: IterableDataset>(
    inner: &LoaderShared<StreamSource<D>>,
    task: StreamTask,
) -> Result<WorkerReply<D::Batch, LaneProgress>, BatchFailure> {
    match &inner.workers {
        Workers::Pool { call, .. } => call.apply_async(task).get().map_err(BatchFailure::from),
        Workers::InProcess(_) => make_continuing(&mut None, inner, &task),
    }
}
