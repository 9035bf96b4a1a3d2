//! The loader: a plan, a dataset, and the workers that make its batches.

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
/// Example: at [`Dataset`].
///
/// The workers are the loader's, and live from epoch to epoch; they end when it and its [`Batches`] are
/// dropped, or this process ends, however.
///
/// | what happens | then |
/// |---|---|
/// | `fetch` returns an error or panics | the batch's [`LoadError`](crate::LoadError) names the sample; the epoch goes on ([`on_error`](crate::DataLoaderBuilder::on_error)) |
/// | a worker is killed, crashes, takes too long | it is replaced, and its batch is made again by another, [a few times](crate::DataLoaderBuilder::retries); then as above |
/// | a worker is stopped (SIGSTOP, a debugger) | its batch waits for it, or for the [time-out](crate::DataLoaderBuilder::timeout); others go on; after 10 s the standard error says which batch, sample and process is waited for |
/// | a row kills its worker each time | [`on_error`](crate::DataLoaderBuilder::on_error): an error, or the batch without it. With several threads it is made again by one first, so that the sample is known |
/// | there is no shared memory for a batch | it is tried again when another was made or taken; batches that were made ahead are given up for it; alone it is tried once more, then it is an error |
/// | no worker can begin: `init` fails five times | the error of a batch says so, and the iteration ends; the state does not count that batch as given |
/// | SIGINT (Ctrl-C), SIGTERM | workers ignore them, from their first instruction on; their effect on this process decides |
/// | this process is killed | the workers end by themselves, and the memory is given back with the last of them |
/// | the epoch is dropped before its end | what has not begun is cancelled, and what runs is not waited for |
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

    /// The batches of an epoch. Workers begin with them now, and the results of one that was dropped before
    /// its end are not waited for.
    pub fn epoch(&self, epoch: u64) -> Batches<D> {
        self.from(self.start_of(epoch), Some(epoch))
    }

    /// The batches of several epochs, one after the other: workers begin with the next epoch while the
    /// trainer has the last batches of the one before. [`BatchInfo::epoch`](crate::BatchInfo::epoch) says
    /// where one ends.
    ///
    /// An epoch before the last one whose batches were all [left out](crate::OnError) ends the iterator with
    /// an error, which has the error of the last batch.
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

    /// The batches of an epoch that come after those that a trainer was given when it took this state; also
    /// with another number of workers, and with another number of ranks that divides the same global batch.
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
    /// The state is of another plan: the error names what differs. Or it was changed since it was made: it
    /// has a checksum. Or it is of another rank, and batches were given out of order: only the rank that was
    /// given them knows which.
    #[doc(alias = "load_state_dict")]
    pub fn resume(&self, state: &LoaderState) -> Result<Batches<D>, PlanError> {
        self.continue_from(state, Some(state.epoch()))
    }

    /// Resumes as [`resume`](Self::resume) does, and adds the epochs after that one, up to `end`, as of
    /// [`epochs`](Self::epochs): so `end` is not among them, and there is no batch if the state is in epoch
    /// `end`, or later.
    ///
    /// # Errors
    /// As of [`resume`](Self::resume).
    pub fn resume_until(&self, state: &LoaderState, end: u64) -> Result<Batches<D>, PlanError> {
        self.continue_from(state, end.checked_sub(1).filter(|last| *last >= state.epoch()))
    }

    fn continue_from(&self, state: &LoaderState, last: Option<u64>) -> Result<Batches<D>, PlanError> {
        same("format", &state.format, &FORMAT)?;
        let LoaderShared { plan, settings, .. } = &*self.inner;
        if settings.allow_changed_dataset {
            // The numbers behind the next one are of other samples.
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

    /// Returns the number of batches of an epoch, of this rank; `None` if it is unknown until they are made
    /// ([`Batching::MaxTokens`](crate::plan::Batching), batch samplers that don't say). But for those of
    /// samplers of your own, each epoch has as many.
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

    /// Another dataset from now on, with the same settings and new workers. [`Batches`] that are there keep
    /// the old ones.
    ///
    /// # Errors
    /// Those of [`build`](crate::DataLoaderBuilder::build); then nothing has changed.
    pub fn set_dataset(&mut self, dataset: D) -> Result<(), BuildError> {
        *self = Self::start(Arc::new(dataset), self.plan.clone(), self.inner.settings.clone())?;
        Ok(())
    }

    loader_methods!();
}
