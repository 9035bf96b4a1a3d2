//! Batches that are equal for any number of workers, threads and deaths, and treatment of errors.

use std::time::Duration;

use crate::common::{
    Bytes, Fault, Samples, all, builder, builder_of, bytes, eventually, in_use, next, signal,
};
use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, Objects, OnError, WorkerInfo};
use mp_pool::TaskError;
use mp_tensor::Tensor;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

fn expected(len: usize, epoch: u64) -> Vec<Bytes> {
    all(builder(len, 0).build().unwrap().epoch(epoch))
}

#[test]
fn batches_are_the_same_for_any_workers_and_threads() {
    let expected = [expected(23, 0), expected(23, 1)];
    assert_eq!(expected[0].len(), 6);
    assert_ne!(expected[0][0].2, expected[1][0].2, "each epoch has its order");
    let mut indices: Vec<usize> = expected[0].iter().flat_map(|batch| batch.2.clone()).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..23).collect::<Vec<_>>());
    for (workers, threads) in [(0, 3), (1, 1), (2, 1), (3, 2)] {
        let loader = builder(23, workers).threads_per_worker(threads).build().unwrap();
        assert_eq!(all(loader.epoch(0)), expected[0], "{workers} workers, {threads} threads");
        assert_eq!(all(loader.epochs(0..2)), expected.concat());
        let mut unordered = all(builder(23, workers).in_order(false).build().unwrap().epoch(1));
        unordered.sort_by_key(|batch| batch.1);
        assert_eq!(unordered, expected[1]);
    }
}

#[test]
fn failed_sample_is_named_and_epoch_continues() {
    let expected = expected(23, 0);
    for (workers, threads) in [(0, 1), (2, 1), (1, 3)] {
        let bad = [expected[1].2[2], expected[4].2[0]];
        let samples = Samples::new(23).with(bad[0], Fault::Error, -1).with(bad[1], Fault::Panic, -1);
        let loader = builder_of(samples, workers).threads_per_worker(threads).build().unwrap();
        let mut batches = loader.epoch(0);
        let mut numbers = Vec::new();
        while let Some(batch) = next(&mut batches) {
            match batch {
                Ok(batch) => assert_eq!(bytes(&batch), expected[batch.info.number as usize]),
                Err(error) => {
                    let which = usize::from(error.batch == 4);
                    assert_eq!(error.item.unwrap().index, bad[which], "{error}");
                    assert_eq!(error.description, Some(format!("number {}", bad[which])));
                    let text = error.to_string();
                    let said = ["is bad", "panics"][which];
                    assert!(
                        text.contains(said) && text.starts_with(&format!("batch {} of epoch 0", error.batch)),
                        "{text}"
                    );
                    assert_eq!((error.worker.is_some(), error.attempts), (workers > 0, 1));
                    numbers.push(error.batch);
                }
            }
        }
        assert_eq!(numbers, [1, 4]);
        assert_eq!(loader.metrics().failed, 2);
    }
}

#[test]
fn failed_samples_and_batches_can_be_skipped() {
    let expected = expected(23, 0);
    for (workers, fault) in [(0, Fault::Error), (2, Fault::Error), (2, Fault::Panic), (2, Fault::Kill)] {
        let bad = expected[2].2[1];
        let samples = || Samples::new(23).with(bad, fault, -1);
        let skip = |how| builder_of(samples(), workers).retries(1).on_error(how).build().unwrap();
        let loader = skip(OnError::SkipSample);
        let mut batches = loader.epoch(0);
        for all in &expected {
            let batch = next(&mut batches).unwrap().unwrap();
            let info = &batch.info;
            if info.number != 2 {
                assert_eq!(bytes(&batch), *all);
                continue;
            }
            let left: Vec<usize> = all.2.iter().copied().filter(|index| *index != bad).collect();
            assert_eq!((info.indices(), info.valid), (left, 3), "{workers} {fault:?}");
            // The other samples are equal to those of the complete batch.
            assert_eq!(batch.0.to_vec(), [&all.3[..3], &all.3[6..]].concat());
            assert_eq!((info.skipped.len(), info.skipped[0].item.index), (1, bad));
            assert!(info.skipped[0].why.contains(&format!("number {bad}")), "{:?}", info.skipped);
        }
        assert!(next(&mut batches).is_none());
        assert_eq!(loader.metrics().skipped_samples, 1);

        let loader = skip(OnError::SkipBatch);
        let mut batches = loader.epoch(0);
        let numbers: Vec<u64> =
            std::iter::from_fn(|| next(&mut batches)).map(|batch| batch.unwrap().info.number).collect();
        assert_eq!(numbers, [0, 1, 3, 4, 5]);
        assert_eq!((batches.skipped_batches().len(), batches.skipped_batches()[0].batch), (1, 2));
    }
}

