//! The loader of a stream, and its batches.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::dataset::IterableDataset;
use super::plan::StreamPlan;
use super::source::{StreamCursor, StreamPosition, StreamSource};
use super::state::StreamState;
use crate::loader::methods::{batches_methods, loader_methods};
use crate::loader::prefetch::Prefetch;
use crate::loader::shared::LoaderShared;
use crate::plan::PlanError;
use crate::settings::{LoaderSettings, call_user};
use crate::{BuildError, LoadError, LoadedBatch};

/// Makes batches of shards that are read from front to back, in worker processes, in shared memory, in an
/// order that is a function of a seed and an epoch.
///
/// Example: at [`IterableDataset`], with what is lost when something fails. All else is as of a
/// [`DataLoader`](crate::DataLoader).
///
/// Each *lane* is a sequence of this rank's shards, read one after the other; batches come from the lanes in
/// turn, and lanes that have ended are left out. A lane has one worker at a time, as a rule the same one,
/// which has its shard open. A batch's [number](crate::BatchInfo::number) is its round, times the lanes, plus
/// its lane: so those of ended lanes are missing.
pub struct StreamLoader<D: IterableDataset> {
    pub(super) inner: Arc<LoaderShared<StreamSource<D>>>,
    /// Plan without the number of shards.
    plan: StreamPlan,
}

impl<D: IterableDataset> fmt::Debug for StreamLoader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoaderShared { plan, settings, .. } = &*self.inner;
        write!(
            f,
            "StreamLoader({} shards, {} lanes, {} workers)",
            plan.shards, plan.lanes, settings.num_workers
        )
    }
}

impl<D: IterableDataset> StreamLoader<D> {
    pub(super) fn start(
        dataset: Arc<D>,
        plan: StreamPlan,
        settings: LoaderSettings,
    ) -> Result<Self, BuildError> {
        let order = plan.clone().for_shards(call_user("dataset", || dataset.shards())?)?;
        Ok(StreamLoader { inner: LoaderShared::start(dataset, order, settings)?, plan })
    }

    /// The batches of an epoch. Workers begin with them now, and the results of one that was dropped before
    /// its end are not waited for.
    pub fn epoch(&self, epoch: u64) -> StreamBatches<D> {
        StreamBatches::new(&self.inner, StreamPosition::start(self.inner.plan.lanes, epoch), Some(epoch))
    }

    /// The batches of several epochs, one after the other: workers begin with the next epoch while the
    /// trainer has the last batches of the one before. [`BatchInfo::epoch`](crate::BatchInfo::epoch) says
    /// where one ends. An epoch without any batch is the last.
    ///
    /// An epoch before the last one whose batches were all [left out](crate::OnError) ends the iterator with
    /// an error, which has the error of the last batch.
    pub fn epochs(&self, epochs: Range<u64>) -> StreamBatches<D> {
        let last = epochs.end.checked_sub(1).filter(|last| *last >= epochs.start);
        StreamBatches::new(&self.inner, StreamPosition::start(self.inner.plan.lanes, epochs.start), last)
    }

    /// The batches of an epoch that come after those that a trainer was given when it took this state; also
    /// with another number of workers. Lanes, ranks and all else that the order is made from have to be what
    /// they were.
    ///
    /// # Errors
    /// The state is of another order: the error names what differs. Or it was changed since it was made: it
    /// has a checksum.
    #[doc(alias = "load_state_dict")]
    pub fn resume(&self, state: &StreamState) -> Result<StreamBatches<D>, PlanError> {
        Ok(StreamBatches::new(&self.inner, state.place(&self.inner.plan)?, Some(state.epoch())))
    }

    /// Resumes as [`resume`](Self::resume) does, and adds the epochs after that one, up to `end`, as of
    /// [`epochs`](Self::epochs): so `end` is not among them, and there is no batch if the state is in epoch
    /// `end`, or later.
    ///
    /// # Errors
    /// As of [`resume`](Self::resume).
    pub fn resume_until(&self, state: &StreamState, end: u64) -> Result<StreamBatches<D>, PlanError> {
        let last = end.checked_sub(1).filter(|last| *last >= state.epoch());
        Ok(StreamBatches::new(&self.inner, state.place(&self.inner.plan)?, last))
    }

