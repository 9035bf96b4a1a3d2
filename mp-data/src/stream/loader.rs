//! The loader of a stream, and its batches.

use std::fmt;
use std::sync::Arc;

use super::dataset::IterableDataset;
use super::plan::StreamPlan;
use super::saved_state::StreamState;
use super::source::{StreamPosition, StreamSource};
use crate::loader::methods::{batches_methods, loader_methods};
use crate::loader::prefetch::Prefetch;
use crate::loader::shared::LoaderShared;
use crate::plan::PlanError;
use crate::settings::{LoaderSettings, call_user};
use crate::{BuildError, LoadError, LoadedBatch};
use mp_core::quantity;

/// Loader of shards that are read sequentially. Worker processes make the batches in shared memory, in an
/// order that is a function of a seed and an epoch.
///
/// [`IterableDataset`] has an example, and a table of the losses after a failure. In all other respects it
/// works like a [`DataLoader`](crate::DataLoader).
///
/// Each *lane* is a sequence of this rank's shards, which are read one after the other. Batches are taken in
/// turn from the lanes that have not ended. One worker at a time reads a lane, usually the worker that has
/// the lane's shard open. A batch's [number](crate::BatchInfo::number) is its round times the number of
/// lanes, plus its lane, so the numbers of ended lanes are missing.
pub struct StreamLoader<D: IterableDataset> {
    pub(super) inner: Arc<LoaderShared<StreamSource<D>>>,
    /// Plan before it is completed with the number of shards.
    plan: StreamPlan,
}

impl<D: IterableDataset> fmt::Debug for StreamLoader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoaderShared { plan, settings, .. } = &*self.inner;
        write!(
            f,
            "StreamLoader({}, {}, {})",
            quantity(plan.shards, "shard"),
            quantity(plan.lanes, "lane"),
            quantity(settings.num_workers, "worker")
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

    /// Returns an iterator over the batches of an epoch that were not delivered before the state was saved.
    /// The loader can have another number of workers than before. Lanes, ranks and other settings of the
    /// order must be the same.
    ///
    /// # Errors
    /// Returns an error if a setting of the loader's order differs from the saved order (the error names it),
    /// or the checksum of the state is wrong.
    #[doc(alias = "load_state_dict")]
    pub fn resume(&self, state: &StreamState) -> Result<StreamBatches<D>, PlanError> {
        Ok(self.from(self.source_at(state)?, Some(state.epoch())))
    }

    pub(super) fn start_of(&self, epoch: u64) -> StreamSource<D> {
        let plan = &self.inner.plan;
        StreamSource::new(plan, StreamPosition::start(plan.lanes, epoch))
    }

    fn source_at(&self, state: &StreamState) -> Result<StreamSource<D>, PlanError> {
        let plan = &self.inner.plan;
        Ok(StreamSource::new(plan, state.place(plan)?))
    }

    fn from(&self, source: StreamSource<D>, last: Option<u64>) -> StreamBatches<D> {
        StreamBatches(Prefetch::new(Arc::clone(&self.inner), source, last))
    }

    /// Returns the number of lanes.
    #[must_use]
    pub fn lanes(&self) -> u64 {
        self.inner.plan.lanes
    }

    loader_methods!(StreamBatches, StreamState, "An epoch without any batch is the last.");
}

/// Iterator over the batches of one or several epochs of a stream, returned by [`StreamLoader::epoch`].
///
/// Dropping the iterator cancels batches that no worker has begun. It does not wait for the batches that
/// workers are making. A wait longer than 10 s is reported as for [`Batches`](crate::Batches).
pub struct StreamBatches<D: IterableDataset>(Prefetch<StreamSource<D>>);

impl<D: IterableDataset> fmt::Debug for StreamBatches<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StreamPosition { epoch, batches, .. } = self.0.place();
        write!(f, "StreamBatches({batches} of epoch {epoch} given, {} in flight)", self.0.slots.len())
    }
}

impl<D: IterableDataset> StreamBatches<D> {
    fn state_at(&self, place: StreamPosition) -> StreamState {
        StreamState::new(&self.0.inner.plan, place)
    }

    /// Shows the progress of this iterator in a bar. The message of the bar has the samples per second and
    /// the share of time spent waiting for batches during the last half second: `12800 samples/s, waiting 3
    /// %`.
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
    /// The bar has a length only with [`steps`](crate::StreamLoaderBuilder::steps): the number of batches of
    /// the epoch or epochs, including batches before a resume.
    #[cfg(feature = "indicatif")]
    #[cfg_attr(docsrs, doc(cfg(feature = "indicatif")))]
    #[doc(alias = "tqdm")]
    pub fn with_progress(self, bar: &indicatif::ProgressBar) -> crate::WithProgress<Self> {
        let StreamPosition { epoch, batches, .. } = self.0.place();
        let epochs = self.0.last.saturating_sub(epoch).saturating_add(1);
        let all = self.0.inner.plan.steps.map(|steps| steps.saturating_mul(epochs));
        let given = batches;
        crate::WithProgress::new(self, bar, (given, all))
    }

    batches_methods!(StreamState);
}

impl<D: IterableDataset> std::iter::FusedIterator for StreamBatches<D> {}

impl<D: IterableDataset> Iterator for StreamBatches<D> {
    type Item = Result<LoadedBatch<D::Batch>, LoadError>;

    #[track_caller]
    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}
