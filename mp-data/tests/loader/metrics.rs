//! Metrics of a loader: waits, ready batches, errors.

use std::time::{Duration, Instant};

use mp_data::DataLoader;

use crate::common::measured::Measured;
use crate::common::{Fault, NoDecoder, Samples, builder, builder_of, eventually, next, signal, threads_are};
use rustix::process::Signal;

/// Calls that time out count as waiting, also if the trainer does other work between them.
#[test]
fn loader_counts_waits_without_a_batch_and_pauses() {
    let samples = Samples::new(12).with(6, Fault::Stop, 1);
    let loader = builder_of(samples, 1).shuffle(false).build().unwrap();
    let mut batches = loader.epoch(0);
    drop(next(&mut batches).unwrap().unwrap());
    let (given, before) = (Instant::now(), loader.metrics());
    let pid = loader.pids()[0];
    eventually("it stands still", || threads_are(pid, 'T'));
    // The trainer requests another epoch, which waits for the same worker.
    assert!(loader.epoch(1).next_timeout(Duration::from_millis(300)).is_err());
    let turn = Duration::from_millis(20);
    for _ in 0..10 {
        assert!(batches.next_timeout(turn).is_err());
    }
    signal(pid, Signal::CONT);
    let asked = Instant::now();
    assert_eq!(next(&mut batches).unwrap().unwrap().info.number, 1);
    let after = loader.metrics();
    assert!(after.waited - before.waited >= 10 * turn, "{before:?} {after:?}");
    assert!(after.elapsed - before.elapsed >= asked - given, "{before:?} {after:?}");
    assert!(after.waited <= after.elapsed, "{after:?}");
}

#[test]
fn batches_are_made_while_the_trainer_is_busy() {
    let measured = Measured::new([1; 200]);
    let loader = DataLoader::builder(measured.clone()).num_workers(1).prefetch_factor(4).build().unwrap();
    let mut batches = loader.epoch(0);
    let mut most = 0;
    for given in 1..=196 {
        assert!(next(&mut batches).unwrap().is_ok());
        eventually("four others are begun", || measured.now() == given + 4);
        let metrics = loader.metrics();
        assert_eq!(metrics.in_flight, 4);
        most = most.max(metrics.ready);
    }
    assert!(most > 0, "no batch was ready, although four were begun");
}

#[test]
fn loader_byte_count_includes_all_columns() {
    for workers in [0, 1] {
        let loader = builder(9, workers).build().unwrap();
        let (mut batches, mut bytes) = (loader.epoch(0), 0);
        while let Some(batch) = next(&mut batches) {
            let (numbers, ragged, texts) = batch.unwrap().into_inner();
            bytes += numbers.nbytes() + ragged.values().nbytes() + ragged.offsets().nbytes();
            bytes += texts.to_vec().unwrap().concat().len() + 8 * (texts.len() + 1);
        }
        assert_eq!(loader.metrics().bytes, bytes as u64);
    }
}

#[test]
fn fatal_loader_error_is_counted_once() {
    let loader = DataLoader::builder(NoDecoder).batch_size(2).num_workers(0).build().unwrap();
    let mut batches = loader.epoch(0);
    assert!(next(&mut batches).unwrap().is_err());
    assert!(next(&mut batches).is_none());
    let metrics = loader.metrics();
    assert_eq!((metrics.batches, metrics.failed, metrics.skipped_batches), (0, 1, 0), "{metrics}");
}
