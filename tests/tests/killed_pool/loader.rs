//! Data loader whose workers die, or are stopped, at every access to shared memory, before and after each
//! row, in `init`, and while they read the dataset. Also a loader whose trainer dies at every access of
//! `next`.

use std::time::Duration;

use mp::AnyResult;
use mp::data::{Batches, Context, DataLoader, DataLoaderBuilder, Dataset, Item, WorkerInfo};
use mp::{FrozenTensor, Queue, SharedTensor, Tensor};
use mp_core::inject;
use mp_tests::kill::{KILL, STOP, each, for_every_access, killed};
use mp_tests::{DEADLINE, alive, alone, eventually, one_process, take};
use serde::{Deserialize, Serialize};

/// Point at which a worker gets its signal, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum When {
    Never,
    Reading,
    Init,
    /// Signal at the beginning of the batch with this number.
    Fetch(usize),
    /// Signal before the row of this sample is written, or after it if `true`.
    Row(usize, bool),
    /// Signal before this shard of a stream is opened, or after it if `true`.
    Open(usize, bool),
    /// Signal before this sample of a shard of a stream is read, or after it if `true`.
    Read(usize, u64, bool),
}

/// Point at which a worker arms its signal, number of accesses from there to the signal, and a record that
/// the signal was armed.
#[derive(Clone, Serialize, Deserialize)]
struct Sent {
    once: SharedTensor<u64>,
    when: When,
    at: u64,
    signal: i32,
}

/// Field of a dataset that arms a signal in the worker that reads the field.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Sent", into = "Sent")]
pub(crate) struct Plot(Sent);

impl From<Plot> for Sent {
    fn from(plot: Plot) -> Sent {
        plot.0
    }
}

impl From<Sent> for Plot {
    fn from(sent: Sent) -> Plot {
        let plot = Plot(sent);
        plot.is(When::Reading);
        plot
    }
}

impl Plot {
    pub(crate) fn new(when: When, at: u64, signal: i32) -> Plot {
        Plot(Sent { once: Tensor::zeros([1]).unwrap().share(), when, at, signal })
    }

    /// Returns `true` if the signal was armed.
    pub(crate) fn has_begun(&self) -> bool {
        self.0.once.load(0) > 0
    }

    pub(crate) fn is(&self, when: When) {
        let Sent { once, when: then, at, signal } = &self.0;
        if *then == when && once.fetch_add(0, 1) == 0 {
            inject::arm(*at, *signal);
        }
    }
}

const SAMPLES: usize = 12;
const SIZE: u64 = 3;

#[derive(Serialize, Deserialize)]
pub(crate) struct Numbers {
    plot: Plot,
    /// Values of the samples. The field follows the plot, so the values are read after the signal is armed.
    values: FrozenTensor<u64>,
    more: Vec<FrozenTensor<u64>>,
}

impl Dataset for Numbers {
    type Batch = (Tensor<u64>, Tensor<u32>);

    fn len(&self) -> usize {
        SAMPLES
    }

    fn init(&mut self, _: &WorkerInfo) -> AnyResult<()> {
        self.plot.is(When::Init);
        Ok(())
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        self.plot.is(When::Fetch(items[0].index / SIZE as usize));
        cx.rows(items, (&[20], &[]), |item, rng, (row, random)| {
            self.plot.is(When::Row(item.index, false));
            row.fill(self.values.get(&[item.index])?);
            random[0] = rng.next_u32();
            self.plot.is(When::Row(item.index, true));
            Ok(())
        })
    }
}

pub(crate) fn builder(when: When, at: u64, signal: i32, workers: usize) -> DataLoaderBuilder<Numbers> {
    let values: Vec<u64> = (0..SAMPLES as u64).map(|i| i * 7).collect();
    let frozen = || Tensor::from_slice(&values, [SAMPLES]).unwrap().freeze();
    let plot = Plot::new(when, at, signal);
    let numbers = Numbers { plot, values: frozen(), more: (0..5).map(|_| frozen()).collect() };
    DataLoader::builder(numbers).batch_size(SIZE).seed(7).num_workers(workers).retries(1000)
}

