//! Loader of a dataset with indices: a plan, a dataset, and the workers that make its batches.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use mp_core::user_code::catch_panic;

use crate::indexed::batches::Batches;
use crate::indexed::source::{IndexedCursor, IndexedSource};
use crate::indexed::state::{FORMAT, LoaderState};
use crate::loader::methods::loader_methods;
use crate::loader::shared::LoaderShared;
use crate::plan::{Plan, PlanError, same};
use crate::settings::{LoaderSettings, PlanSettings};
use crate::{BuildError, Dataset};

/// Makes batches of a dataset in worker processes, in shared memory, in an order that is a function of a seed
/// and an epoch.
///
/// [`Dataset`] has an example.
///
/// The workers belong to the loader and serve all of its epochs. They exit when the loader and its
/// [`Batches`] are dropped, or when this process exits or is killed.
///
/// | event | effect |
/// |---|---|
/// | `fetch` returns an error or panics | the batch's [`LoadError`](crate::LoadError) names the sample. The epoch continues ([`on_error`](crate::DataLoaderBuilder::on_error)) |
/// | a worker is killed, crashes, or exceeds the time-out | it is replaced, and another worker makes its batch again, up to [`retries`](crate::DataLoaderBuilder::retries) times. Then as above |
/// | a worker is stopped (SIGSTOP, a debugger) | its batch waits until the worker continues, or for the [time-out](crate::DataLoaderBuilder::timeout). Other workers continue. After 10 s a report on stderr names the batch, the sample and the process |
/// | a row kills its worker each time | [`on_error`](crate::DataLoaderBuilder::on_error): an error, or the batch without that row. With several threads, one thread first makes the batch again to find the sample |
/// | shared memory is exhausted | the batch is made again after another batch was made or taken. Batches that were made early are freed for it. When no other batch is left, it is made once more, and then fails |
/// | all workers fail to start: `init` fails five times | the iterator returns the error and ends. The state does not count that batch as delivered |
/// | SIGINT (Ctrl-C), SIGTERM | workers ignore them from their first instruction on. The handler of this process decides |
/// | this process is killed | the workers exit, and the kernel frees the memory after the last one |
/// | the epoch is dropped before its end | batches that no worker has begun are cancelled. Nothing waits for the others |
#[doc(alias = "StatefulDataLoader")]
#[doc(alias = "persistent_workers")]
pub struct DataLoader<D: Dataset> {
    pub(crate) inner: Arc<LoaderShared<IndexedSource<D>>>,
    plan: PlanSettings,
}

impl<D: Dataset> fmt::Debug for DataLoader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoaderShared { plan, settings, .. } = &*self.inner;
        write!(f, "DataLoader({} samples, {} workers)", plan.len(), settings.num_workers)
    }
}

impl<D: Dataset> DataLoader<D> {
    pub(crate) fn start(
        dataset: Arc<D>,
        plan: PlanSettings,
        settings: LoaderSettings,
    ) -> Result<Self, BuildError> {
        let order = plan.plan(&*dataset)?;
        Ok(DataLoader { inner: LoaderShared::start(dataset, order, settings)?, plan })
    }

    /// Returns an iterator over the batches of an epoch. Workers begin with them immediately. Results of an
    /// iterator that was dropped before its end are not waited for.
    pub fn epoch(&self, epoch: u64) -> Batches<D> {
        self.from(self.start_of(epoch), Some(epoch))
    }

    /// Returns an iterator over the batches of several epochs, in order. Workers begin with the next epoch
    /// while the last batches of an epoch are delivered. [`BatchInfo::epoch`](crate::BatchInfo::epoch) has
    /// the epoch of a batch.
    ///
    /// If all batches of an epoch are [skipped](crate::OnError) and another epoch follows, the iterator ends
    /// with an error, which contains the error of the last batch.
    pub fn epochs(&self, epochs: Range<u64>) -> Batches<D> {
        let last = epochs.end.checked_sub(1).filter(|last| *last >= epochs.start);
        self.from(self.start_of(epochs.start), last)
    }

    fn start_of(&self, epoch: u64) -> IndexedCursor {
        IndexedCursor::new(&self.inner.plan, (epoch, 0), &[])
    }

    fn from(&self, cursor: IndexedCursor, last: Option<u64>) -> Batches<D> {
        Batches::new(Arc::clone(&self.inner), cursor, last)
    }

