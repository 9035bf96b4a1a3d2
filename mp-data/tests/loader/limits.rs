//! Limits of batches in flight, and of batches that are delivered before an earlier batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mp_data::plan::{Batching, IndexSampler, PlanError};
use mp_data::{
    AnyResult, Context, DataLoader, Dataset, Item, LoadError, LoadedBatch, LoaderState, Objects, OnError,
    StreamLoader,
};
use mp_tensor::{SharedTensor, Tensor};
use serde::{Deserialize, Serialize};

use crate::common::measured::{InShards, Measured};
use crate::common::shards::next_of;
use crate::common::{Fault, Samples, all, bare, builder, builder_of, bytes, eventually, kept, next};

#[test]
fn hanging_batch_does_not_delay_the_next_1024() {
    let first = all(builder(1200, 0).batch_size(1).build().unwrap().epoch(0))[0].2[0];
    let of = |samples, workers| builder_of(samples, workers).batch_size(1).in_order(false);
    let loader = of(Samples::new(1200).with(first, Fault::Hang, 1), 2).build().unwrap();
    let mut batches = loader.epoch(0);
    for _ in 0..1023 {
        assert_ne!(next(&mut batches).unwrap().unwrap().info.number, 0);
    }
    assert!(batches.next_timeout(Duration::from_millis(50)).is_err());
    let state = batches.state();
    assert_eq!((state.next(), state.out_of_order().len()), (0, 1023));
    assert_eq!(batches.state_after(1023), Some(state.clone()));
    let rest = all(of(Samples::new(1200), 1).build().unwrap().resume(&state).unwrap());
    assert_eq!(rest.len(), 1200 - 1023);
    assert!(rest.iter().any(|batch| batch.1 == 0));
}

/// Dataset whose batches need no shared memory.
#[derive(Serialize, Deserialize)]
struct Texts;

impl Dataset for Texts {
    type Batch = Objects<String>;

    fn len(&self) -> usize {
        400
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, (), |item, _, text| {
            *text = Some(item.index.to_string());
            Ok(())
        })
    }
}

#[test]
fn loader_memory_budget_limits_bytes_only() {
    let loader =
        DataLoader::builder(Texts).num_workers(2).prefetch_factor(4).memory_budget(1).build().unwrap();
    let mut most = 0;
    for (k, batch) in loader.epoch(0).enumerate() {
        assert_eq!(batch.unwrap()[0], k.to_string());
        most = most.max(loader.metrics().in_flight);
    }
    assert_eq!(most, 8, "batches without bytes are not limited");
    // Batches of 96 bytes and more: two fit.
    let loader = builder(80, 2).prefetch_factor(4).memory_budget(600).build().unwrap();
    let mut most = 0;
    let mut batches = loader.epoch(0);
    while let Some(batch) = next(&mut batches) {
        drop(batch.unwrap());
        most = most.max(loader.metrics().in_flight);
    }
    assert!((1..=4).contains(&most), "{most}");
}

#[test]
fn resume_of_an_unordered_epoch_repeats_no_batch() {
    let of = |workers| builder(24, workers).in_order(false).prefetch_factor(1).build().unwrap();
    for workers in [0, 1] {
        let loader = of(workers);
        let mut state = serde_json::to_value(loader.epoch(0).state()).unwrap();
        state["beyond"] = serde_json::json!([1, 2, 4]);
        let state: LoaderState = serde_json::from_value(state).unwrap();
        assert!(matches!(loader.resume(&state), Err(PlanError::StateChanged)));
        let batches = loader.resume(&state.sealed()).unwrap();
        assert_eq!(batches.size_hint(), (3, Some(3)));
        assert_eq!(all(batches).iter().map(|batch| batch.1).collect::<Vec<_>>(), [0, 3, 5]);
    }
}

/// Sampler that chooses the samples in order and counts its calls.
#[derive(Debug)]
struct Counted(Arc<AtomicU64>);

impl IndexSampler for Counted {
    fn name(&self) -> &str {
        "counted/1"
    }

    fn len(&self, _: u64) -> u64 {
        4000
    }

    fn index(&self, _: u64, k: u64) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed);
        k
    }
}

