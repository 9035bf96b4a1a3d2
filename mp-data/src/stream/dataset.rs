//! Traits and types for users: shards, readers, and the making of batches.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::dataset::context::Context;
use crate::dataset::info::WorkerInfo;
use crate::dataset::samples::Samples;
use crate::{AnyResult, Batch};

/// Type of a dataset's samples.
pub type SampleOf<D> = <<D as IterableDataset>::Reader as ShardReader>::Sample;

/// Samples that are read sequentially from shards: files, ranges, partitions. The loader sends a dataset to
/// each worker once.
///
/// ```
/// use mp_data::{AnyResult, Context, IterableDataset, SampleOf, Samples};
/// use mp_data::{ShardPosition, ShardReader, StreamLoader, Tensor};
/// use serde::{Deserialize, Serialize};
///
/// /// Each shard counts up from a number.
/// #[derive(Serialize, Deserialize)]
/// struct Ranges(Vec<std::ops::Range<u64>>);
///
/// struct Counting { next: u64, end: u64 }
///
/// impl ShardReader for Counting {
///     type Sample = u64;
///
///     fn read(&mut self) -> AnyResult<Option<u64>> {
///         let number = self.next;
///         self.next += 1;
///         Ok(Some(number).filter(|number| *number < self.end))
///     }
///
///     // Position for `open`: for example a byte offset, or a row group.
///     fn token(&self) -> Option<u64> {
///         Some(self.next)
///     }
/// }
///
/// impl IterableDataset for Ranges {
///     type Batch = Tensor<f32>;
///     type Reader = Counting;
///
///     fn shards(&self) -> usize {
///         self.0.len()
///     }
///
///     fn open(&mut self, shard: usize, at: ShardPosition) -> AnyResult<Counting> {
///         let range = self.0[shard].clone();
///         Ok(Counting { next: at.token.unwrap_or(range.start), end: range.end })
///     }
///
///     fn fetch(
///         &mut self,
///         samples: Samples<SampleOf<Self>>,
///         cx: &mut Context<Self::Batch>,
///     ) -> AnyResult<Self::Batch> {
///         cx.rows_from(samples, &[2], |number, rng, row| {
///             row.copy_from_slice(&[number as f32, rng.f32()]); // this row of the batch, in shared memory
///             Ok(())
///         })
///     }
/// }
///
/// let ranges = Ranges(vec![0..100, 100..150, 150..153]);
/// let builder = StreamLoader::builder(ranges).batch_size(8).shuffle_window(32).seed(17);
/// let loader = builder.num_workers(2).build()?;
/// let mut sum = 0.0;
/// for batch in loader.epoch(0) {
///     let batch = batch?.into_inner();
///     sum += batch.to_vec().chunks(2).map(|row| row[0]).sum::<f32>();
/// }
/// assert_eq!(sum, (0..153).sum::<u64>() as f32);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Inputs of a batch
/// A batch may depend on the dataset as it was sent, on the samples, and on their random numbers. State that
/// is stored in `self` is a cache only. A shard must return the same samples in the same order each time, and
/// a reader that is opened at a token must continue after that token. If the dataset follows these rules,
/// batches are equal bit by bit for any number of workers.
/// [`StreamLoader::verify`](crate::StreamLoader::verify) checks this.
///
/// # Failure
/// | event | loss |
/// |---|---|
/// | `fetch`, or a row, or `read` returns an error; a row panics or kills its worker | that batch, or, with [`SkipSample`](crate::OnError::SkipSample), that sample |
/// | `open` returns an error, or panics; `read` panics; a worker dies in them each time, or exceeds the time-out | the rest of that shard. The lane continues with its next shard |
///
/// The error in a batch's place names shard and sample, and the epoch continues. If the rest of a shard is
/// lost, no sample of another shard is lost or repeated. If a shard ends earlier after one of its batches was
/// lost, samples of that batch may be read once more.
pub trait IterableDataset: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Type of the batches.
    type Batch: Batch;
    /// Type of the readers of shards.
    type Reader: ShardReader;

    /// Returns the number of shards. The loader calls this once.
    fn shards(&self) -> usize;

    /// Opens a shard. The reader's first sample must be sample number `at.sample`. That number is 0 if
    /// `at.token` is `None`: the loader itself skips samples of readers without a
    /// [`token`](ShardReader::token).
    ///
    /// # Errors
    /// Any error: the shard can't be opened.
    #[doc(alias = "__iter__")]
    fn open(&mut self, shard: usize, at: ShardPosition) -> AnyResult<Self::Reader>;

    /// Makes a batch of these samples, in this order.
    ///
    /// # Errors
    /// Any error: a sample can't be made.
    #[doc(alias = "collate_fn")]
    fn fetch(
        &mut self,
        samples: Samples<SampleOf<Self>>,
        cx: &mut Context<Self::Batch>,
    ) -> AnyResult<Self::Batch>;

    /// Prepares a worker before its first batch, as [`Dataset::init`](crate::Dataset::init) does.
    ///
    /// # Errors
    /// Any error: the worker is started again, as for [`Dataset::init`](crate::Dataset::init).
    #[doc(alias = "worker_init_fn")]
    fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
        _ = worker;
        Ok(())
    }

    /// Returns the name of a shard for errors, for example a path. Called in the training process.
    fn describe(&self, shard: usize) -> Option<String> {
        _ = shard;
        None
    }

    /// Returns a dataset with the shards of this dataset, followed by the shards of `other`, which has the
    /// same sample type.
    #[doc(alias = "ChainDataset")]
    fn chain<B>(self, other: B) -> ChainDataset<Self, B>
    where
        B: IterableDataset<Batch = Self::Batch>,
        B::Reader: ShardReader<Sample = SampleOf<Self>>,
    {
        ChainDataset::new(self, other)
    }
}

