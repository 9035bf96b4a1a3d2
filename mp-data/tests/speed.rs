//! How fast the loader is: `cargo test --release -p mp-data --test speed -- --ignored --nocapture`. What it prints is compared by a
//! reader; it asserts that the batches are right.

use std::time::{Duration, Instant};

use mp_data::plan::{Batching, Shuffle};
use mp_data::{
    AnyResult, Context, DataLoader, DataLoaderBuilder, Dataset, Item, IterableDataset, Position, Samples,
};
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Rows of one number, of this shape.
#[derive(Serialize, Deserialize)]
struct Filled(usize, Vec<usize>);

impl Dataset for Filled {
    type Batch = Tensor<f32>;

    fn len(&self) -> usize {
        self.0
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Tensor<f32>>) -> AnyResult<Tensor<f32>> {
        cx.rows(items, &self.1, |item, _, row| {
            row.fill(item.index as f32);
            Ok(())
        })
    }
}

/// The median of seven rounds.
fn median(mut round: impl FnMut() -> Duration) -> Duration {
    let mut rounds: Vec<Duration> = (0..7).map(|_| round()).collect();
    rounds.sort_unstable();
    rounds[3]
}

#[test]
#[ignore = "it measures"]
fn speed() {
    let first = median(|| {
        let start = Instant::now();
        let loader = DataLoader::builder(Filled(1000, vec![])).batch_size(4).num_workers(2).build().unwrap();
        let batch = loader.epoch(0).next().unwrap().unwrap();
        let took = start.elapsed();
        assert_eq!(batch.to_vec(), [0.0, 1.0, 2.0, 3.0]);
        took
    });
    println!("from build to the first batch of 4 numbers: {first:.2?}");

    for (workers, prefetch) in [(0, 2), (1, 2), (1, 8), (2, 2), (2, 8)] {
        overhead(workers, prefetch);
    }

    let loader = DataLoader::builder(Filled(64 * 200, vec![3, 224, 224]))
        .batch_size(64)
        .num_workers(2)
        .build()
        .unwrap();
    let large = |epoch| {
        let start = Instant::now();
        for batch in loader.epoch(epoch) {
            let batch = batch.unwrap();
            let (first, last) = (batch.info.items[0].index as f32, batch.info.items[63].index as f32);
            let rows = batch.as_slice().unwrap();
            assert_eq!((rows[0], rows[rows.len() - 1]), (first, last));
        }
        start.elapsed()
    };
    _ = large(0);
    let took = median(|| large(1));
    let rate = 200.0 / took.as_secs_f64();
    println!(
        "64×3×224×224 f32, 2 workers: {rate:.0} batches/s, {:.1} GB/s",
        rate * 64.0 * 3.0 * 224.0 * 224.0 * 4.0 / 1e9
    );
    println!("{}", loader.metrics());
}

/// Batches of one number: what the way of a batch costs.
fn overhead(workers: usize, prefetch: usize) {
    let loader = DataLoader::builder(Filled(20_000, vec![]))
        .batch_size(1)
        .num_workers(workers)
        .prefetch_factor(prefetch);
    let loader = loader.build().unwrap();
    assert_eq!(loader.epoch(0).next().unwrap().unwrap().to_vec(), [0.0]);
    let all = median(|| {
        let start = Instant::now();
        let mut count = 0;
        for (number, batch) in loader.epoch(1).enumerate() {
            assert_eq!(batch.unwrap().as_slice().unwrap(), [number as f32]);
            count += 1;
        }
        assert_eq!(count, 20_000);
        start.elapsed()
    });
    println!("{workers} workers, prefetch {prefetch}, a batch of one number: {:.2?}", all / 20_000);
    println!("{}", loader.metrics());
}

/// Alone, for a profiler.
#[test]
#[ignore = "it measures"]
fn overhead_alone() {
    let from = |name: &str, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    overhead(from("WORKERS", 2), from("PREFETCH", 2));
}