#[test]
fn resume_of_max_tokens_reads_only_near_lengths() {
    let of = |workers| {
        let asked = Arc::new(AtomicU64::new(0));
        let lengths = (0..4000).map(|i| 1 + i * 7 % 31).collect();
        let batching = Batching::MaxTokens { lengths, tokens: 60, window: 20 };
        let builder = bare(Samples::new(4000), workers).batching(batching).distributed(1, 2);
        // By default, small and quick batches are planned further ahead.
        let builder = if workers > 0 { builder.prefetch_factor(2) } else { builder };
        (builder.index_sampler(Counted(asked.clone())).build().unwrap(), asked)
    };
    for workers in [0, 1] {
        let (loader, _) = of(workers);
        let mut batches = loader.epochs(0..2);
        let mut states = vec![batches.state()];
        while let Some(batch) = next(&mut batches) {
            assert_eq!(batches.state_after(batch.unwrap().info.number), Some(batches.state()));
            states.push(batches.state());
        }
        let each = states.len() / 2;
        // Also the last batch of an epoch, when the next epoch was already planned.
        for at in [0, each - 200, each - 1, each, each + 1] {
            let (again, asked) = of(workers);
            let mut rest = again.resume_until(&kept(&states[at]), 2).unwrap();
            let batch = bytes(&next(&mut rest).unwrap().unwrap());
            assert_eq!((batch.0 as usize, batch.1 as usize), (at / each, at % each));
            // The batch's window, the window before it for its leftover, and at most one window that is
            // planned ahead.
            let asked = asked.load(Ordering::Relaxed);
            assert!(asked <= 3 * 20, "batch {at} of {each} an epoch: {asked} draws");
            assert_eq!(rest.state(), states[at + 1]);
        }
    }
}

/// Unit of the batch sizes in the tests below: a batch has one to ten units.
const UNIT: usize = 10_000;

/// Takes all batches of an epoch. Returns the maximum of the bytes in flight, without delivered batches.
fn run(measured: &Measured, budget: Option<usize>, kept: bool, streamed: bool) -> i64 {
    let mut have = Vec::new();
    let mut gave = |batch: Result<LoadedBatch<Tensor<u8>>, LoadError>| {
        let batch = batch.unwrap();
        let bytes = batch.as_slice().unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        measured.given(batch.len());
        if kept {
            have.push(batch);
        }
    };
    let all_are_begun = || {
        if budget.is_none() {
            eventually("bytes in flight exceed the budget", || measured.now() > 60 * UNIT as i64);
        }
    };
    let mut count = 0;
    if streamed {
        let builder = StreamLoader::builder(InShards(measured.clone(), 12)).num_workers(2).prefetch_factor(8);
        let builder = budget.into_iter().fold(builder, |builder, bytes| builder.memory_budget(bytes));
        let loader = builder.build().unwrap();
        let mut batches = loader.epoch(0);
        all_are_begun();
        while let Some(batch) = next_of(&mut batches) {
            gave(batch);
            count += 1;
        }
    } else {
        let builder = DataLoader::builder(measured.clone()).num_workers(2).prefetch_factor(8);
        let builder = budget.into_iter().fold(builder, |builder, bytes| builder.memory_budget(bytes));
        let loader = builder.build().unwrap();
        let mut batches = loader.epoch(0);
        all_are_begun();
        while let Some(batch) = next(&mut batches) {
            gave(batch);
            count += 1;
        }
    }
    assert_eq!(count, measured.sizes.len());
    measured.most()
}

#[test]
fn bytes_of_batches_in_flight_stay_within_budget() {
    for streamed in [false, true] {
        let unit = UNIT as i64;
        // Twelve large batches, then batches of all sizes.
        let sizes = || (0..240).map(|i| UNIT * if i < 12 { 10 } else { 1 + i * 7 % 10 });
        let measured = Measured::new(sizes());
        for kept in [false, true] {
            // The batch in delivery is not counted by the loader, but is counted by this test.
            let most = run(&measured, Some(40 * UNIT), kept, streamed);
            assert!((10 * unit..=50 * unit).contains(&most), "{streamed} {kept}: {most}");
        }
        let most = run(&measured, None, false, streamed);
        assert!(most > 50 * unit, "without a budget there are more: {streamed}: {most}");
        // A budget below the size of a batch allows one batch at a time.
        let most = run(&measured, Some(UNIT / 2), false, streamed);
        assert!(most <= 20 * unit, "{streamed}: {most}");
    }
}

