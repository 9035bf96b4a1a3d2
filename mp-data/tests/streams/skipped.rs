//! Loaders that skip all batches: they end, with an error that contains the cause.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use mp_data::plan::PlanError;
use mp_data::{OnError, StreamLoaderBuilder};

use crate::common::shards::{ANY_SAMPLE, ANY_SHARD, Shards, When, all_of, next_of, streaming_of};
use crate::common::{DEADLINE, Fault, Random};

const EVERYWHERE: [When; 4] = [When::Open, When::Read, When::Row, When::Fetch];
const EVERY_POLICY: [OnError; 3] = [OnError::Report, OnError::SkipBatch, OnError::SkipSample];

/// Returns the delivered batches and the errors of an epoch, which must end. The iteration runs in another
/// thread, which makes the batches if there are no workers.
#[track_caller]
fn results(what: &str, loader: StreamLoaderBuilder<Shards>, most: usize) -> Vec<Result<usize, String>> {
    let (report, reported) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let loader = loader.build().unwrap();
        let mut batches = loader.epoch(0);
        let mut all = Vec::new();
        while let Some(next) = next_of(&mut batches) {
            all.push(next.map(|batch| batch.info.items.len()).map_err(|error| error.to_string()));
            assert!(all.len() <= most, "more than {most} results: {all:?}");
        }
        assert!(next_of(&mut batches).is_none());
        _ = report.send(all);
    });
    let all = reported.recv_timeout(DEADLINE);
    let Ok(all) = all else { panic!("{what}: {all:?}") };
    thread.join().unwrap();
    all
}

#[test]
fn steps_without_any_batch_end_with_an_error() {
    for workers in [0, 1] {
        for when in EVERYWHERE {
            for how in EVERY_POLICY {
                for fault in [Fault::Error, Fault::Panic] {
                    let what = format!("{workers} {when:?} {how:?} {fault:?}");
                    let shards = Shards::new(&[6, 5]).with((when, ANY_SHARD, ANY_SAMPLE), fault, -1);
                    let loader = streaming_of(shards, workers).lanes(2).steps(3).on_error(how);
                    let all = results(&what, loader, 100);
                    assert!(all.iter().all(Result::is_err), "{what}: {all:?}");
                    let last = all.last().unwrap().as_ref().unwrap_err();
                    // With `Report`, each of the steps is an error, unless no shard can be opened.
                    if all.len() < 3 {
                        assert!(last.contains("`steps`"), "{what}: {all:?}");
                    }
                    if how == OnError::SkipBatch {
                        assert_eq!(all.len(), 1, "{what}: {all:?}");
                        let (batch, why) = ("left out: batch ", "in ");
                        assert!(last.contains(batch) && last.contains(why), "{what}: {last}");
                    }
                }
            }
        }
    }
}

#[test]
fn shard_without_end_ends_after_1024_skipped_batches() {
    for (workers, when, steps) in [(0, When::Read, None), (0, When::Row, Some(3)), (1, When::Read, Some(3))] {
        let what = format!("{workers} {when:?} {steps:?}");
        let shards = Shards::new(&[1 << 40]).with((when, ANY_SHARD, ANY_SAMPLE), Fault::Error, -1);
        let loader = streaming_of(shards, workers).on_error(OnError::SkipBatch);
        let loader = if let Some(steps) = steps { loader.steps(steps) } else { loader };
        let all = results(&what, loader, 1);
        let last = all.last().unwrap().as_ref().unwrap_err();
        assert!(last.contains("1024 batches in a row were left out; the last one: "), "{what}: {last}");
    }
}