/// Bytes of a process's own memory.
fn private(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
#[ignore = "it measures"]
fn memory_of_a_worker() {
    let loader = DataLoader::builder(Filled(64 * 50, vec![3, 224, 224]))
        .batch_size(64)
        .num_workers(2)
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).filter(Result::is_ok).count(), 50);
    for pid in loader.pids() {
        println!("private memory of a worker after 50 batches of 38 MB: {:.2} MB", private(pid) as f64 / 1e6);
    }
}

/// Each sample takes two milliseconds.
#[derive(Serialize, Deserialize)]
struct Slow(usize);

impl Dataset for Slow {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        self.0
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Tensor<u64>>) -> AnyResult<Tensor<u64>> {
        cx.rows(items, &[], |item, _, row| {
            row[0] = item.index as u64;
            std::thread::sleep(Duration::from_millis(2)); // sleep: the work of a sample
            Ok(())
        })
    }
}

#[test]
#[ignore = "it measures"]
fn gap_after_a_kill() {
    let mut gaps = Vec::new();
    for _ in 0..7 {
        let loader = DataLoader::builder(Slow(400)).batch_size(5).num_workers(2).build().unwrap();
        let mut longest = Duration::ZERO;
        let mut last = Instant::now();
        let mut seen = Vec::new();
        for (number, batch) in loader.epoch(0).enumerate() {
            let batch = batch.unwrap();
            seen.extend(batch.to_vec());
            if number > 10 {
                longest = longest.max(last.elapsed());
            }
            if number == 20 {
                let pid = rustix::process::Pid::from_raw(batch.info.pid as i32).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
            last = Instant::now();
        }
        assert_eq!(seen, (0..400).collect::<Vec<_>>());
        assert_eq!(loader.metrics().restarts, 1);
        gaps.push(longest);
    }
    gaps.sort_unstable();
    println!(
        "a batch takes 10 ms; the longest wait after a SIGKILL: {:.1?} ({:.1?} to {:.1?})",
        gaps[3], gaps[0], gaps[6]
    );
}

#[test]
#[ignore = "it measures"]
fn resume_far_in_an_epoch() {
    const LEN: usize = 8 * 200_000;
    let lengths: std::sync::Arc<[u32]> = (0..LEN as u32).map(|i| 1 + i * 7 % 101).collect();
    type Set = fn(DataLoaderBuilder<Filled>, std::sync::Arc<[u32]>) -> DataLoaderBuilder<Filled>;
    let kinds: [(&str, Set); 5] = [
        ("in order", |b, _| b),
        ("shuffled (fisher-yates)", |b, _| b.shuffle(true)),
        ("shuffled (feistel)", |b, _| b.shuffle_by(Shuffle::Feistel)),
        ("BucketByLength, window 100", |b, lengths| {
            b.shuffle(true).batching(Batching::BucketByLength { lengths, window: 100 })
        }),
        ("MaxTokens, window 1000", |b, lengths| {
            b.shuffle(true).batching(Batching::MaxTokens { lengths, tokens: 800, window: 1000 })
        }),
    ];
    for (name, set) in kinds {
        let builder = DataLoader::builder(Filled(LEN, vec![])).batch_size(8).seed(5).num_workers(1);
        let loader = set(builder, lengths.clone()).build().unwrap();
        drop(loader.epoch(1).next());
        // The states of a trainer that was given all before them.
        let order = loader.plan().epoch(0);
        (0..=100_000).for_each(|batch| assert!(order.batch(batch).unwrap().is_some()));
        let states = [0, 100_000].map(|next| {
            let mut state = serde_json::to_value(loader.epoch(0).state()).unwrap();
            state["plan"] = serde_json::to_value(order.state(next)).unwrap();
            (next, serde_json::from_value(state).unwrap())
        });
        // In turns.
        let mut rounds = [Vec::new(), Vec::new()];
        for _ in 0..9 {
            for ((next, state), rounds) in states.iter().zip(&mut rounds) {
                let start = Instant::now();
                let batch = loader.resume(state).unwrap().next().unwrap().unwrap();
                rounds.push(start.elapsed());
                assert_eq!((batch.info.number, batch.to_vec()[0]), (*next, batch.info.items[0].index as f32));
            }
        }
        let took = rounds.map(|mut rounds| {
            rounds.sort_unstable();
            rounds[4]
        });
        println!("{name}: to the first batch at 0 {:.2?}, at 100,000 {:.2?}", took[0], took[1]);
    }
}

/// Shards of samples of 256 bytes.
#[derive(Serialize, Deserialize)]
struct Records(usize);

type Record = [u64; 32];

impl IterableDataset for Records {
    type Batch = Tensor<u64>;
    type Reader = std::iter::Map<std::ops::Range<u64>, fn(u64) -> AnyResult<Record>>;

    fn shards(&self) -> usize {
        16
    }

    fn open(&mut self, _: usize, _: Position) -> AnyResult<Self::Reader> {
        Ok((0..self.0 as u64).map(|i| Ok([i; 32])))
    }

    fn fetch(&mut self, samples: Samples<Record>, cx: &mut Context<Tensor<u64>>) -> AnyResult<Tensor<u64>> {
        cx.rows_from(samples, &[32], |record, _, row| {
            row.copy_from_slice(&record);
            Ok(())
        })
    }
}

/// Streams of small samples: what a batch of 64 of them costs by the number of workers.
#[test]
#[ignore = "it measures"]
fn small_samples_of_streams() {
    let from = |name: &str, otherwise| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let rounds = from("ROUNDS", 5);
    let workers: Vec<usize> = match from("WORKERS", 9) {
        9 => vec![0, 1, 2],
        one => vec![one],
    };
    let loaders: Vec<_> = workers
        .into_iter()
        .map(|workers| {
            let builder = DataLoader::streaming(Records(6400)).batch_size(64).num_workers(workers);
            (workers, builder.prefetch_factor(from("PREFETCH", 4)).build().unwrap())
        })
        .collect();
    for round in 0..rounds {
        for (workers, loader) in &loaders {
            let start = Instant::now();
            let mut count = 0;
            for batch in loader.epoch(round as u64) {
                let batch = batch.unwrap();
                let last = batch.info.items[63].index as u64;
                assert_eq!(batch.as_slice().unwrap()[2047], last);
                count += 1;
            }
            assert_eq!(count, 1600);
            println!("{workers} workers: a batch of 64 samples of 256 bytes: {:.2?}", start.elapsed() / 1600);
        }
    }
    for (_, loader) in &loaders {
        println!("{}", loader.metrics());
    }
}

/// Context switches of all threads of a process, by itself and not; and its processor time in ticks.
fn switches(pid: u32) -> [u64; 3] {
    let mut sum = [0; 3];
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    sum[2] = [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<u64>().ok()).sum();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        for (name, sum) in ["voluntary_ctxt", "nonvoluntary_ctxt"].iter().zip(&mut sum) {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            *sum += line.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum
}

/// Short runs with a loader each: what a batch of one number costs, and how often threads have waited for it, or were made to.
#[test]
#[ignore = "it measures"]
fn modes_of_short_runs() {
    const BATCHES: u64 = 10_000;
    for run in 0..20 {
        let builder = DataLoader::builder(Filled(BATCHES as usize, vec![])).num_workers(2).prefetch_factor(2);
        let loader = builder.build().unwrap();
        assert_eq!(loader.epoch(0).next().unwrap().unwrap().to_vec(), [0.0]);
        let pids: Vec<u32> = [std::process::id()].into_iter().chain(loader.pids()).collect();
        let look = || pids.iter().map(|pid| switches(*pid)).collect::<Vec<_>>();
        let (before, start) = (look(), Instant::now());
        assert_eq!(loader.epoch(1).filter(Result::is_ok).count() as u64, BATCHES);
        let took = start.elapsed() / BATCHES as u32;
        let text: Vec<String> = look()
            .iter()
            .zip(before)
            .map(|(after, before)| {
                let [waits, preempted, ticks] = [0, 1, 2].map(|i| after[i] - before[i]);
                let each = |count: u64| count as f64 / BATCHES as f64;
                format!("{:.2} waits, {:.2} preemptions, {} ms", each(waits), each(preempted), 10 * ticks)
            })
            .collect();
        println!("run {run}: {took:.2?} a batch; trainer, workers: {}", text.join("; "));
    }
}
