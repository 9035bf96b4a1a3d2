//! Loader of a stream whose workers die, or are stopped, at every access to shared memory while shards are
//! opened and read, and before and after each open, read and row. Also a loader whose trainer dies at every
//! access of `next`.

use std::time::Duration;

use mp::AnyResult;
use mp::data::{
    Context, IterableDataset, LoadedBatch, SampleOf, Samples, ShardPosition, ShardReader, StreamBatches,
    StreamLoader, StreamLoaderBuilder, WorkerInfo,
};
use mp::{FrozenTensor, Queue, Tensor};
use mp_core::inject;
use mp_tests::kill::{KILL, STOP, each, for_every_access};
use mp_tests::{DEADLINE, alone};
use serde::{Deserialize, Serialize};

use super::loader::{Plot, When, kill_at_every_fifth_access};

/// Numbers of samples of the shards: two lanes, of eight and of five.
const SHARDS: [u64; 4] = [5, 4, 3, 1];
const SIZE: u64 = 3;

#[derive(Serialize, Deserialize)]
pub(crate) struct Shards {
    plot: Plot,
    /// Values of the samples. The field follows the plot, so the values are read after the signal is armed.
    values: FrozenTensor<u64>,
}

pub(crate) struct Reader {
    plot: Plot,
    shard: usize,
    next: u64,
}

impl ShardReader for Reader {
    type Sample = (usize, u64);

    fn read(&mut self) -> AnyResult<Option<(usize, u64)>> {
        let sample = self.next;
        self.plot.is(When::Read(self.shard, sample, false));
        if sample == SHARDS[self.shard] {
            return Ok(None);
        }
        self.next += 1;
        self.plot.is(When::Read(self.shard, sample, true));
        Ok(Some((self.shard, sample)))
    }

    /// Returns tokens only for every second shard. In the other shards, a worker skips samples by reading
    /// them.
    fn token(&self) -> Option<u64> {
        self.shard.is_multiple_of(2).then_some(self.next * 10)
    }
}

type Columns = (Tensor<u64>, Tensor<u32>);

impl IterableDataset for Shards {
    type Batch = Columns;
    type Reader = Reader;

    fn shards(&self) -> usize {
        SHARDS.len()
    }

    fn init(&mut self, _: &WorkerInfo) -> AnyResult<()> {
        self.plot.is(When::Init);
        Ok(())
    }

    fn open(&mut self, shard: usize, at: ShardPosition) -> AnyResult<Reader> {
        self.plot.is(When::Open(shard, false));
        let reader = Reader { plot: self.plot.clone(), shard, next: at.token.map_or(0, |token| token / 10) };
        self.plot.is(When::Open(shard, true));
        Ok(reader)
    }

    fn fetch(&mut self, samples: Samples<SampleOf<Self>>, cx: &mut Context<Columns>) -> AnyResult<Columns> {
        cx.rows_from(samples, (&[20], &[]), |(shard, sample), rng, (row, random)| {
            let index = shard * 10 + sample as usize;
            self.plot.is(When::Row(index, false));
            row.fill(self.values.get(&[index])?);
            random[0] = rng.next_u32();
            self.plot.is(When::Row(index, true));
            Ok(())
        })
    }
}

pub(crate) fn builder(
    when: When,
    at: u64,
    signal: i32,
    workers: usize,
    window: u64,
) -> StreamLoaderBuilder<Shards> {
    let values: Vec<u64> = (0..40).map(|i| i * 7).collect();
    let values = Tensor::from_slice(&values, [40]).unwrap().freeze();
    let shards = Shards { plot: Plot::new(when, at, signal), values };
    let builder = StreamLoader::builder(shards).batch_size(SIZE).lanes(2).seed(7).num_workers(workers);
    let builder = if window > 0 { builder.shuffle_window(window) } else { builder };
    builder.retries(1000)
}

/// Contents of a batch: its number, the shards of its samples, its rows, and the random numbers of the rows.
type Bytes = (u64, Vec<usize>, Vec<u64>, Vec<u32>);

fn bytes(batch: &LoadedBatch<Columns>) -> Bytes {
    let (rows, random) = &**batch;
    (batch.info.number, batch.info.shards.clone(), rows.to_vec(), random.to_vec())
}