#[test]
fn stream_epoch_ends_at_any_combination_of_failures() {
    let begun = Instant::now();
    for round in 0..400 {
        if round >= 60 && begun.elapsed() > Duration::from_secs(5) {
            break;
        }
        let mut random = Random(7000 + round);
        let sizes: Vec<u64> = (0..=random.below(4)).map(|_| random.below(9)).collect();
        let mut shards = Shards::new(&sizes);
        let workers = if random.below(4) == 0 { 1 + random.below(2) as usize } else { 0 };
        let mut faults = Vec::new();
        for _ in 0..=random.below(3) {
            let when = EVERYWHERE[random.below(4) as usize];
            let shard =
                if random.below(3) == 0 { ANY_SHARD } else { random.below(sizes.len() as u64) as usize };
            let sample = if random.below(3) == 0 { ANY_SAMPLE } else { random.below(9) };
            let kills = workers > 0 && random.below(4) == 0;
            let fault = match random.below(2) {
                _ if kills => Fault::Kill,
                0 => Fault::Error,
                _ => Fault::Panic,
            };
            let times = if kills || random.below(3) == 0 { 1 + random.below(3) as i64 } else { -1 };
            shards = shards.with((when, shard, sample), fault, times);
            faults.push((when, shard, sample, fault, times));
        }
        let steps = (random.below(3) > 0).then(|| 1 + random.below(8));
        let (lanes, window, drop_last) = (1 + random.below(3), 5 * random.below(2), random.below(3) == 0);
        let how = EVERY_POLICY[random.below(3) as usize];
        let what = format!("{round}: {sizes:?} {faults:?} {workers} {steps:?} {lanes} {window} {how:?}");
        let mut loader = streaming_of(shards, workers).lanes(lanes).drop_last(drop_last).on_error(how);
        loader = loader.retries(1);
        if window > 0 {
            loader = loader.shuffle_window(window);
        }
        if let Some(steps) = steps {
            loader = loader.steps(steps);
        }
        let samples = sizes.iter().sum::<u64>() as usize;
        let most = steps.map_or(4 * samples + 4 * sizes.len(), |steps| steps as usize + 1);
        let all = results(&what, loader, most);
        // The number of steps, or an error that explains the missing steps.
        if let Some(steps) = steps.filter(|steps| all.len() as u64 != *steps) {
            let last = all.last().unwrap().as_ref().unwrap_err();
            assert!(last.contains("`steps`"), "{what}: {steps} {all:?}");
        }
    }
}

/// If batches of a pass were delivered before the resume, the pass does not count as skipped.
#[test]
fn batches_before_a_resume_count_for_their_pass() {
    for first in 0..4_u64 {
        // Of four batches, the batches after the first ones fail, in the first pass only.
        let mut shards = Shards::new(&[16]);
        for sample in 4 * first..16 {
            shards = shards.with((When::Row, 0, sample), Fault::Error, 1);
        }
        let of = |shards| streaming_of(shards, 0).steps(6).on_error(OnError::SkipBatch).build().unwrap();
        let state = {
            let loader = of(Shards::new(&[16]));
            let mut batches = loader.epoch(0);
            (0..first).for_each(|_| drop(next_of(&mut batches).unwrap().unwrap()));
            batches.state()
        };
        let loader = of(shards);
        let mut batches = loader.resume(&state).unwrap();
        if first == 0 {
            let error = next_of(&mut batches).unwrap().unwrap_err();
            let plan = error.source.downcast_ref::<PlanError>();
            assert!(matches!(plan, Some(PlanError::Setting { setting: "steps", .. })), "{error}");
            assert_eq!(batches.skipped_batches().len(), 4);
            assert!(next_of(&mut batches).is_none());
        } else {
            assert_eq!(all_of(batches).len() as u64, 6 - first);
        }
    }
}

#[test]
fn epochs_of_skipped_batches_end_with_an_error() {
    for workers in [0, 1] {
        let shards = Shards::new(&[6, 5]).with((When::Fetch, ANY_SHARD, ANY_SAMPLE), Fault::Error, -1);
        let loader = streaming_of(shards, workers).lanes(2).on_error(OnError::SkipBatch).build().unwrap();
        let mut batches = loader.epochs(3..u64::MAX);
        let error = next_of(&mut batches).unwrap().unwrap_err().to_string();
        assert!(error.contains("epoch 4") && error.contains("left out: batch 3 of epoch 3"), "{error}");
        assert!(next_of(&mut batches).is_none());
        // A single epoch ends without an error. The iterator stores the skipped errors.
        let mut batches = loader.epoch(3);
        assert!(next_of(&mut batches).is_none());
        assert_eq!(batches.skipped_batches().len(), 4);
    }
}

/// Without workers, the caller makes each batch, and the time-out applies between two batches.
#[test]
fn next_timeout_of_a_loader_ends_between_skips() {
    let shards = Shards::new(&[1000]).with((When::Row, 0, ANY_SAMPLE), Fault::Error, -1);
    let loader = streaming_of(shards, 0).on_error(OnError::SkipBatch).build().unwrap();
    let mut batches = loader.epoch(0);
    let late = batches.next_timeout(Duration::ZERO).unwrap_err().to_string();
    assert!(late.contains("1 batch was left out since") && late.contains("Row of 0 in 0"), "{late}");
    assert!(next_of(&mut batches).is_none());
    assert_eq!(batches.skipped_batches().len(), 250);
}