    /// Returns the number of lanes.
    #[must_use]
    pub fn lanes(&self) -> u64 {
        self.inner.plan.lanes
    }

    /// Another dataset from now on, with the same settings and new workers. [`StreamBatches`] that are there
    /// keep the old ones.
    ///
    /// # Errors
    /// Those of [`build`](crate::StreamLoaderBuilder::build); then nothing has changed.
    pub fn set_dataset(&mut self, dataset: D) -> Result<(), BuildError> {
        *self = Self::start(Arc::new(dataset), self.plan.clone(), self.inner.settings.clone())?;
        Ok(())
    }

    loader_methods!();
}

/// The batches of an epoch of a stream, or of several: an iterator of [`LoadedBatch`] batches. Made by
/// [`StreamLoader::epoch`].
///
/// Dropped before its end, it cancels what has not begun, and what runs is not waited for. After its end it
/// gives nothing more. A batch that is waited for longer than 10 s is reported, as by
/// [`Batches`](crate::Batches).
pub struct StreamBatches<D: IterableDataset>(Prefetch<StreamSource<D>>);

impl<D: IterableDataset> fmt::Debug for StreamBatches<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StreamPosition { epoch, batches, .. } = self.0.place();
        write!(f, "StreamBatches({batches} of epoch {epoch} given, {} on their way)", self.0.len())
    }
}

impl<D: IterableDataset> StreamBatches<D> {
    fn new(inner: &Arc<LoaderShared<StreamSource<D>>>, place: StreamPosition, last: Option<u64>) -> Self {
        let cursor = StreamCursor::new(place);
        StreamBatches(Prefetch::new(Arc::clone(inner), cursor, last))
    }

    fn state_at(&self, place: StreamPosition) -> StreamState {
        StreamState::new(&self.0.inner().plan, place)
    }

    /// Returns the trainer's place: the batches that were delivered, whatever is prefetched. An error in the
    /// place of a batch counts as given, but for one after which nothing more comes, since no worker can
    /// live.
    #[must_use]
    #[doc(alias = "state_dict")]
    pub fn state(&self) -> StreamState {
        self.state_at(self.0.place())
    }

    /// The state as it was when this batch was given: for a trainer that keeps batches in a queue of its own.
    /// `None` if that was more than 1024 batches ago. Of several epochs, the last batch of this number.
    #[must_use]
    pub fn state_after(&self, number: u64) -> Option<StreamState> {
        self.0.place_after(number).map(|place| self.state_at(place.clone()))
    }

    /// The same batches; meanwhile the bar shows how many were given, of how many with
    /// [`steps`](crate::StreamLoaderBuilder::steps), and as its message samples a second and which share of
    /// the time the trainer waited for them, of the last half second: `12800 samples/s, waiting 3 %`.
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
    /// use indicatif::{ProgressBar, ProgressStyle};
    ///
    /// let style = ProgressStyle::with_template("{spinner} {pos} batches, {msg}")?;
    /// let bar = ProgressBar::hidden().with_style(style);
    /// let loader = StreamLoader::builder(Hundreds).batch_size(10).num_workers(2).build()?;
    /// for batch in loader.epoch(0).with_progress(&bar) {
    ///     let batch = batch?; // …
    /// }
    /// assert_eq!((bar.position(), bar.length()), (30, None));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// Those before a resume count; with `steps` and several epochs, all of them.
    #[cfg(feature = "indicatif")]
    #[cfg_attr(docsrs, doc(cfg(feature = "indicatif")))]
    #[doc(alias = "tqdm")]
    pub fn with_progress(self, bar: &indicatif::ProgressBar) -> crate::WithProgress<Self> {
        let StreamPosition { epoch, batches, .. } = self.0.place();
        let epochs = self.0.last.saturating_sub(epoch).saturating_add(1);
        let all = self.0.inner().plan.steps.map(|steps| steps.saturating_mul(epochs));
        let given = batches;
        crate::WithProgress::new(self, bar, (given, all))
    }

    batches_methods!();
}

impl<D: IterableDataset> std::iter::FusedIterator for StreamBatches<D> {}

impl<D: IterableDataset> Iterator for StreamBatches<D> {
    type Item = Result<LoadedBatch<D::Batch>, LoadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}
