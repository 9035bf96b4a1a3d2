//! Dataset of shards with configurable faults, and its batches as bytes.

use std::time::Duration;

use mp_data::{
    AnyResult, Context, IterableDataset, LoadError, LoadedBatch, SampleOf, Samples, ShardPosition,
    ShardReader, StreamBatches, StreamLoader, StreamLoaderBuilder,
};
use mp_tensor::{SharedTensor, Tensor};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::{DEADLINE, Fault, signal};

/// Operation at which a fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum When {
    Open,
    Read,
    Row,
    Fetch,
}

/// Wildcard for the shard number of a fault. The next constant is the wildcard for the sample number.
pub const ANY_SHARD: usize = usize::MAX;
pub const ANY_SAMPLE: u64 = u64::MAX;

#[derive(Clone, Serialize, Deserialize)]
pub struct Faults {
    at: Vec<(When, usize, u64, Fault)>,
    /// Remaining number of times that each fault happens.
    times: Vec<SharedTensor<i64>>,
}

impl Faults {
    fn happen(&self, when: When, shard: usize, sample: u64) -> AnyResult<()> {
        let is_here = |at: &(When, usize, u64, Fault)| {
            at.0 == when && [shard, ANY_SHARD].contains(&at.1) && [sample, ANY_SAMPLE].contains(&at.2)
        };
        let Some(i) = self.at.iter().position(is_here) else { return Ok(()) };
        if self.times[i].fetch_sub(0, 1) <= 0 {
            return Ok(());
        }
        self.at[i].3.happens(&format!("{when:?} of {sample} in {shard}"))
    }
}

/// Dataset of shards, with these numbers of samples.
#[derive(Serialize, Deserialize)]
pub struct Shards {
    pub sizes: Vec<u64>,
    /// `true` if readers have tokens.
    pub tokens: bool,
    /// Number of samples that a reader wrongly skips if it is opened at a token.
    pub lies: u64,
    pub faults: Faults,
    /// Number of times that a shard was opened, in all processes.
    pub opened: SharedTensor<i64>,
}

impl Shards {
    pub fn new(sizes: &[u64]) -> Self {
        let faults = Faults { at: Vec::new(), times: Vec::new() };
        let opened = Tensor::full([1], 0).unwrap().share();
        Shards { sizes: sizes.to_vec(), tokens: true, lies: 0, faults, opened }
    }

    /// Adds a fault at a sample of a shard, which happens this number of times, or always if `times` is
    /// negative.
    pub fn with(mut self, (when, shard, sample): (When, usize, u64), fault: Fault, times: i64) -> Self {
        self.faults.at.push((when, shard, sample, fault));
        let times = if times < 0 { i64::MAX } else { times };
        self.faults.times.push(Tensor::full([1], times).unwrap().share());
        self
    }

    pub fn without_tokens(self) -> Self {
        Shards { tokens: false, ..self }
    }
}

pub struct Reader {
    shard: usize,
    next: u64,
    end: u64,
    tokens: bool,
    faults: Faults,
}

/// A token is an offset in bytes, with ten bytes for each sample.
impl ShardReader for Reader {
    type Sample = (usize, u64);

    fn read(&mut self) -> AnyResult<Option<(usize, u64)>> {
        if self.next == self.end {
            return Ok(None);
        }
        self.next += 1;
        self.faults.happen(When::Read, self.shard, self.next - 1)?;
        Ok(Some((self.shard, self.next - 1)))
    }

    fn token(&self) -> Option<u64> {
        self.tokens.then_some(self.next * 10)
    }
}

pub type Columns = (Tensor<u64>, mp_data::Ragged<u8>);

impl IterableDataset for Shards {
    type Batch = Columns;
    type Reader = Reader;

    fn shards(&self) -> usize {
        self.sizes.len()
    }

    fn open(&mut self, shard: usize, at: ShardPosition) -> AnyResult<Reader> {
        self.opened.fetch_add(0, 1);
        self.faults.happen(When::Open, shard, at.sample)?;
        assert_eq!(at.token.is_some(), self.tokens && at.sample > 0, "{at:?}");
        let next = at.token.map_or(0, |token| token / 10 + self.lies);
        let (end, tokens) = (self.sizes[shard], self.tokens);
        Ok(Reader { shard, next, end, tokens, faults: self.faults.clone() })
    }

    fn fetch(&mut self, samples: Samples<SampleOf<Self>>, cx: &mut Context<Columns>) -> AnyResult<Columns> {
        let epoch = cx.epoch();
        for (shard, sample) in samples.as_slice() {
            self.faults.happen(When::Fetch, *shard, *sample)?;
        }
        cx.rows_from(samples, (&[4], ()), |(shard, sample), rng, (numbers, bytes)| {
            self.faults.happen(When::Row, shard, sample)?;
            numbers.copy_from_slice(&[shard as u64, sample, epoch, rng.next_u64()]);
            bytes.extend((0..sample % 3).map(|_| rng.next_u32() as u8));
            Ok(())
        })
    }

    fn describe(&self, shard: usize) -> Option<String> {
        Some(format!("shard-{shard}.tar"))
    }
}

/// Contents of a batch: epoch, batch number, numbers of the rows, and bytes.
pub type Streamed = (u64, u64, Vec<u64>, Vec<u8>);

pub fn streamed(batch: &LoadedBatch<Columns>) -> Streamed {
    let (numbers, bytes) = &**batch;
    let info = &batch.info;
    assert_eq!(numbers.shape(), [info.items.len(), 4]);
    let all = numbers.to_vec();
    for ((row, item), shard) in all.chunks(4).zip(&info.items).zip(&info.shards) {
        assert_eq!((row[0], row[1]), (*shard as u64, item.index as u64));
    }
    (info.epoch, info.number, all, bytes.values().to_vec())
}

pub fn streaming(sizes: &[u64], workers: usize) -> StreamLoaderBuilder<Shards> {
    streaming_of(Shards::new(sizes), workers)
}

pub fn streaming_of(shards: Shards, workers: usize) -> StreamLoaderBuilder<Shards> {
    StreamLoader::builder(shards).batch_size(4).seed(17).num_workers(workers)
}

/// Returns the next batch, which must arrive before the deadline.
#[track_caller]
pub fn next_of<D: IterableDataset>(
    batches: &mut StreamBatches<D>,
) -> Option<Result<LoadedBatch<D::Batch>, LoadError>> {
    match batches.next_timeout(DEADLINE) {
        Ok(next) => next,
        Err(late) => panic!("not within {DEADLINE:?}: {late}"),
    }
}

/// Returns all remaining batches.
#[track_caller]
pub fn all_of(mut batches: StreamBatches<Shards>) -> Vec<Streamed> {
    let mut all = Vec::new();
    while let Some(batch) = next_of(&mut batches) {
        all.push(streamed(&batch.unwrap()));
    }
    all
}

/// Returns shard and sample of each row.
pub fn places(batches: &[Streamed]) -> Vec<(u64, u64)> {
    batches.iter().flat_map(|batch| batch.2.chunks(4).map(|row| (row[0], row[1]))).collect()
}
