//! What a user writes: samples by index, and how they become a batch.

pub(crate) mod context;
pub(crate) mod frozen_strings;
pub(crate) mod info;
pub(crate) mod moment;
pub(crate) mod samples;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::dataset::context::Context;
use crate::dataset::info::WorkerInfo;
use crate::{AnyResult, Batch, Item};

/// Samples that are found by index. It is sent to each worker once; a worker calls [`fetch`](Self::fetch) for one batch after the other.
///
/// ```
/// use mp_data::{AnyResult, Context, DataLoader, Dataset, Item};
/// use mp_tensor::Tensor;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Squares(usize);
///
/// impl Dataset for Squares {
///     type Batch = (Tensor<f32>, Tensor<i64>);
///
///     fn len(&self) -> usize {
///         self.0
///     }
///
///     fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
///         cx.rows(items, (&[2], &[]), |item, rng, (values, class)| {
///             values.copy_from_slice(&[item.index as f32, rng.f32()]); // this row of the batch, in shared memory
///             class[0] = (item.index * item.index) as i64;
///             Ok(())
///         })
///     }
/// }
///
/// let loader = DataLoader::builder(Squares(10)).batch_size(4).shuffle(true).seed(17).num_workers(2).build()?;
/// let mut classes = 0;
/// for batch in loader.epoch(0) {
///     let (values, class) = batch?.into_inner();
///     assert_eq!(values.shape(), [class.len(), 2]);
///     classes += class.iter().sum::<i64>();
/// }
/// assert_eq!(classes, 285);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # What `fetch` may depend on
/// The dataset as it was sent, the items, and the random numbers that come with them. What it keeps in `self` is a cache: which worker
/// makes a batch is not known beforehand, and a batch whose worker died is made again. Then batches are the same, bit by bit, for
/// any number of workers. [`DataLoader::verify`](crate::DataLoader::verify) looks after that.
///
/// # When it fails
/// An `Err` or a panic is the batch's [`LoadError`](crate::LoadError), and the epoch goes on. `self` is kept after an `Err`; after a panic
/// the worker gets a new copy, with [`init`](Self::init).
pub trait Dataset: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// What it makes.
    type Batch: Batch;

    /// How many samples there are. The loader asks once.
    #[doc(alias = "__len__")]
    fn len(&self) -> usize;

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes a batch of these samples, in this order.
    ///
    /// # Errors
    /// Whatever a sample can't be made for.
    #[doc(alias = "__getitem__")]
    #[doc(alias = "collate_fn")]
    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch>;

    /// Called once in each worker before its first batch, also in one that takes the place of another: opens files, makes decoders, in
    /// fields with `#[serde(skip)]`.
    ///
    /// The loader's `timeout` is of batches, and not of this: while it runs, [`NotReady`](crate::NotReady) and the report of a batch that does
    /// not come say that the worker is starting.
    ///
    /// # Errors
    /// A worker that can't begin is started anew, later each time, and the others make the batches: the error is in the
    /// [metrics](crate::LoaderMetrics::failed_starts), and after five times once on the standard error. If all have failed five times in a
    /// row, the epoch ends with the error.
    #[doc(alias = "worker_init_fn")]
    fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
        _ = worker;
        Ok(())
    }

    /// What a sample is called in errors: a path, for example. Called in the trainer.
    fn describe(&self, index: usize) -> Option<String> {
        _ = index;
        None
    }
}