/// Padding rows, which repeat samples, stay invalid, regardless of the sample that is skipped.
#[test]
fn valid_rows_of_a_batch_exclude_skipped_samples() {
    // Rank 1 of 2 has the samples 3 and 4, and sample 0 again.
    for (bad, left, valid) in [(0, [3, 4], 2), (4, [3, 0], 1), (3, [4, 0], 1)] {
        let samples = Samples::new(5).with(bad, Fault::Error, -1);
        let loader = builder_of(samples, 0).shuffle(false).distributed(1, 2);
        let loader = loader.on_error(OnError::SkipSample).build().unwrap();
        let batch = next(&mut loader.epoch(0)).unwrap().unwrap();
        assert_eq!((&batch.info.indices()[..], batch.info.valid), (&left[..], valid), "without {bad}");
    }
}

#[test]
fn batch_of_a_dead_loader_worker_is_retried() {
    let expected = expected(40, 0);
    for (workers, threads) in [(1, 1), (2, 1), (2, 2)] {
        // Faults at two samples of one batch, and at one sample of another.
        let samples = Samples::new(40)
            .with(expected[1].2[0], Fault::Kill, 1)
            .with(expected[1].2[3], Fault::Kill, 1)
            .with(expected[7].2[1], Fault::Kill, 2);
        let loader = builder_of(samples, workers).threads_per_worker(threads).retries(2).build().unwrap();
        assert_eq!(all(loader.epoch(0)), expected, "{workers} {threads}");
        assert_eq!(all(loader.epoch(0)), expected);
        let metrics = loader.metrics();
        assert!(metrics.restarts >= 3, "{metrics}");
    }
}

#[test]
fn sample_that_kills_each_worker_is_named() {
    let expected = expected(23, 0);
    for (threads, retries) in [(1, 0), (1, 2), (3, 2)] {
        let bad = expected[3].2[2];
        let loader = builder_of(Samples::new(23).with(bad, Fault::Kill, -1), 2)
            .threads_per_worker(threads)
            .retries(retries)
            .build()
            .unwrap();
        let mut batches = loader.epoch(0);
        let mut seen = 0;
        while let Some(batch) = next(&mut batches) {
            match batch {
                Ok(batch) => assert_eq!(bytes(&batch), expected[batch.info.number as usize]),
                Err(error) => {
                    seen += 1;
                    assert_eq!((error.batch, error.item.unwrap().index), (3, bad), "{error}");
                    assert_eq!(error.attempts, retries as usize + 1, "{error}");
                    assert!(matches!(error.task(), Some(TaskError::WorkerLost(_))));
                    assert!(error.to_string().contains("SIGKILL"), "{error}");
                }
            }
        }
        assert_eq!(seen, 1);
    }
    // With several threads, the error names no sample, because any thread may have died. Without another
    // attempt, no single thread makes the batch again.
    let bad = expected[3].2[2];
    let loader = builder_of(Samples::new(23).with(bad, Fault::Kill, -1), 1).threads_per_worker(3).retries(0);
    let loader = loader.build().unwrap();
    let error = loader.epoch(0).find_map(Result::err).unwrap();
    assert_eq!((error.batch, error.item), (3, None), "{error}");
}

