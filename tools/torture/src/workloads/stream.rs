//! Workload with a data loader of shards. The trainer and the workers of its loader are killed and stopped.
//!
//! | killed process | guarantee |
//! |---|---|
//! | a worker, during any operation | no sample is lost: each sample is delivered once, at its position in its lane, with the random numbers that follow from seed, epoch and position |
//! | the trainer | its workers end, and the memory of all batches is freed |
//! | none, but the trainer drops an epoch | a saved state is exact: a resumed epoch begins with the next batch |

use std::collections::BTreeSet;
use std::time::Duration;

use mp::data::plan::SampleRng;
use mp::data::{
    Context, IterableDataset, LoadedBatch, SampleOf, Samples, ShardPosition, ShardReader, StreamLoader,
};
use mp::{AnyResult, Tensor};
use serde::{Deserialize, Serialize};

use crate::bookkeeping::board::Op;
use crate::random::mix;
use crate::rounds::copies;
use crate::workloads::loader::LOADERS;
use crate::workloads::pool::Torment;
use crate::workloads::work::Worker;

const BATCH: u64 = 4;

type Columns = (Tensor<u64>, Tensor<u32>);

/// Dataset of shards. `sizes` are the numbers of samples of the shards. Rows are computed from shard, sample,
/// epoch and position.
#[derive(Serialize, Deserialize)]
struct Shards {
    sizes: Vec<u64>,
    len: usize,
}

struct Reader {
    shard: usize,
    next: u64,
    end: u64,
}

impl ShardReader for Reader {
    type Sample = (usize, u64);

    fn read(&mut self) -> AnyResult<Option<(usize, u64)>> {
        let sample = self.next;
        self.next += 1;
        Ok((sample < self.end).then_some((self.shard, sample)))
    }

    /// Returns a token for every second shard. Without a token, a resumed reader skips samples by reading
    /// them.
    fn token(&self) -> Option<u64> {
        self.shard.is_multiple_of(2).then_some(self.next)
    }
}

fn content(shard: usize, sample: u64, epoch: u64) -> u64 {
    mix(sample ^ (shard as u64) << 32 ^ epoch << 48)
}

impl IterableDataset for Shards {
    type Batch = Columns;
    type Reader = Reader;

    fn shards(&self) -> usize {
        self.sizes.len()
    }

    fn open(&mut self, shard: usize, at: ShardPosition) -> AnyResult<Reader> {
        Ok(Reader { shard, next: at.token.unwrap_or(0), end: self.sizes[shard] })
    }

    fn fetch(&mut self, samples: Samples<SampleOf<Self>>, cx: &mut Context<Columns>) -> AnyResult<Columns> {
        let epoch = cx.epoch();
        cx.rows_from(samples, (&[self.len], &[]), |(shard, sample), rng, (row, random)| {
            row.fill(content(shard, sample, epoch));
            random[0] = rng.next_u32();
            // Some samples take a while, so that signals arrive during the sample.
            for _ in 0..sample % 40 {
                std::thread::yield_now();
            }
            Ok(())
        })
    }
}

/// Samples that were received in an epoch.
struct EpochSamples {
    /// `true` if the samples of a lane arrive in order.
    ordered: bool,
    seed: u64,
    epoch: u64,
    /// Received samples of each lane: shard, and number in the shard.
    lanes: Vec<Vec<(usize, u64)>>,
}

