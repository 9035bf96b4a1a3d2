//! Settings of a loader.

use std::fmt;
use std::sync::Arc;

use crate::indexed::loader::DataLoader;
use crate::plan::{Plan, PlanBuilder, plan_settings};
use crate::settings::{LoaderSettings, settings};
use crate::{BuildError, Dataset};

/// Builder of a [`DataLoader`]. By default a batch has one sample, samples are in order, and the caller makes
/// the batches.
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
/// use std::time::Duration;
/// use mp_data::{DataLoader, OnError};
///
/// let loader = DataLoader::builder(Numbers(1000))
///     .batch_size(64)
///     .shuffle(true)
///     .seed(17)
///     .num_workers(2)
///     .threads_per_worker(2)
///     .prefetch_factor(3)
///     .memory_budget(256 << 20)
///     .timeout(Duration::from_secs(30))
///     .retries(3)
///     .on_error(OnError::SkipSample)
///     .build()?;
/// assert_eq!(loader.epoch(0).count(), 16);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[must_use = "options do nothing until `build` is called"]
pub struct DataLoaderBuilder<D> {
    dataset: D,
    plan: PlanBuilder,
    settings: LoaderSettings,
}

impl<D> fmt::Debug for DataLoaderBuilder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataLoaderBuilder").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<D: Dataset> DataLoader<D> {
    /// Returns a builder for a loader of this dataset.
    pub fn builder(dataset: D) -> DataLoaderBuilder<D> {
        DataLoaderBuilder::new(dataset)
    }
}

impl<D: Dataset> DataLoaderBuilder<D> {
    fn new(dataset: D) -> Self {
        DataLoaderBuilder { dataset, plan: Plan::builder(0), settings: LoaderSettings::new() }
    }

    plan_settings!(plan);

    settings!();

    /// Sets whether [`resume`](DataLoader::resume) accepts a state that was saved with another dataset,
    /// weights, lengths, subset or sampler. If accepted, the iterator starts at the next batch of the state,
    /// in the new order. By default, such a state is refused.
    pub fn allow_changed_dataset(mut self, allow: bool) -> Self {
        self.settings.allow_changed_dataset = allow;
        self
    }

    /// Starts the workers, in one or two milliseconds each. Workers decode the dataset and call
    /// [`Dataset::init`] after this function has returned.
    ///
    /// # Errors
    /// A setting is invalid, or has no effect in combination with another setting (`shuffle` or `batch_size`
    /// with `batch_sampler`). The error names both settings. The epochs are uneven with
    /// [`Uneven::Error`](crate::plan::Uneven::Error). The dataset can't be encoded, or a process can't be
    /// started.
    pub fn build(self) -> Result<DataLoader<D>, BuildError> {
        self.settings.check_name()?;
        DataLoader::start(Arc::new(self.dataset), self.plan, self.settings)
    }
}
