//! Helpers of the loader's tests: a dataset with configurable faults, and batches as bytes. Each wait here
//! has a deadline.
#![allow(dead_code, unused_imports, unreachable_pub, missing_docs)]

pub mod measured;
pub mod shards;

use std::time::Duration;

use mp_core::{Arena, MemoryStats};
use mp_data::{
    AnyResult, Batches, Context, DataLoader, DataLoaderBuilder, Dataset, Item, LoadError, LoadedBatch,
    LoaderState, Ragged, Strings, WorkerInfo,
};
pub use mp_harness::{DEADLINE, alive, eventually, signal, threads_are};
use mp_queue::Queue;
use mp_tensor::{SharedTensor, Tensor};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// Failure at a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    Error,
    Panic,
    Kill,
    Hang,
    /// Stops the process until it is continued.
    Stop,
    Segfault,
}

impl Fault {
    pub fn happens(self, what: &str) -> AnyResult<()> {
        match self {
            Fault::Error => return Err(format!("{what} is bad").into()),
            Fault::Panic => panic!("{what} panics"),
            Fault::Kill => signal(std::process::id(), Signal::KILL),
            Fault::Hang => std::thread::sleep(Duration::from_secs(600)), // sleep: simulates a hanging sample
            Fault::Stop => signal(std::process::id(), Signal::STOP),
            Fault::Segfault => {
                eprintln!("about to read what is not there");
                signal(std::process::id(), Signal::SEGV);
            }
        }
        Ok(())
    }
}

/// Dataset whose samples have bytes that depend on index, position, seed and epoch. A sample may have a
/// fault, which happens at most `times` times.
#[derive(Serialize, Deserialize)]
pub struct Samples {
    pub len: usize,
    pub faults: Vec<(usize, Fault)>,
    /// Remaining number of times that each fault happens.
    pub times: Vec<SharedTensor<i64>>,
    #[serde(skip)]
    pub fetched: u64,
}

impl Samples {
    pub fn new(len: usize) -> Self {
        Samples { len, faults: Vec::new(), times: Vec::new(), fetched: 0 }
    }

    /// Adds a fault at a sample, which happens this number of times, or always if `times` is negative.
    pub fn with(mut self, index: usize, fault: Fault, times: i64) -> Self {
        self.faults.push((index, fault));
        let times = if times < 0 { i64::MAX } else { times };
        self.times.push(Tensor::full([1], times).unwrap().share());
        self
    }

    fn fault(&self, index: usize) -> Option<Fault> {
        let at = self.faults.iter().position(|(of, _)| *of == index)?;
        let before = self.times[at].fetch_sub(0, 1);
        (before > 0).then_some(self.faults[at].1)
    }
}

pub type Columns = (Tensor<u64>, Ragged<u8>, Strings);

impl Dataset for Samples {
    type Batch = Columns;

    fn len(&self) -> usize {
        self.len
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Columns>) -> AnyResult<Columns> {
        self.fetched += 1;
        let epoch = cx.epoch();
        cx.rows(items, (&[3], (), ()), |item, rng, (numbers, bytes, text)| {
            if let Some(fault) = self.fault(item.index) {
                fault.happens(&format!("sample {}", item.index))?;
            }
            numbers.copy_from_slice(&[item.index as u64, epoch, rng.next_u64()]);
            bytes.extend((0..item.index % 5).map(|_| rng.next_u32() as u8));
            text.push_str(&format!("{} at {}", item.index, item.position));
            Ok(())
        })
    }

    fn describe(&self, index: usize) -> Option<String> {
        Some(format!("number {index}"))
    }
}

/// Description and bytes of a batch, for comparison.
pub type Bytes = (u64, u64, Vec<usize>, Vec<u64>, Vec<u8>, Vec<String>);

pub fn bytes(batch: &LoadedBatch<Columns>) -> Bytes {
    let (numbers, ragged, strings) = &**batch;
    let info = &batch.info;
    assert_eq!(numbers.shape(), [info.items.len(), 3]);
    let rows = (0..ragged.len()).flat_map(|row| ragged.row(row).unwrap().to_vec()).collect();
    (info.epoch, info.number, info.indices(), numbers.to_vec(), rows, strings.to_vec().unwrap())
}

/// Returns the next batch, which must arrive before the deadline.
#[track_caller]
pub fn next<D: Dataset>(batches: &mut Batches<D>) -> Option<Result<LoadedBatch<D::Batch>, LoadError>> {
    match batches.next_timeout(DEADLINE) {
        Ok(next) => next,
        Err(late) => panic!("not within {DEADLINE:?}: {late}"),
    }
}

/// Returns all remaining batches.
#[track_caller]
pub fn all(mut batches: Batches<Samples>) -> Vec<Bytes> {
    let mut all = Vec::new();
    while let Some(batch) = next(&mut batches) {
        all.push(bytes(&batch.unwrap()));
    }
    all
}

pub fn builder(len: usize, workers: usize) -> DataLoaderBuilder<Samples> {
    builder_of(Samples::new(len), workers)
}

pub fn builder_of(samples: Samples, workers: usize) -> DataLoaderBuilder<Samples> {
    bare(samples, workers).batch_size(4).shuffle(true)
}

/// Returns a builder without batch size and order, for tests that set these by samplers.
pub fn bare(samples: Samples, workers: usize) -> DataLoaderBuilder<Samples> {
    DataLoader::builder(samples).seed(17).num_workers(workers)
}

/// Saves a state as JSON and loads it again.
pub fn kept(state: &LoaderState) -> LoaderState {
    serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap()
}

/// Returns counts of shared memory that a leak would change.
pub fn in_use() -> (u64, u64, u64) {
    let MemoryStats { live_blocks, queued, members, .. } = Arena::current().unwrap().memory_stats();
    (live_blocks, queued, members)
}

/// Reproducible random numbers: splitmix64.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % limit
    }
}

/// Dataset whose workers can't start.
#[derive(Serialize, Deserialize)]
pub struct NoDecoder;

impl Dataset for NoDecoder {
    type Batch = Tensor<u8>;

    fn len(&self) -> usize {
        4
    }

    fn init(&mut self, _: &WorkerInfo) -> AnyResult<()> {
        Err("there is no decoder".into())
    }

    fn fetch(&mut self, _: &[Item], _: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        unreachable!("init has failed")
    }
}
