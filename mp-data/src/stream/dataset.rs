//! Traits and types for users: shards, readers, and how samples become a batch.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::dataset::context::Context;
use crate::dataset::info::WorkerInfo;
use crate::dataset::samples::Samples;
use crate::{AnyResult, Batch};

/// The type of a dataset's samples.
pub type SampleOf<D> = <<D as IterableDataset>::Reader as ShardReader>::Sample;

/// Samples that are read one after the other, from shards: files, ranges, partitions. It is sent to each
/// worker once.
///
/// ```
/// use mp_data::{AnyResult, Context, IterableDataset, SampleOf, Samples};
/// use mp_data::{ShardPosition, ShardReader, StreamLoader, Tensor};
/// use serde::{Deserialize, Serialize};
///
/// /// UserValues shard counts up from a number.
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
///     // Where it is, in the words of `open`: a byte offset, a row group.
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
/// # What a batch may depend on
/// The dataset as it was sent, the samples, and the random numbers that come with them; what is kept in
/// `self` is a cache. A shard gives the same samples in the same order each time, and a reader that is opened
/// at a token what it would have given after that token. Then batches are the same, bit by bit, for any
/// number of workers; [`StreamLoader::verify`](crate::StreamLoader::verify) looks after that.
///
/// # When it fails
/// | what happens | is lost |
/// |---|---|
/// | `fetch`, or a row, or `read` returns an error; a row panics or kills its worker | that batch, or, with [`SkipSample`](crate::OnError::SkipSample), that sample |
/// | `open` returns an error, or panics; `read` panics; a worker dies in them each time, or is too slow | the rest of that shard; the lane goes on with its next shard |
///
/// The error in a batch's place names shard and sample, and the epoch goes on. No sample of another shard is
/// lost with a shard's rest, and none comes twice. If a shard turns out to be shorter after a batch of it was
/// lost, samples of that batch may be tried once more.
pub trait IterableDataset: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Type of the batches.
    type Batch: Batch;
    /// Type of the readers of shards.
    type Reader: ShardReader;

    /// Returns the number of shards. The loader asks once.
    fn shards(&self) -> usize;

    /// Opens a shard: the reader gives sample number `at.sample` next. Without a token that is 0: the loader
    /// itself reads over samples, if readers have no [`token`](ShardReader::token).
    ///
    /// # Errors
    /// Whatever a shard can't be opened for.
    #[doc(alias = "__iter__")]
    fn open(&mut self, shard: usize, at: ShardPosition) -> AnyResult<Self::Reader>;

    /// Makes a batch of these samples, in this order.
    ///
    /// # Errors
    /// Whatever a sample can't be made for.
    #[doc(alias = "collate_fn")]
    fn fetch(
        &mut self,
        samples: Samples<SampleOf<Self>>,
        cx: &mut Context<Self::Batch>,
    ) -> AnyResult<Self::Batch>;

    /// Called once in each worker before its first batch, as [`Dataset::init`](crate::Dataset::init).
    ///
    /// # Errors
    /// What becomes of a worker that can't begin: as there.
    #[doc(alias = "worker_init_fn")]
    fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
        _ = worker;
        Ok(())
    }

    /// Returns the name of a shard for errors: a path, for example. Called in the trainer.
    fn describe(&self, shard: usize) -> Option<String> {
        _ = shard;
        None
    }

    /// The shards of this dataset, and behind them those of another one whose samples are of the same type.
    #[doc(alias = "ChainDataset")]
    fn chain<B>(self, other: B) -> ChainDataset<Self, B>
    where
        B: IterableDataset<Batch = Self::Batch>,
        B::Reader: ShardReader<Sample = SampleOf<Self>>,
    {
        ChainDataset::new(self, other)
    }
}

/// Place of a reader in a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardPosition {
    /// The number of the sample that comes next.
    pub sample: u64,
    /// Token that [`ShardReader::token`] returned when that sample came next.
    pub token: Option<u64>,
}

/// Reads a shard from front to back. Iterators of results are readers, without a token.
pub trait ShardReader: 'static {
    /// Type of the samples.
    type Sample: Send;

    /// The next sample; `None` at the end.
    ///
    /// # Errors
    /// This sample can't be read: it counts as one. The reader is asked for the next one, and says `None` if
    /// it can't go on.
    #[doc(alias = "__next__")]
    fn read(&mut self) -> AnyResult<Option<Self::Sample>>;

    /// Returns the reader's place as a token with which [`open`](IterableDataset::open) finds it again
    /// without reading what is before: an offset in the file, the number of a record. `None`, as without
    /// this: `open` begins at the front, and samples are read over.
    ///
    /// The reader that was opened there has to say the same token before it has read anything, else that is
    /// an error.
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

/// The shards of two datasets: made by [`IterableDataset::chain`]. The first one makes the batches.
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

/// The reader of a [`ChainDataset`].
#[derive(Clone, Debug)]
pub enum ChainDatasetReader<A, B> {
    /// Reader of a shard of the first dataset.
    First(A),
    /// Reader of a shard of the second.
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
