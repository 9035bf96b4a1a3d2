//! Check that a dataset makes the same batch each time.

use std::fmt;

use mp_core::user_code::catch_panic;

use mp_spawn::CallFailure;

use crate::dataset::context::{FIRST_FILL, SECOND_FILL};
use crate::error::failure::{BatchFailure, DynError, panic_error};
use crate::error::text::FORKED;
use crate::indexed::source::IndexedSource;
use crate::indexed::worker::{IndexedTask, IndexedWorker};
use crate::loader::shared::{LoaderShared, Workers};
use crate::worker::in_process::make_in_process;
use crate::worker::reply::WorkerReply;
use crate::{Batch, DataLoader, Dataset, Item, LoadError};

/// Contents of unwritten rows in the first and in the second attempt.
pub(crate) const POISON: [u8; 2] = [FIRST_FILL, SECOND_FILL];

/// Result of [`DataLoader::verify`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct VerifyReport {
    /// Number of batches that were made twice.
    pub batches: usize,
    /// Number of these batches that were made twice by the same process, because the loader has no workers.
    /// Differences between processes are not found for them.
    pub by_one_worker: usize,
    /// First difference of each batch that differs.
    pub differences: Vec<Difference>,
}

/// Sample that differs between two attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Number of the batch in epoch 0.
    pub batch: u64,
    /// Sample that differs.
    pub item: Item,
    /// Shard of the sample, in a stream. The item's index is its number in that shard.
    pub shard: Option<usize>,
    /// Description of the sample or its shard by the dataset.
    pub description: Option<String>,
    /// Number of the column, from 0.
    pub column: usize,
    /// Name of the column for messages: by its field, ``column `pixels` ``, or by its number, `column 2`.
    pub column_name: String,
    /// `true` if the row or a part of it was not written; `false` if two different values were written.
    pub not_written: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch {}, sample {}", self.batch, self.item.index)?;
        if let Some(shard) = self.shard {
            write!(f, " of shard {shard}")?;
        }
        if let Some(description) = &self.description {
            write!(f, " ({description})")?;
        }
        let how = if self.not_written { "is not written, or not all of it" } else { "is not the same twice" };
        write!(f, ": {} {how}", self.column_name)
    }
}

impl VerifyReport {
    /// Returns `true` if all batches were equal.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.differences.is_empty()
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} batches made twice, {} of them differ", self.batches, self.differences.len())?;
        if self.by_one_worker > 0 {
            write!(f, "; {} were made by one process alone, since there are no workers", self.by_one_worker)?;
        }
        self.differences.iter().try_for_each(|difference| write!(f, "\n  {difference}"))
    }
}

