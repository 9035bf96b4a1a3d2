//! How fast the loader is: `cargo test --release -p mp-data --test speed -- --ignored --nocapture`. What it prints is compared by a
//! reader; it asserts that the batches are right.

use std::time::{Duration, Instant};

use mp_data::{AnyResult, Context, DataLoader, Dataset, Item};
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
        let loader = DataLoader::builder(Filled(20_000, vec![]))
            .batch_size(1)
            .num_workers(workers)
            .prefetch_factor(prefetch);
        let loader = loader.build().unwrap();
        assert_eq!(loader.epoch(0).next().unwrap().unwrap().to_vec(), [0.0]);
        let all = median(|| {
            let start = Instant::now();
            for (number, batch) in loader.epoch(1).enumerate() {
                assert_eq!(batch.unwrap().as_slice().unwrap(), [number as f32]);
            }
            start.elapsed()
        });
        println!("{workers} workers, prefetch {prefetch}, a batch of one number: {:.2?}", all / 20_000);
        println!("{}", loader.metrics());
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