/// Checks that an epoch is whole, and in order.
fn check(batches: &mut Batches<Numbers>, plan: &mp::data::plan::Plan, what: &str) {
    for number in 0..SAMPLES as u64 / SIZE {
        let batch = match batches.next_timeout(DEADLINE) {
            Ok(Some(Ok(batch))) => batch,
            Ok(Some(Err(error))) => panic!("{what}: {error}"),
            Ok(None) => panic!("{what}: batch {number} is lost"),
            Err(late) => panic!("{what}: {late}"),
        };
        assert_eq!(batch.info.number, number, "{what}");
        let (rows, random) = &*batch;
        for (i, item) in batch.info.items.iter().enumerate() {
            assert_eq!(item.index as u64, number * SIZE + i as u64, "{what}");
            let row = &rows.as_slice().unwrap()[20 * i..20 * (i + 1)];
            assert!(row.iter().all(|value| *value == 7 * item.index as u64), "{what}: torn: {row:?}");
            let drawn = plan.rng(batch.info.epoch, item.position).next_u32();
            assert_eq!(random.as_slice().unwrap()[i], drawn, "{what}");
        }
    }
    assert!(batches.next().is_none(), "{what}");
}

/// Runs an epoch of a loader in which a worker is killed. Returns `true` if it was killed.
fn is_killed(when: When, at: u64) -> bool {
    let what = format!("{when:?}, access {at}");
    let loader = builder(when, at, KILL, 1).build().unwrap();
    check(&mut loader.epoch(0), loader.plan(), &what);
    let reached = || loader.metrics().restarts > 0;
    // The worker may also die between two batches. Its death is counted when it is reaped.
    if loader.dataset().plot.has_begun() && !reached() {
        check(&mut loader.epoch(1), loader.plan(), &what);
    }
    reached() || at <= 40
}

#[test]
fn loader_worker_killed_in_a_batch_changes_no_batch() {
    for_every_access(|at| is_killed(When::Fetch(1), at));
}

#[test]
fn loader_worker_killed_from_init_on_changes_no_batch() {
    for when in [When::Reading, When::Init] {
        for_every_access(|at| is_killed(when, at) && at <= 60);
    }
}

#[test]
fn loader_worker_killed_around_a_row_changes_no_batch() {
    let _alone = alone();
    for sample in 3..9 {
        for after in [false, true] {
            let when = When::Row(sample, after);
            // The kill is at the record of the next row or batch, which follows soon.
            assert!(is_killed(when, 1), "{when:?}");
        }
    }
}

#[test]
fn batch_of_stopped_worker_is_made_by_another_worker() {
    let _alone = alone();
    for (when, most) in [(When::Fetch(1), 300), (When::Init, 40), (When::Reading, 40)] {
        for at in each(19, most) {
            let what = format!("{when:?}, stopped at access {at}");
            let builder = builder(when, at, STOP, 2).timeout(Duration::from_millis(150));
            let loader = builder.build().unwrap();
            check(&mut loader.epoch(0), loader.plan(), &what);
        }
    }
}

/// Trainer process: runs an epoch, and is killed in it at the access `at`.
fn trainer((at, pids): (u64, Queue<Vec<u32>>)) -> AnyResult<()> {
    let loader = builder(When::Never, 0, KILL, 2).build()?;
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
    assert_eq!(batches.filter(Result::is_ok).count(), 2);
    Ok(())
}

/// Runs a trainer for every fifth access, and kills it at that access. The trainer first sends the pids of
/// its workers. The workers must end after it.
pub(super) fn kill_at_every_fifth_access<T>(trainer: T)
where
    T: Fn((u64, Queue<Vec<u32>>)) -> AnyResult<()> + Copy + Send + 'static,
{
    for_every_access(|at| {
        let at = 5 * at;
        let pids = Queue::unbounded().unwrap();
        let context = one_process(move |_, args| trainer(args), (at, pids.clone()));
        let workers = take(&pids);
        let reached = killed(&context);
        eventually("the workers of the trainer end", || !workers.iter().any(|pid| alive(*pid)));
        reached
    });
}

#[test]
fn killed_trainer_of_a_loader_leaves_no_resources() {
    kill_at_every_fifth_access(trainer);
}