#[test]
fn memory_budget_assumes_the_largest_batch_so_far() {
    let measured = Measured::new((0..60).map(|i| UNIT * if i < 30 { 1 } else { 10 }));
    let builder = DataLoader::builder(measured.clone()).num_workers(2).prefetch_factor(8);
    let loader = builder.memory_budget(40 * UNIT).build().unwrap();
    let mut batches = loader.epoch(0);
    let (mut before, mut after) = (0, 0);
    while let Some(batch) = next(&mut batches) {
        let number = batch.unwrap().info.number;
        let in_flight = loader.metrics().in_flight;
        if number < 25 {
            before = before.max(in_flight);
        } else if number >= 30 + 16 {
            after = after.max(in_flight);
        }
    }
    assert_eq!((before, after), (16, 4));
}

/// Sampler without draws.
#[derive(Debug)]
struct Nothing;

impl IndexSampler for Nothing {
    fn name(&self) -> &str {
        "nothing/1"
    }

    fn len(&self, _: u64) -> u64 {
        0
    }

    fn index(&self, _: u64, k: u64) -> u64 {
        k
    }
}

#[test]
fn endless_empty_epochs_of_a_loader_are_an_error() {
    let loader = builder(8, 0).shuffle(false).index_sampler(Nothing).build().unwrap();
    let mut batches = loader.epochs(0..u64::MAX);
    let error = next(&mut batches).unwrap().unwrap_err();
    assert!(error.to_string().contains("epochs in a row have no batch"), "{error}");
    assert!(next(&mut batches).is_none());
    assert!(next(&mut loader.epochs(0..3)).is_none(), "three empty epochs are not an error");
}

/// Dataset whose first sample never arrives, and whose other samples arrive slowly.
#[derive(Serialize, Deserialize)]
struct Slow(SharedTensor<i64>);

impl Dataset for Slow {
    type Batch = Tensor<i64>;

    fn len(&self) -> usize {
        64
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        match items[0].index {
            0 => Fault::Hang.happens("the first one")?,
            // sleep: a sample that takes time is the subject of this test.
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
        cx.rows(items, &[], |_, _, row| {
            row[0] = self.0.fetch_add(0, 1);
            Ok(())
        })
    }
}

/// The arrival of other batches does not extend the wait.
#[test]
fn timed_wait_for_a_batch_ends_in_time() {
    let made = Tensor::zeros([1]).unwrap().share();
    let slow = Slow(made.clone());
    let loader = DataLoader::builder(slow).num_workers(2).prefetch_factor(32).build().unwrap();
    let mut batches = loader.epoch(0);
    eventually("other batches are made", || made.load(0) > 0);
    assert!(batches.next_timeout(Duration::from_millis(50)).is_err());
    let others = made.load(0);
    assert!(others < 63, "the wait lasted until no other batch was left");
}

#[test]
fn epochs_of_skipped_batches_end_with_an_error() {
    for workers in [0, 1] {
        for ordered in [true, false] {
            let samples = (0..6).fold(Samples::new(6), |samples, i| samples.with(i, Fault::Error, -1));
            let loader = bare(samples, workers).batch_size(4).in_order(ordered);
            let loader = loader.on_error(OnError::SkipBatch).build().unwrap();
            let mut batches = loader.epochs(2..u64::MAX);
            let error = next(&mut batches).unwrap().unwrap_err().to_string();
            assert!(error.starts_with("batch 0 of epoch 3: each batch of epoch 2 was left out"), "{error}");
            assert!(error.contains("left out: batch "), "{error}");
            assert!(next(&mut batches).is_none());
            // The iterator of the last epoch stores its errors.
            let mut batches = loader.epoch(2);
            assert!(next(&mut batches).is_none());
            assert_eq!(batches.skipped_batches().len(), 2);
        }
    }
}
