//! How fast the loader is: `cargo test --release -p mp-data --test speed -- --ignored --nocapture`. What it prints is compared by a
//! reader; it asserts that the batches are right.

use std::time::{Duration, Instant};

use mp_data::plan::{Batching, Shuffle};
use mp_data::{AnyResult, Context, DataLoader, DataLoaderBuilder, Dataset, Item};
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
        let far = (0..=100_000).map(|batch| order.batch(batch).unwrap()).last();
        assert!(far.is_some_and(|batch| batch.is_some()));
        let took = [0, 100_000].map(|next| {
            let mut state = serde_json::to_value(loader.epoch(0).state()).unwrap();
            state["plan"] = serde_json::to_value(order.state(next)).unwrap();
            let state = serde_json::from_value(state).unwrap();
            median(|| {
                let start = Instant::now();
                let batch = loader.resume(&state).unwrap().next().unwrap().unwrap();
                let took = start.elapsed();
                assert_eq!((batch.info.number, batch.to_vec()[0]), (next, batch.info.items[0].index as f32));
                took
            })
        });
        println!("{name}: to the first batch at 0 {:.2?}, at 100,000 {:.2?}", took[0], took[1]);
    }
}