/// Position of a reader in a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardPosition {
    /// Number of the next sample in the shard, from 0.
    pub sample: u64,
    /// Token that [`ShardReader::token`] returned before that sample.
    pub token: Option<u64>,
}

/// Sequential reader of a shard. Iterators of results are readers without a token.
pub trait ShardReader: 'static {
    /// Type of the samples.
    type Sample: Send;

    /// Returns the next sample, or `None` at the end.
    ///
    /// # Errors
    /// Any error if this sample can't be read. The unreadable sample is counted, and the loader reads the
    /// next sample. A reader that can't continue must return `None`.
    #[doc(alias = "__next__")]
    fn read(&mut self) -> AnyResult<Option<Self::Sample>>;

    /// Returns the reader's position as a token, for example an offset in the file or the number of a record.
    /// [`open`](IterableDataset::open) gets the token, and begins at that position without reading earlier
    /// samples. With `None`, the default, `open` begins at the start of the shard, and the loader skips
    /// samples.
    ///
    /// A reader that was opened at a token must return the same token before it has read anything. Another
    /// token is an error.
    fn token(&self) -> Option<u64> {
        None
    }
}

impl<T: Send, I: Iterator<Item = AnyResult<T>> + 'static> ShardReader for I {
    type Sample = T;

    fn read(&mut self) -> AnyResult<Option<T>> {
        self.next().transpose()
    }
}

/// Shards of two datasets, returned by [`IterableDataset::chain`]. The first dataset makes the batches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChainDataset<A, B> {
    first: A,
    second: B,
    /// Number of shards of the first dataset.
    between: usize,
}

impl<A: IterableDataset, B> ChainDataset<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        let between = first.shards();
        ChainDataset { first, second, between }
    }
}

/// Reader of a [`ChainDataset`].
#[derive(Clone, Debug)]
pub enum ChainDatasetReader<A, B> {
    /// Reader of a shard of the first dataset.
    First(A),
    /// Reader of a shard of the second dataset.
    Second(B),
}

impl<A: ShardReader, B: ShardReader<Sample = A::Sample>> ShardReader for ChainDatasetReader<A, B> {
    type Sample = A::Sample;

    fn read(&mut self) -> AnyResult<Option<A::Sample>> {
        match self {
            ChainDatasetReader::First(reader) => reader.read(),
            ChainDatasetReader::Second(reader) => reader.read(),
        }
    }

    fn token(&self) -> Option<u64> {
        match self {
            ChainDatasetReader::First(reader) => reader.token(),
            ChainDatasetReader::Second(reader) => reader.token(),
        }
    }
}

impl<A, B> IterableDataset for ChainDataset<A, B>
where
    A: IterableDataset,
    B: IterableDataset<Batch = A::Batch>,
    B::Reader: ShardReader<Sample = SampleOf<A>>,
{
    type Batch = A::Batch;
    type Reader = ChainDatasetReader<A::Reader, B::Reader>;

    fn shards(&self) -> usize {
        self.between + self.second.shards()
    }

    fn open(&mut self, shard: usize, at: ShardPosition) -> AnyResult<Self::Reader> {
        match shard.checked_sub(self.between) {
            None => self.first.open(shard, at).map(ChainDatasetReader::First),
            Some(shard) => self.second.open(shard, at).map(ChainDatasetReader::Second),
        }
    }

    fn fetch(
        &mut self,
        samples: Samples<SampleOf<Self>>,
        cx: &mut Context<Self::Batch>,
    ) -> AnyResult<Self::Batch> {
        self.first.fetch(samples, cx)
    }

    fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
        self.first.init(worker)?;
        self.second.init(worker)
    }

    fn describe(&self, shard: usize) -> Option<String> {
        match shard.checked_sub(self.between) {
            None => self.first.describe(shard),
            Some(shard) => self.second.describe(shard),
        }
    }
}
