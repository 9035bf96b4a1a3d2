//! Traits and types for users: samples by index, and the making of batches.

pub(crate) mod context;
pub(crate) mod frozen_strings;
pub(crate) mod info;
pub(crate) mod row_threads;
pub(crate) mod samples;
pub(crate) mod stream_position;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::dataset::context::Context;
use crate::dataset::info::WorkerInfo;
use crate::{AnyResult, Batch, Item};

/// Samples that are found by index. The loader sends a dataset to each worker once, and the worker calls
/// [`fetch`](Self::fetch) for each batch.
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
/// # Inputs of `fetch`
/// `fetch` may depend on the dataset as it was sent, on the items, and on their random numbers. State that it
/// stores in `self` is a cache only: any worker may make any batch, and a batch whose worker died is made
/// again. If `fetch` follows this rule, batches are equal bit by bit for any number of workers.
/// [`DataLoader::verify`](crate::DataLoader::verify) checks this.
///
/// # A file or a decoder that needs `&mut`
/// The function that [`rows`](Context::rows) calls may run in several threads at once, so it can't use `&mut
/// self`. Positioned reads (`std::os::unix::fs::FileExt::read_at`) need no `&mut`, and a decoder may be in a
/// `Mutex`. Alternatively, `fetch` loops over its items and calls [`begin`](Context::begin) for each, so that
/// errors and deaths name the sample:
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
/// A loader has one type of dataset, which workers can decode: a `Box<dyn Dataset>` is impossible. For a
/// choice at run time, write an enum with a dataset in each variant, and forward the calls. torch's
/// `transform=` is a field: `mp_spawn::Closure` is a closure that can be sent to workers.
///
/// | torch | mp-data | combines |
/// |---|---|---|
/// | `ConcatDataset` | [`ConcatDataset`](crate::ConcatDataset) | datasets that write rows ([`RowDataset`](crate::RowDataset)) |
/// | `StackDataset` | [`StackDataset`](crate::StackDataset) | datasets that write rows |
/// | `TensorDataset` | [`TensorDataset`](crate::TensorDataset) | frozen tensors |
/// | `Subset`, `random_split` | [`Subset`](crate::Subset), [`random_split`](crate::random_split) | any dataset |
///
/// # Statics
/// A worker is a separate process, which doesn't have values that `main` stored in a `static`. Put such
/// values into the dataset, or make them in [`init`](Self::init).
///
/// # Failure
/// An `Err` or a panic becomes the batch's [`LoadError`](crate::LoadError), and the epoch continues. The
/// worker keeps `self` after an `Err`. After a panic it gets a new copy, on which it calls
/// [`init`](Self::init).
pub trait Dataset: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Type of the batches.
    type Batch: Batch;

    /// Returns the number of samples. The loader calls this once.
    #[doc(alias = "__len__")]
    fn len(&self) -> usize;

    /// Returns `true` if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes a batch of these samples, in this order.
    ///
    /// # Errors
    /// Any error: a sample can't be made.
    #[doc(alias = "__getitem__")]
    #[doc(alias = "collate_fn")]
    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch>;

    /// Prepares a worker before its first batch, for example opens files and makes decoders in fields with
    /// `#[serde(skip)]`. Each worker calls this once, also a worker that replaces another worker.
    ///
    /// Take random numbers from the `rng` of each row. A generator that is seeded here with
    /// [`WorkerInfo::seed`] returns the same numbers in each worker, and in its replacement.
    ///
    /// # End of a worker
    /// A worker drops its dataset when the loader is [joined or closed](crate::DataLoader::join), when the
    /// loader and its last iterator are dropped, when it has made
    /// [`max_tasks_per_child`](crate::DataLoaderBuilder::max_tasks_per_child) batches, and after a panic of
    /// `fetch`. A dropped loader waits one second for workers that are making a batch. A killed worker
    /// doesn't drop its dataset. Workers are killed if they need longer, by a signal, by the time-out of a
    /// batch, or when the program exits without dropping its loader.
    ///
    /// # Time
    /// The [time-out](crate::DataLoaderBuilder::timeout) of batches does not apply to `init`. While it runs,
    /// [`NotReadyError`](crate::NotReadyError) and the report of a slow batch name the worker as starting.
    ///
    /// # Errors
    /// A worker whose `init` fails is started again, after longer and longer delays, and the other workers
    /// make the batches. The [metrics](crate::LoaderMetrics::failed_starts) have the error, and after five
    /// failures it is reported once on stderr. If all workers have failed five times in a row, the epoch ends
    /// with the error.
    #[doc(alias = "worker_init_fn")]
    fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
        _ = worker;
        Ok(())
    }

    /// Returns the name of a sample for errors, for example a path. Called in the training process.
    fn describe(&self, index: usize) -> Option<String> {
        _ = index;
        None
    }

    /// Returns a checksum of the selection, for a dataset that is a selection of another dataset's samples,
    /// such as [`Subset`](crate::Subset). A loader refuses a saved state if its dataset returns another
    /// value. A dataset that forwards its calls to other datasets must forward this call, too.
    fn selection_checksum(&self) -> Option<u64> {
        None
    }
}