    /// Returns an iterator over the batches of an epoch that were not delivered before the state was saved.
    /// The number of workers may differ, and so may the number of ranks if it divides the same global batch.
    ///
    /// ```
    /// # use mp_data::{AnyResult, Context, Dataset, Item};
    /// # use mp_tensor::Tensor;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Numbers(usize);
    /// # impl Dataset for Numbers {
    /// #     type Batch = Tensor<i64>;
    /// #     fn len(&self) -> usize { self.0 }
    /// #     fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
    /// #         cx.rows(items, &[], |item, _, row| { row[0] = item.index as i64; Ok(()) })
    /// #     }
    /// # }
    /// use mp_data::{DataLoader, LoaderState};
    ///
    /// let loader = DataLoader::builder(Numbers(10)).batch_size(2).num_workers(2).build()?;
    /// let mut batches = loader.epoch(3);
    /// assert_eq!(batches.next().unwrap()?.to_vec(), [0, 1]);
    /// let saved = serde_json::to_string(&batches.state())?; // beside the weights
    ///
    /// let loader = DataLoader::builder(Numbers(10)).batch_size(2).num_workers(1).build()?; // another day
    /// let state: LoaderState = serde_json::from_str(&saved)?;
    /// let mut batches = loader.resume(&state)?;
    /// assert_eq!((state.epoch(), batches.next().unwrap()?.to_vec()), (3, vec![2, 3]));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// # Errors
    /// The plan of the state differs from that of the loader: the error names the setting. Or the checksum of
    /// the state is wrong. Or the state is of another rank and has batches that were delivered out of order,
    /// which only the same rank can resume.
    #[doc(alias = "load_state_dict")]
    pub fn resume(&self, state: &LoaderState) -> Result<Batches<D>, PlanError> {
        self.continue_from(state, Some(state.epoch()))
    }

    /// Resumes as [`resume`](Self::resume) does, and adds the epochs after that one up to `end` (exclusive).
    /// The iterator is empty if the state is in epoch `end` or later.
    ///
    /// # Errors
    /// The errors of [`resume`](Self::resume).
    pub fn resume_until(&self, state: &LoaderState, end: u64) -> Result<Batches<D>, PlanError> {
        self.continue_from(state, end.checked_sub(1).filter(|last| *last >= state.epoch()))
    }

    fn continue_from(&self, state: &LoaderState, last: Option<u64>) -> Result<Batches<D>, PlanError> {
        same("format", &state.format, &FORMAT)?;
        let LoaderShared { plan, settings, .. } = &*self.inner;
        if settings.allow_changed_dataset {
            // The numbers in `out_of_order` belong to samples of the old order.
            state.check_whole()?;
            return Ok(
                self.from(IndexedCursor::new(plan, plan.next_batch_in_changed(&state.plan)?, &[]), last)
            );
        }
        let (order, next) = plan.resume(&state.plan)?;
        if !state.out_of_order.is_empty() {
            let (world, rank) = (state.plan.world(), state.rank);
            same(
                "world (only the rank that was given batches out of order knows which they were)",
                &world,
                &plan.world(),
            )?;
            same(
                "rank (only the rank that was given batches out of order knows which they were)",
                &rank,
                &plan.rank(),
            )?;
        }
        state.check_whole()?;
        Ok(self.from(IndexedCursor::of(order, next, &state.out_of_order), last))
    }

    /// Returns the number of batches of an epoch for this rank, or `None` if it is unknown until they are
    /// made ([`Batching::MaxTokens`](crate::plan::Batching), batch samplers without a length). It is the same
    /// for all epochs, except with samplers of your own.
    ///
    /// ```
    /// # use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, Tensor};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Numbers(usize);
    /// # impl Dataset for Numbers {
    /// #     type Batch = Tensor<i64>;
    /// #     fn len(&self) -> usize { self.0 }
    /// #     fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
    /// #         cx.rows(items, &[], |item, _, row| { row[0] = item.index as i64; Ok(()) })
    /// #     }
    /// # }
    /// let loader = DataLoader::builder(Numbers(10)).batch_size(4).build()?;
    /// assert_eq!(loader.batches_in_epoch(0), Some(3));
    /// assert_eq!(loader.epochs(0..5).size_hint(), (15, Some(15)));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    #[doc(alias = "__len__")]
    pub fn batches_in_epoch(&self, epoch: u64) -> Option<u64> {
        catch_panic(|| self.inner.plan.epoch(epoch).batches()).flatten()
    }

    /// Returns the plan, which assigns samples to batches.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.inner.plan
    }

    /// Replaces the dataset, with the same settings and new workers. Existing [`Batches`] keep the old
    /// dataset and its workers.
    ///
    /// # Errors
    /// The errors of [`build`](crate::DataLoaderBuilder::build). The loader is unchanged then.
    pub fn set_dataset(&mut self, dataset: D) -> Result<(), BuildError> {
        *self = Self::start(Arc::new(dataset), self.plan.clone(), self.inner.settings.clone())?;
        Ok(())
    }

    loader_methods!();
}
