//! Traits and types for users: samples by index, and how they become a batch.

pub(crate) mod context;
pub(crate) mod frozen_strings;
pub(crate) mod info;
pub(crate) mod moment;
pub(crate) mod row_threads;
pub(crate) mod samples;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::dataset::context::Context;
use crate::dataset::info::WorkerInfo;
use crate::{AnyResult, Batch, Item};

/// Samples that are found by index. It is sent to each worker once; a worker calls [`fetch`](Self::fetch) for
/// one batch after the other.
///
/// ```
/// use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, Tensor};
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
///             // This row of the batch, in shared memory.
///             values.copy_from_slice(&[item.index as f32, rng.f32()]);
///             class[0] = (item.index * item.index) as i64;
///             Ok(())
///         })
///     }
/// }
///
/// let builder = DataLoader::builder(Squares(10)).batch_size(4).shuffle(true).seed(17);
/// let loader = builder.num_workers(2).build()?;
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
/// The dataset as it was sent, the items, and the random numbers that come with them. What it keeps in `self`
/// is a cache: which worker makes a batch is not known beforehand, and a batch whose worker died is made
/// again. Then batches are the same, bit by bit, for any number of workers.
/// [`DataLoader::verify`](crate::DataLoader::verify) looks after that.
///
/// # A file or a decoder that needs `&mut`
/// The function that [`rows`](Context::rows) calls may run in several threads at a time, so it has no `&mut
/// self`. A file that is read at a place (`std::os::unix::fs::FileExt::read_at`) needs none, a decoder may be
/// in a `Mutex`; or `fetch` goes through its items by itself, and says at which it is, so that errors and
/// deaths name the sample:
///
/// ```
/// use std::fs::File;
/// use std::io::{Read, Seek, SeekFrom};
///
/// use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, Tensor, WorkerInfo};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Records {
///     path: String,
///     #[serde(skip)]
///     file: Option<File>,
/// }
///
/// impl Dataset for Records {
///     type Batch = Tensor<u8>;
///
///     fn len(&self) -> usize {
///         3
///     }
///
///     fn init(&mut self, _: &WorkerInfo) -> AnyResult<()> {
///         self.file = Some(File::open(&self.path)?);
///         Ok(())
///     }
///
///     fn fetch(&mut self, items: &[Item], cx: &mut Context<Tensor<u8>>) -> AnyResult<Tensor<u8>> {
///         let file = self.file.as_mut().ok_or("init was not called")?;
///         let mut batch = Tensor::zeros([items.len(), 4])?;
///         for (item, row) in items.iter().zip(batch.as_mut_slice()?.chunks_exact_mut(4)) {
///             cx.begin(*item);
///             file.seek(SeekFrom::Start(4 * item.index as u64))?;
///             file.read_exact(row)?;
///         }
///         Ok(batch)
///     }
/// }
///
/// let path = std::env::temp_dir().join(format!("records-{}", std::process::id()));
/// std::fs::write(&path, "one.two.six.")?;
/// let records = Records { path: path.to_str().ok_or("no text")?.into(), file: None };
/// let loader = DataLoader::builder(records).batch_size(2).num_workers(1).build()?;
/// let batches = loader.epoch(0).map(|batch| Ok(batch?.to_vec())).collect::<AnyResult<Vec<_>>>();
/// std::fs::remove_file(path)?;
/// assert_eq!(batches?, [&b"one.two."[..], b"six."]);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Several kinds of datasets
/// A loader has one type of dataset, which workers can read: no `Box<dyn Dataset>`. What is chosen when the
/// program runs is an enum with a dataset in each variant, which passes the calls on. torch's `transform=` is
/// a field: a closure that travels is `mp_spawn::Closure`.
///
/// | torch | here | of |
/// |---|---|---|
/// | `ConcatDataset` | [`ConcatDataset`](crate::ConcatDataset) | datasets that write rows ([`RowDataset`](crate::RowDataset)) |
/// | `StackDataset` | [`StackDataset`](crate::StackDataset) | datasets that write rows |
/// | `TensorDataset` | [`TensorDataset`](crate::TensorDataset) | frozen tensors |
/// | `Subset`, `random_split` | [`Subset`](crate::Subset), [`random_split`](crate::random_split) | any dataset |
///
/// # What workers don't have
/// A worker is a process of its own: what `main` has put into a `static` is not there. What it needs is in
/// the dataset, or made in [`init`](Self::init).
///
/// # When it fails
/// An `Err` or a panic is the batch's [`LoadError`](crate::LoadError), and the epoch goes on. `self` is kept
/// after an `Err`; after a panic the worker gets a new copy, with [`init`](Self::init).
pub trait Dataset: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Type of the batches.
    type Batch: Batch;

    /// Returns the number of samples. The loader asks once.
    #[doc(alias = "__len__")]
    fn len(&self) -> usize;

    /// Returns `true` if there are no samples.
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

    /// Called once in each worker before its first batch, also in one that takes the place of another: opens
    /// files, makes decoders, in fields with `#[serde(skip)]`.
    ///
    /// A generator of random numbers that is made here from [`WorkerInfo::seed`] gives the same numbers in
    /// each worker, and again in one that takes the place of another: random numbers come from the `rng` of
    /// each row.
    ///
    /// # End of a worker
    /// A worker drops its dataset when the loader is [joined or closed](crate::DataLoader::join), when the
    /// loader and its last iterator are dropped, when it has made
    /// [`max_tasks_per_child`](crate::DataLoaderBuilder::max_tasks_per_child) batches, and after a panic of
    /// `fetch`. A dropped loader gives its workers one second for the batch that they make. The dataset is
    /// not dropped in a worker that is killed: after that second, by a signal, by the time-out of a batch, or
    /// with a program that ends without a drop of its loader.
    ///
    /// # Time
    /// The [time-out](crate::DataLoaderBuilder::timeout) of batches does not apply to it: while it runs,
    /// [`NotReadyError`](crate::NotReadyError) and the report of a batch that does not come say that the
    /// worker is starting.
    ///
    /// # Errors
    /// A worker that can't begin is started anew, later each time, and the others make the batches: the error
    /// is in the [metrics](crate::LoaderMetrics::failed_starts), and after five times once on the standard
    /// error. If all have failed five times in a row, the epoch ends with the error.
    #[doc(alias = "worker_init_fn")]
    fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
        _ = worker;
        Ok(())
    }

    /// Returns the name of a sample for errors: a path, for example. Called in the trainer.
    fn describe(&self, index: usize) -> Option<String> {
        _ = index;
        None
    }

    /// Returns a checksum of the choice of samples, for a dataset that takes some samples of another one,
    /// such as [`Subset`](crate::Subset). A saved state is refused by a loader whose dataset returns another
    /// value. A dataset that passes its calls on to other datasets passes this one on, too.
    fn selection_checksum(&self) -> Option<u64> {
        None
    }
}