#[test]
fn slow_worker_is_killed_and_its_batch_retried() {
    let expected = expected(23, 0);
    let bad = expected[1].2[1];
    let hang = |times| builder_of(Samples::new(23).with(bad, Fault::Hang, times), 2);
    let loader = hang(1).timeout(Duration::from_secs(2)).build().unwrap();
    assert_eq!(all(loader.epoch(0)), expected);
    // The other worker may make the batch first.
    eventually("the worker is replaced", || loader.metrics().restarts == 1);
    let loader = hang(1).threads_per_worker(2).timeout(Duration::from_secs(2)).build().unwrap();
    assert_eq!(all(loader.epoch(0)), expected);
    let loader = hang(-1).timeout(Duration::from_secs(2)).retries(0).build().unwrap();
    let mut batches = loader.epoch(0);
    assert_eq!(bytes(&next(&mut batches).unwrap().unwrap()), expected[0]);
    let error = next(&mut batches).unwrap().unwrap_err();
    assert!(matches!(error.task(), Some(TaskError::TimedOut { .. })), "{error}");
    assert_eq!(error.item.unwrap().index, bad);
    assert_eq!(all(batches), expected[2..]);
}

#[test]
fn timed_out_wait_for_a_batch_names_the_running_one() {
    let expected = expected(23, 0);
    let bad = expected[0].2[0];
    let loader = builder_of(Samples::new(23).with(bad, Fault::Hang, -1), 1).build().unwrap();
    let mut batches = loader.epoch(0);
    let late = (0..1000).find_map(|_| {
        let late = batches.next_timeout(Duration::from_millis(20)).err()?;
        (!late.running.is_empty()).then_some(late)
    });
    let late = late.expect("the first batch begins");
    assert_eq!(late.batch, Some((0, 0)));
    assert!(late.to_string().starts_with("batch 0 of epoch 0 is not ready yet\n  worker 0 (pid "), "{late}");
    drop(loader);
    drop(batches);

    let loader = builder(23, 2).build().unwrap();
    let mut batches = loader.epoch(0);
    assert_eq!(bytes(&next(&mut batches).unwrap().unwrap()), expected[0]);
    let stopped = loader.pids()[0];
    signal(stopped, Signal::STOP);
    let second = batches.next_timeout(Duration::from_millis(100));
    signal(stopped, Signal::CONT);
    let rest = expected[if second.is_ok() { 2 } else { 1 }..].to_vec();
    assert_eq!(all(batches), rest);
}

#[test]
fn next_epoch_does_not_wait_for_a_dropped_epoch() {
    let expected = expected(23, 1);
    let first = all(builder(23, 0).build().unwrap().epoch(0))[0].2[0];
    // The first batch of epoch 0 hangs in one worker, and the other worker continues.
    let loader = builder_of(Samples::new(23).with(first, Fault::Hang, 1), 2).build().unwrap();
    let mut batches = loader.epoch(0);
    assert!(batches.next_timeout(Duration::from_millis(50)).is_err());
    drop(batches);
    assert_eq!(all(loader.epoch(1)), expected);
    let before = in_use();
    for epoch in 0..20 {
        let mut batches = loader.epoch(epoch);
        drop(next(&mut batches).unwrap().unwrap());
    }
    drop(loader);
    eventually("all is given back", || in_use() <= before);
}

/// Dataset whose `init` fails, or whose rows have the arguments of `init`.
#[derive(Serialize, Deserialize)]
struct Begins {
    fails: bool,
    #[serde(skip)]
    info: Option<(Option<usize>, usize, usize)>,
}

impl Dataset for Begins {
    type Batch = (Objects<String>, Tensor<u8>);

    fn len(&self) -> usize {
        6
    }

    fn init(&mut self, worker: &WorkerInfo) -> AnyResult<()> {
        if self.fails {
            return Err("there is no decoder".into());
        }
        self.info = Some((worker.worker, worker.num_workers, worker.threads));
        Ok(())
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.zeroed().rows(items, ((), &[2]), |item, _, (slot, _)| {
            let threads = std::env::var("OMP_NUM_THREADS");
            *slot = Some(format!("{} {:?} {threads:?}", item.index, self.info));
            Ok(())
        })
    }
}