/// Returns all batches of the epoch, as a loader without workers makes them.
fn expected(window: u64) -> Vec<Bytes> {
    let loader = builder(When::Never, 0, KILL, 0, window).build().unwrap();
    let all: Vec<Bytes> = loader.epoch(0).map(|batch| bytes(&batch.unwrap())).collect();
    assert_eq!(all.iter().map(|batch| batch.1.len() as u64).sum::<u64>(), SHARDS.iter().sum());
    all
}

fn check(mut batches: StreamBatches<Shards>, expected: &[Bytes], what: &str) {
    for batch in expected {
        let found = match batches.next_timeout(DEADLINE) {
            Ok(Some(Ok(found))) => bytes(&found),
            Ok(Some(Err(error))) => panic!("{what}: {error}"),
            Ok(None) => panic!("{what}: batch {} is lost", batch.0),
            Err(late) => panic!("{what}: {late}"),
        };
        assert!(found == *batch, "{what}: torn: {found:?} in the place of {batch:?}");
    }
    assert!(batches.next().is_none(), "{what}");
}

/// Runs an epoch of a loader in which a worker is killed. Returns `true` if it was killed.
fn is_killed(when: When, at: u64, (window, expected): &(u64, Vec<Bytes>)) -> bool {
    let what = format!("{when:?}, access {at}, window {window}");
    let loader = builder(when, at, KILL, 1, *window).build().unwrap();
    check(loader.epoch(0), expected, &what);
    let reached = || loader.metrics().restarts > 0;
    // The worker may also die between two batches. Its death is counted when it is reaped.
    if loader.dataset().plot.has_begun() && !reached() {
        check(loader.epoch(0), expected, &what);
    }
    reached() || at <= 40
}

#[test]
fn stream_worker_killed_in_a_batch_changes_no_batch() {
    // Without a window, from the open of a shard in the middle of a lane on. With a window, from a read in
    // the second half of a window on.
    for (when, window) in [(When::Open(2, false), 0), (When::Read(0, 3, false), 4)] {
        let all = (window, expected(window));
        for_every_access(|at| is_killed(when, at, &all));
    }
}

#[test]
fn stream_worker_killed_from_init_on_changes_no_batch() {
    let all = (0, expected(0));
    for when in [When::Reading, When::Init] {
        for_every_access(|at| is_killed(when, at, &all) && at <= 60);
    }
}

#[test]
fn stream_worker_killed_around_a_row_changes_no_batch() {
    let _alone = alone();
    let all = [0, 4].map(|window| (window, expected(window)));
    for after in [false, true] {
        for (shard, samples) in SHARDS.into_iter().enumerate() {
            let of_it =
                |sample| [When::Read(shard, sample, after), When::Row(shard * 10 + sample as usize, after)];
            let moments = (0..samples).flat_map(of_it).chain([When::Open(shard, after)]);
            for when in moments {
                // The kill is at the next record, which follows soon.
                assert!(all.iter().all(|all| is_killed(when, 1, all)), "{when:?}");
            }
        }
    }
}

#[test]
fn lane_of_a_stopped_worker_moves_to_another() {
    let _alone = alone();
    let expected = expected(4);
    for (when, most) in [(When::Open(2, false), 300), (When::Read(1, 2, true), 300)] {
        for at in each(19, most) {
            let what = format!("{when:?}, stopped at access {at}");
            let builder = builder(when, at, STOP, 2, 4).timeout(Duration::from_millis(150));
            check(builder.build().unwrap().epoch(0), &expected, &what);
        }
    }
}

/// Trainer process: runs an epoch, and is killed in it at the access `at`.
fn trainer((at, pids): (u64, Queue<Vec<u32>>)) -> AnyResult<()> {
    let loader = builder(When::Never, 0, KILL, 2, 4).build()?;
    let mut batches = loader.epoch(0);
    drop(batches.next());
    pids.put(loader.pids()).map_err(|error| error.to_string())?;
    inject::arm(at, KILL);
    let state = batches.state();
    drop(batches.next());
    batches = loader.resume(&state)?;
    let batch = batches.next().ok_or("the second batch is lost")??;
    assert_eq!(batch.info.number, 1);
    drop(batch);
    assert_eq!(batches.filter(Result::is_ok).count(), 3);
    Ok(())
}

#[test]
fn killed_stream_trainer_leaves_no_resources() {
    kill_at_every_fifth_access(trainer);
}
