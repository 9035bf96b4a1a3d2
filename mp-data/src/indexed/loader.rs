//! Loader of a dataset with indices: a plan, a dataset, and the workers that make its batches.

use std::fmt;
use std::sync::Arc;

use mp_core::quantity;
use mp_core::user_code::catch_panic;

use crate::indexed::batches::Batches;
use crate::indexed::saved_state::LoaderState;
use crate::indexed::source::IndexedSource;
use crate::loader::methods::loader_methods;
use crate::loader::prefetch::Prefetch;
use crate::loader::shared::LoaderShared;
use crate::plan::{Plan, PlanBuilder};
use crate::settings::{LoaderSettings, call_user};
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
/// | a worker is killed, crashes, or exceeds the time-out | it is replaced, and another worker makes its batch again, up to [`retries`](crate::DataLoaderBuilder::retries) times. After that, the batch is a [`LoadError`](crate::LoadError) |
/// | a worker is stopped (SIGSTOP, a debugger) | its batch waits until the worker continues, or for the [time-out](crate::DataLoaderBuilder::timeout). Other workers continue. After 10 s a report on stderr names the batch, the sample and the process |
/// | a row kills its worker each time | [`on_error`](crate::DataLoaderBuilder::on_error): an error, or the batch without that row. With several threads, one thread first makes the batch again to find the sample |
/// | shared memory is exhausted | the batch is made again after another batch was made or taken. Prefetched batches are freed to get memory. If no other batch is in flight, the batch is made once more, and fails if memory is exhausted again |
/// | all workers fail to start: `init` fails five times | the iterator returns the error and ends. The state does not count that batch as delivered |
/// | SIGINT (Ctrl-C), SIGTERM | workers ignore these signals from their first instruction on. Only the handler of this process runs |
/// | this process is killed | the workers exit, and the kernel frees the memory after the last one |
/// | the epoch is dropped before its end | batches that no worker has begun are cancelled. The drop does not wait for the batches that workers are making |
#[doc(alias = "StatefulDataLoader")]
#[doc(alias = "persistent_workers")]
pub struct DataLoader<D: Dataset> {
    pub(crate) inner: Arc<LoaderShared<IndexedSource<D>>>,
    plan: PlanBuilder,
}

impl<D: Dataset> fmt::Debug for DataLoader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LoaderShared { plan, settings, .. } = &*self.inner;
        let (samples, workers) = (quantity(plan.len(), "sample"), quantity(settings.num_workers, "worker"));
        write!(f, "DataLoader({samples}, {workers})")
    }
}

impl<D: Dataset> DataLoader<D> {
    pub(crate) fn start(
        dataset: Arc<D>,
        plan: PlanBuilder,
        settings: LoaderSettings,
    ) -> Result<Self, BuildError> {
        let of_dataset = call_user("dataset", || (dataset.len(), dataset.selection_checksum()));
        let (len, selection_checksum) = of_dataset?;
        let order = plan.clone().for_dataset(len as u64, selection_checksum);
        let order = call_user("sampler", || order.build())??;
        Ok(DataLoader { inner: LoaderShared::start(dataset, order, settings)?, plan })
    }

    pub(super) fn start_of(&self, epoch: u64) -> IndexedSource<D> {
        let plan = &self.inner.plan;
        IndexedSource::new(plan, plan.epoch(epoch), 0, &[])
    }

    pub(super) fn from(&self, source: IndexedSource<D>, last: Option<u64>) -> Batches<D> {
        Batches(Prefetch::new(Arc::clone(&self.inner), source, last))
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

    loader_methods!(Batches, LoaderState, "");
}
