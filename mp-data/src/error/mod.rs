//! Errors of batches and of loaders.

pub(crate) mod failure;
pub(crate) mod text;

use std::error::Error;
use std::fmt;

use mp_pool::{PoolError, TaskError};
use mp_spawn::{ExitStatus, Signal};

use crate::Item;
use crate::plan::PlanError;

/// Error returned in place of a batch.
///
/// ```
/// use mp_data::{AnyResult, Context, DataLoader, Dataset, Item};
/// use mp_tensor::Tensor;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Roots(Vec<f64>);
///
/// impl Dataset for Roots {
///     type Batch = Tensor<f64>;
///     fn len(&self) -> usize {
///         self.0.len()
///     }
///     fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
///         cx.rows(items, &[], |item, _, row| {
///             row[0] = self.0[item.index].sqrt();
///             if row[0].is_nan() { Err("it is negative".into()) } else { Ok(()) }
///         })
///     }
///     fn describe(&self, index: usize) -> Option<String> {
///         Some(format!("the number {}", self.0[index]))
///     }
/// }
///
/// let loader = DataLoader::builder(Roots(vec![4.0, 9.0, -1.0, 16.0])).batch_size(2).num_workers(1).build()?;
/// let batches: Vec<_> = loader.epoch(0).collect();
/// assert_eq!(batches[0].as_ref().unwrap().to_vec(), [2.0, 3.0]);
/// let error = batches[1].as_ref().unwrap_err();
/// assert_eq!((error.batch, error.item.map(|item| item.index)), (1, Some(2)));
/// // batch 1 of epoch 0, sample 2 (the number -1), worker 0 (pid 77): it is negative
/// let begin = "batch 1 of epoch 0, sample 2 (the number -1), worker 0 (pid ";
/// assert!(error.to_string().starts_with(begin), "{error}");
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// `{error:#}` includes the whole backtrace of a worker. `Debug`, which is printed if `main` returns the
/// error, is the same text, followed by all sources that the text doesn't contain.
#[non_exhaustive]
pub struct LoadError {
    /// Epoch of the batch.
    pub epoch: u64,
    /// Number of the batch in the epoch.
    pub batch: u64,
    /// Sample at which the batch failed, if it is known.
    pub item: Option<Item>,
    /// Shard of the sample, if the dataset is a stream and the sample is known. The item's index is its
    /// number in that shard.
    pub shard: Option<usize>,
    /// Name of the sample by [`Dataset::describe`](crate::Dataset::describe), or of its shard by
    /// [`IterableDataset::describe`](crate::IterableDataset::describe).
    pub description: Option<String>,
    /// Worker of the last attempt; `None` in a loader without workers.
    pub worker: Option<usize>,
    /// Number of attempts to make the batch.
    pub attempts: usize,
    /// Cause: a [`TaskError`], a [`PlanError`], or, in a loader without workers, the error of `fetch`. The
    /// text of a panic includes its file and line. In a loader without workers, a panic hook records file and
    /// line for panics of `init`, `open`, `fetch` and rows, and then calls the previous hook. The first batch
    /// that this process makes installs the hook. If the program installs another hook later, errors of
    /// panics contain only the message.
    pub source: Box<dyn Error + Send + Sync>,
}

impl LoadError {
    /// Creates the error of a batch, without a sample and a worker.
    pub(crate) fn new(epoch: u64, batch: u64, attempts: usize, source: failure::DynError) -> LoadError {
        let (item, shard, description, worker) = (None, None, None, None);
        LoadError { epoch, batch, item, shard, description, worker, attempts, source }
    }

    /// Returns the cause if it is an error of a worker's task: a death, a time-out, or an error of `fetch`.
    #[must_use]
    pub fn task(&self) -> Option<&TaskError> {
        self.source.downcast_ref()
    }

    /// Returns the signal that killed the last worker of the batch, if any.
    #[must_use]
    pub fn signal(&self) -> Option<Signal> {
        match self.task()? {
            TaskError::WorkerLost(lost) => match lost.exit {
                ExitStatus::Signal { signal, .. } => Some(signal),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the last lines on stderr of a worker that died while making the batch, if any.
    #[must_use]
    pub fn stderr(&self) -> Option<&str> {
        match self.task()? {
            TaskError::WorkerLost(lost) => lost.stderr.as_deref(),
            _ => None,
        }
    }
}

impl Error for LoadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// Error returned when a loader can't be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A setting of the order is invalid.
    #[error("{0}")]
    Plan(#[from] PlanError),
    /// The workers can't be started, or the dataset can't be sent to them.
    #[error("{0}")]
    Pool(#[from] PoolError),
    /// A setting of the loader is invalid.
    #[error("the loader's setting `{setting}`: {reason}")]
    #[allow(missing_docs)]
    Setting { setting: &'static str, reason: String },
}

mp_core::readable_debug!(BuildError);

/// Error returned when no batch is ready before the time-out: see
/// [`Batches::next_timeout`](crate::Batches::next_timeout).
#[derive(Clone)]
#[non_exhaustive]
pub struct NotReadyError {
    /// Epoch and number of the batch for which the caller waited.
    pub batch: Option<(u64, u64)>,
    /// Activity of each worker that makes a batch, with batch and sample. If no worker has a batch, the state
    /// of each worker, such as `starting`.
    pub running: Vec<String>,
}

impl fmt::Display for NotReadyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.batch {
            Some((epoch, batch)) => write!(f, "batch {batch} of epoch {epoch} is not ready yet")?,
            None => f.write_str("no batch is ready yet")?,
        }
        self.running.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

mp_core::readable_debug!(NotReadyError);

impl Error for NotReadyError {}