#[test]
fn loader_init_runs_in_workers_and_failure_ends_epoch() {
    // Also without workers.
    for workers in [0, 2] {
        let build = |fails| {
            let begins = Begins { fails, info: None };
            DataLoader::builder(begins)
                .batch_size(2)
                .num_workers(workers)
                .threads_per_worker(3)
                .build()
                .unwrap()
        };
        let loader = build(false);
        for batch in loader.epoch(0) {
            let batch = batch.unwrap();
            let (number, threads) =
                (batch.info.worker, batch.info.worker.map_or("Err(NotPresent)", |_| "Ok(\"3\")"));
            let (index, info) = (batch.info.items[1].index, Some((number, workers, 3)));
            assert_eq!(batch.0[1], format!("{index} {info:?} {threads}"));
            assert_eq!(batch.1.to_vec(), [0; 4]);
        }
        let loader = build(true);
        let mut batches = loader.epoch(0);
        let error = next(&mut batches).unwrap().unwrap_err();
        assert!(error.to_string().contains("there is no decoder"), "{error}");
        assert!(next(&mut batches).is_none());
    }
}

/// Dataset whose rows depend on the process, or are not written completely.
#[derive(Serialize, Deserialize)]
struct Careless {
    kind: u8,
}

impl Dataset for Careless {
    type Batch = (Tensor<u32>, Tensor<u8>);

    fn len(&self) -> usize {
        20
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, (&[2], &[3]), |item, rng, (numbers, bytes)| {
            numbers.fill(rng.next_u32());
            if self.kind == 1 && item.index == 9 {
                numbers[1] = std::process::id();
            }
            let end =
                if (self.kind, item.index) == (2, 13) || (self.kind, item.index) == (3, 19) { 2 } else { 3 };
            bytes[..end].fill(7);
            Ok(())
        })
    }
}

#[test]
fn verify_finds_differing_and_unwritten_row_values() {
    let verify = |kind, workers| {
        let builder = DataLoader::builder(Careless { kind }).batch_size(8).num_workers(workers);
        builder.build().unwrap().verify(10).unwrap()
    };
    for workers in [0, 2] {
        let found = verify(0, workers);
        assert!(found.is_same() && found.batches == 3, "{found}");
        let found = verify(2, workers);
        let difference = &found.differences[0];
        assert_eq!(
            (difference.item.index, difference.column, difference.not_written),
            (13, 1, true),
            "{found}"
        );
        // Only the last sample differs.
        let found = verify(3, workers);
        let [difference] = &found.differences[..] else { panic!("{found}") };
        assert_eq!((difference.batch, difference.item.index), (2, 19), "{found}");
    }
    let found = verify(0, 0);
    assert_eq!(found.by_one_worker, 3, "{found}");
    assert!(
        found.to_string().contains("made by one process alone, since there are no workers: 3"),
        "{found}"
    );
    // Two processes make the batches, for any number of workers.
    for workers in [1, 2] {
        let found = verify(1, workers);
        assert_eq!(found.by_one_worker, 0, "{found}");
        let difference = &found.differences[0];
        let at = (difference.item.index, difference.column, difference.not_written);
        assert_eq!(at, (9, 0, false), "{workers}: {found}");
        assert!(found.to_string().contains("sample 9: column 0 is not the same twice"), "{found}");
    }
}

#[test]
fn set_dataset_changes_only_later_epochs() {
    let mut loader = builder(23, 2).memory_budget(1).build().unwrap();
    let before = all(loader.epoch(0));
    let metrics = loader.metrics();
    assert_eq!((metrics.batches, metrics.samples), (6, 23));
    assert!(metrics.bytes > 23 * 24 && metrics.to_string().contains("the trainer waited "), "{metrics}");
    let mut old = loader.epoch(0);
    loader.set_dataset(Samples::new(9)).unwrap();
    assert_eq!(all(loader.epoch(0)), expected(9, 0));
    assert_eq!(bytes(&next(&mut old).unwrap().unwrap()), before[0]);
}
