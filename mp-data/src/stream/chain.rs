//! Two datasets as one.

use serde::{Deserialize, Serialize};

use super::dataset::{IterableDataset, SampleOf, ShardPosition, ShardReader};
use crate::dataset::samples::Samples;
use crate::{AnyResult, Context, WorkerInfo};

/// The shards of two datasets: made by [`IterableDataset::chain`]. The first one makes the batches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chain<A, B> {
    first: A,
    second: B,
    /// Number of shards of the first dataset.
    between: usize,
}

impl<A: IterableDataset, B> Chain<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        let between = first.shards();
        Chain { first, second, between }
    }
}

/// The reader of a [`Chain`].
#[derive(Clone, Debug)]
pub enum ChainReader<A, B> {
    /// Reader of a shard of the first dataset.
    First(A),
    /// Reader of a shard of the second.
    Second(B),
}

impl<A: ShardReader, B: ShardReader<Sample = A::Sample>> ShardReader for ChainReader<A, B> {
    type Sample = A::Sample;

    fn read(&mut self) -> AnyResult<Option<A::Sample>> {
        match self {
            ChainReader::First(reader) => reader.read(),
            ChainReader::Second(reader) => reader.read(),
        }
    }

    fn token(&self) -> Option<u64> {
        match self {
            ChainReader::First(reader) => reader.token(),
            ChainReader::Second(reader) => reader.token(),
        }
    }
}

impl<A, B> IterableDataset for Chain<A, B>
where
    A: IterableDataset,
    B: IterableDataset<Batch = A::Batch>,
    B::Reader: ShardReader<Sample = SampleOf<A>>,
{
    type Batch = A::Batch;
    type Reader = ChainReader<A::Reader, B::Reader>;

    fn shards(&self) -> usize {
        self.between + self.second.shards()
    }

    fn open(&mut self, shard: usize, at: ShardPosition) -> AnyResult<Self::Reader> {
        match shard.checked_sub(self.between) {
            None => self.first.open(shard, at).map(ChainReader::First),
            Some(shard) => self.second.open(shard, at).map(ChainReader::Second),
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