impl<D: Dataset> DataLoader<D> {
    /// Makes the first `batches` batches of epoch 0 twice, in memory with different previous contents, and
    /// compares them. Finds samples that depend on more than their index and their random numbers, and rows
    /// that are not written. Values that can't be encoded alone ([`Objects`](crate::Objects) with tensors)
    /// are not compared.
    ///
    /// ```
    /// # use mp_data::{AnyResult, Context, DataLoader, Dataset, Item};
    /// # use mp_tensor::Tensor;
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Stamped;
    ///
    /// impl Dataset for Stamped {
    ///     type Batch = Tensor<u64>;
    /// #   fn len(&self) -> usize { 8 }
    ///
    ///     fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
    ///         cx.rows(items, &[2], |item, _, row| {
    ///             row.copy_from_slice(&[item.index as u64, u64::from(std::process::id())]);
    ///             Ok(())
    ///         })
    ///     }
    /// }
    ///
    /// let loader = DataLoader::builder(Stamped).batch_size(4).num_workers(1).build()?;
    /// let verified = loader.verify(2)?;
    /// let difference = "batch 0, sample 0: column 0 is not the same twice";
    /// assert!(verified.to_string().contains(difference), "{verified}");
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// Two workers make the two batches if two are free. If one worker makes both, this process makes the
    /// batch a third time: it decodes the dataset and calls its `init`.
    ///
    /// # Errors
    /// A batch can't be made.
    pub fn verify(&self, batches: u64) -> Result<VerifyReport, Box<LoadError>> {
        let inner = &*self.inner;
        if inner.is_forked() {
            return Err(load_error(0, FORKED.into()));
        }
        let order = inner.plan.epoch(0);
        let mut found = VerifyReport { batches: 0, by_one_worker: 0, differences: Vec::new() };
        let mut mine = None::<IndexedWorker<D>>;
        for number in 0..batches {
            let failed = |failure: BatchFailure, items: &[Item]| {
                let exact = !(failure.lost && inner.settings.threads > 1);
                let nth = failure.note.filter(|_| exact).and_then(|note| (note as usize).checked_sub(1));
                let item = nth.and_then(|nth| items.get(nth)).copied();
                let description =
                    item.and_then(|item| catch_panic(|| inner.dataset.describe(item.index)).flatten());
                let (worker, attempts) = (failure.worker, failure.attempts);
                Box::new(LoadError {
                    item,
                    description,
                    worker,
                    attempts,
                    ..*load_error(number, failure.source)
                })
            };
            let planned = CallFailure::catch(|| order.batch(number)).map_err(|panic| panic_error(*panic));
            let planned = planned.and_then(|planned| planned.map_err(|why| Box::new(why) as DynError));
            let planned = planned.map_err(|why| failed(BatchFailure::new(why), &[]))?;
            let Some(planned) = planned else { break };
            let [first, second] = twice(inner, &planned.items).map_err(|why| failed(*why, &planned.items))?;
            found.batches += 1;
            let has_workers = matches!(inner.workers, Workers::Pool { .. });
            let by_one = first.worker == second.worker;
            found.by_one_worker += usize::from(by_one && !has_workers);
            let third = if by_one && has_workers {
                let task = IndexedTask::new(0, inner.settings.threads, Some(POISON[1]), &planned.items);
                let made = make_in_process(&mut mine, || inner.worker_init(), &task);
                Some(made.map_err(|why| failed(why, &planned.items))?)
            } else {
                None
            };
            let no_memory = [Some(&first), Some(&second), third.as_ref()].into_iter().flatten();
            if let Some(why) = no_memory.filter_map(|made| made.no_memory.clone()).next() {
                return Err(failed(BatchFailure::new(why), &planned.items));
            }
            let Some(first) = &first.batch else { continue };
            let others = [Some(&second), third.as_ref()].into_iter().flatten();
            let mut others = others.filter_map(|made| made.batch.as_ref());
            let differs = others.find_map(|other| difference(&planned.items, first, other));
            found.differences.extend(differs.map(|(row, column, not_written)| {
                let item = planned.items[row];
                let description = catch_panic(|| inner.dataset.describe(item.index)).flatten();
                let column_name = name_of(first, column);
                Difference { batch: number, item, shard: None, description, column, column_name, not_written }
            }));
        }
        Ok(found)
    }
}

pub(crate) fn load_error(batch: u64, source: DynError) -> Box<LoadError> {
    let (item, shard, description, worker) = (None, None, None, None);
    Box::new(LoadError { epoch: 0, batch, item, shard, description, worker, attempts: 1, source })
}

fn twice<D: Dataset>(
    inner: &LoaderShared<IndexedSource<D>>,
    items: &[Item],
) -> Result<[WorkerReply<D::Batch, ()>; 2], Box<BatchFailure>> {
    let threads = inner.settings.threads;
    let [first, second] = POISON.map(|poison| IndexedTask::new(0, threads, Some(poison), items));
    match &inner.workers {
        Workers::Pool { call, .. } => {
            // Both tasks are sent at once, so that two workers make the batches if two are free.
            let made = [call.apply_async(first), call.apply_async(second)].map(|result| result.get());
            let [first, second] = made.map(|made| made.map_err(|error| Box::new(BatchFailure::from(error))));
            Ok([first?, second?])
        }
        Workers::InProcess(_) => {
            let mut worker = None::<IndexedWorker<D>>;
            let init = || inner.worker_init();
            let mut make = |task| make_in_process(&mut worker, init, task).map_err(Box::new);
            Ok([make(&first)?, make(&second)?])
        }
    }
}

/// Returns the name of a column.
pub(crate) fn name_of<B: Batch>(batch: &B, column: usize) -> String {
    let columns = batch.columns();
    let named = columns.get(column).filter(|column| column.has_name());
    named.map_or_else(|| format!("column {column}"), |column| column.named())
}

/// Returns row and column of the first difference, and `true` if the row is not written there.
pub(crate) fn difference<B: Batch>(items: &[Item], first: &B, second: &B) -> Option<(usize, usize, bool)> {
    for row in 0..items.len() {
        let (one, other) = (first.row_bytes(row, items.len()), second.row_bytes(row, items.len()));
        let Some(column) = one.iter().zip(&other).position(|(one, other)| one != other) else { continue };
        let (one, other) = (&one[column], &other[column]);
        let mut differing = one.iter().zip(other).filter(|(one, other)| one != other);
        let same_length = one.len() == other.len();
        let not_written = same_length && differing.all(|(one, other)| [*one, *other] == POISON);
        return Some((row, column, not_written));
    }
    None
}