impl EpochSamples {
    /// Checks a batch, and returns the id of the process that made it.
    fn check(&mut self, batch: &LoadedBatch<Columns>, sizes: &[u64]) -> AnyResult<u32> {
        let info = &batch.info;
        let (lanes, epoch) = (self.lanes.len() as u64, self.epoch);
        let (round, lane) = (info.number / lanes, (info.number % lanes) as usize);
        let all = self.lanes.len();
        let given = &mut self.lanes[lane];
        if info.epoch != epoch || given.len() as u64 != round * BATCH {
            return Err(format!("torn: {info:?} came in epoch {epoch}, behind {given:?}").into());
        }
        let (rows, random) = &**batch;
        let (rows, random) = (rows.as_slice()?, random.as_slice()?);
        let len = rows.len() / info.items.len();
        for (((item, shard), row), random) in
            info.items.iter().zip(&info.shards).zip(rows.chunks(len)).zip(random)
        {
            let (shard, sample) = (*shard, item.index as u64);
            let expected = content(shard, sample, epoch);
            if let Some(found) = row.iter().find(|value| **value != expected) {
                let what = format!("sample {sample} of shard {shard} of epoch {epoch}");
                return Err(format!("torn: the row of {what} has {found:#x}").into());
            }
            if *random != SampleRng::new(self.seed, epoch, item.position).next_u32() {
                return Err(
                    format!("torn: the random number of {item:?} of epoch {epoch} is {random:#x}").into()
                );
            }
            given.push((shard, sample));
        }
        let so_far = given.len();
        if self.ordered && *given != of_lane(sizes, lane, all).take(so_far).collect::<Vec<_>>() {
            return Err(format!("torn: lane {lane} of epoch {epoch} gave {given:?}").into());
        }
        Ok(info.pid)
    }

    /// Checks that each sample was delivered exactly once.
    fn settle(&self, sizes: &[u64]) -> AnyResult<()> {
        let all = || self.lanes.iter().flatten();
        let once: BTreeSet<_> = all().collect();
        if once.len() < all().count() {
            return Err(format!("torn: samples came twice: {:?}", self.lanes).into());
        }
        if (once.len() as u64) < sizes.iter().sum() {
            return Err(
                format!("lost: samples of shards of {sizes:?} samples, only {:?} came", self.lanes).into()
            );
        }
        Ok(())
    }
}

/// Returns the samples of a lane in order: shard, and number in the shard.
fn of_lane(sizes: &[u64], lane: usize, lanes: usize) -> impl Iterator<Item = (usize, u64)> {
    let shards = (lane..sizes.len()).step_by(lanes);
    shards.flat_map(|shard| (0..sizes[shard]).map(move |sample| (shard, sample)))
}

impl Worker {
    /// Loads batches from a data loader of shards until the round has ended, like
    /// [`own_loader`](Self::own_loader).
    pub(crate) fn own_stream(&mut self, copies: bool) -> AnyResult<()> {
        let method = self.random.pick(copies::methods(copies));
        let sizes: Vec<u64> = (0..4 + self.random.below(4)).map(|_| self.random.below(20)).collect();
        let window = self.random.pick(&[0, 0, 7]);
        let shards = Shards { sizes: sizes.clone(), len: self.random.pick(&[1, 30, 3000]) };
        let loader: StreamLoader<Shards> = StreamLoader::builder(shards)
            .batch_size(BATCH)
            .lanes(self.random.pick(&[1, 3]))
            .shuffle_window(window)
            .shuffle(window > 0)
            .seed(self.mark)
            .num_workers(LOADERS)
            .threads_per_worker(self.random.pick(&[1, 2]))
            .prefetch_factor(self.random.pick(&[1, 2, 4]))
            .retries(u32::MAX)
            .start_method(method)
            .build()?;
        let mut torment = Torment::default();
        let mut epoch = 0;
        while !self.row.over() {
            let lanes = vec![Vec::new(); loader.lanes() as usize];
            let mut given = EpochSamples { ordered: window == 0, seed: self.mark, epoch, lanes };
            let mut batches = loader.epoch(epoch);
            for number in 0.. {
                self.row.note(Op::Collect, number);
                if self.random.percent(10) {
                    // Batches in progress are dropped, and made again.
                    batches = loader.resume(&batches.state())?;
                }
                let batch = loop {
                    if self.row.over() {
                        // Other workers wait for this worker to end, so the rest of the epoch is dropped.
                        torment.let_go();
                        self.row.note(Op::Leave, epoch);
                        return Ok(());
                    }
                    torment.go_on(&mut self.random, &loader.pids());
                    // Pace of the torture.
                    if let Ok(batch) = batches.next_timeout(Duration::from_millis(1)) {
                        break batch;
                    }
                };
                let Some(batch) = batch else { break };
                torment.has_done(given.check(&batch?, &sizes)?);
            }
            given.settle(&sizes)?;
            torment.let_go();
            epoch += 1;
        }
        self.row.note(Op::Leave, epoch);
        Ok(())
    }
}
