//! Failures of streams: lost samples and error texts.

use std::collections::BTreeSet;
use std::time::Duration;

use mp_data::{
    AnyResult, BuildError, Context, Item, IterableDataset, OnError, Samples, ShardPosition, StreamLoader,
    StreamLoaderBuilder, StreamState,
};
use mp_pool::TaskError;
use mp_tensor::Tensor;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::common::shards::{
    Shards, Streamed, When, all_of, next_of, places, streamed, streaming, streaming_of,
};
use crate::common::{Fault, eventually, signal, threads_are};
use crate::{SIZES, shuffled};

#[test]
fn killed_stream_worker_costs_no_sample() {
    let expected = all_of(shuffled(0).build().unwrap().epoch(0));
    for (when, shard, sample) in [(When::Open, 4, 0), (When::Read, 2, 9), (When::Row, 6, 3)] {
        for (workers, threads, times) in [(1, 1, 1), (2, 1, 2), (2, 2, 1)] {
            let shards = Shards::new(&SIZES).with((when, shard, sample), Fault::Kill, times);
            let loader = streaming_of(shards, workers).lanes(3).shuffle_window(7);
            let loader = loader.threads_per_worker(threads).build().unwrap();
            assert_eq!(all_of(loader.epoch(0)), expected, "{when:?} {workers} {threads}");
            assert!(loader.metrics().restarts >= times as u64);
        }
    }
}

/// Returns the errors of an epoch, and the remaining batches.
fn with_errors(loader: StreamLoaderBuilder<Shards>) -> (Vec<mp_data::LoadError>, Vec<Streamed>) {
    let loader = loader.build().unwrap();
    let mut batches = loader.epoch(0);
    let (mut errors, mut rest) = (Vec::new(), Vec::new());
    while let Some(next) = next_of(&mut batches) {
        match next {
            Ok(batch) => rest.push(streamed(&batch)),
            Err(error) => errors.push(error),
        }
    }
    (errors, rest)
}

#[test]
fn stream_error_names_shard_and_costs_one_batch() {
    // Lane 1 of 3 has the shards 1 and 4 (8 samples).
    let plain = |workers| streaming(&SIZES, workers).lanes(3);
    let expected = all_of(plain(0).build().unwrap().epoch(0));
    for workers in [0, 2] {
        for (when, fault) in [
            (When::Row, Fault::Error),
            (When::Read, Fault::Error),
            (When::Row, Fault::Panic),
            (When::Row, Fault::Kill),
        ] {
            if workers == 0 && fault == Fault::Kill {
                continue;
            }
            let shards = || Shards::new(&SIZES).with((when, 4, 1), fault, -1);
            let of = |how| streaming_of(shards(), workers).lanes(3).retries(1).on_error(how);
            let (errors, rest) = with_errors(of(OnError::Report));
            let [error] = &errors[..] else { panic!("{errors:?}") };
            assert_eq!((error.shard, error.item.map(|item| item.index)), (Some(4), Some(1)), "{error}");
            assert_eq!((error.epoch, error.batch), (0, 1));
            assert_eq!(error.attempts, if fault == Fault::Kill { 2 } else { 1 }, "{error}");
            let text = error.to_string();
            assert!(text.starts_with("batch 1 of epoch 0, sample 1 of shard 4 (shard-4.tar)"), "{text}");
            let others: Vec<_> = expected.iter().filter(|batch| batch.1 != 1).cloned().collect();
            assert_eq!(rest, others, "{when:?} {fault:?}");
            // With the batch skipped, and with the sample skipped.
            let (errors, rest) = with_errors(of(OnError::SkipBatch));
            assert!(errors.is_empty() && rest == others);
            let (errors, rest) = with_errors(of(OnError::SkipSample));
            assert!(errors.is_empty());
            let left: Vec<_> = places(&expected).into_iter().filter(|place| *place != (4, 1)).collect();
            assert_eq!(places(&rest), left);
        }
    }
}

#[test]
fn unreadable_shard_of_a_stream_is_skipped() {
    for workers in [0, 2] {
        for (when, sample, fault) in [
            (When::Open, 0, Fault::Error),
            (When::Open, 0, Fault::Panic),
            (When::Read, 5, Fault::Panic),
            (When::Read, 5, Fault::Kill),
            (When::Open, 0, Fault::Kill),
            (When::Read, 5, Fault::Hang),
        ] {
            if workers == 0 && matches!(fault, Fault::Kill | Fault::Hang) {
                continue;
            }
            for window in [0, 7] {
                let shards = || Shards::new(&SIZES).with((when, 2, sample), fault, -1);
                let of = |how| {
                    let loader = streaming_of(shards(), workers).lanes(2).retries(1).on_error(how);
                    let loader = if window > 0 { loader.shuffle_window(window) } else { loader };
                    loader.timeout(Duration::from_millis(if fault == Fault::Hang { 1000 } else { 60_000 }))
                };
                let what = format!("{workers} {when:?} {fault:?} {window}");
                let (errors, rest) = with_errors(of(OnError::Report));
                let [error] = &errors[..] else { panic!("{what}: {errors:?}") };
                assert_eq!(error.shard, Some(2), "{what}: {error}");
                assert_eq!(error.item.map(|item| item.index as u64), Some(sample), "{what}: {error}");
                if let Some(task) = error.task() {
                    let lost = matches!(task, TaskError::WorkerLost(_) | TaskError::TimedOut { .. });
                    assert_eq!(lost, matches!(fault, Fault::Kill | Fault::Hang), "{what}: {error}");
                }
                // At most three samples of the batch are lost in addition to the rest of the shard.
                let all = places(&rest);
                let whole: u64 = SIZES.iter().sum::<u64>() - (SIZES[2] - sample);
                assert!(all.len() as u64 >= whole - 4, "{what}: {all:?}");
                assert!(all.iter().all(|(shard, n)| *shard != 2 || *n < sample), "{what}");
                assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{what}: none twice");
                // With `SkipSample`, only the rest of the shard is missing.
                let (errors, rest) = with_errors(of(OnError::SkipSample));
                assert!(errors.is_empty(), "{what}: {errors:?}");
                let all: BTreeSet<_> = places(&rest).into_iter().collect();
                assert_eq!((all.len(), places(&rest).len()), (whole as usize, whole as usize), "{what}");
            }
        }
    }
}

#[test]
fn skipped_stream_samples_are_reported() {
    let shards = Shards::new(&[6, 6]).with((When::Read, 0, 2), Fault::Panic, -1).with(
        (When::Row, 1, 1),
        Fault::Error,
        -1,
    );
    let loader = streaming_of(shards, 1).lanes(1).on_error(OnError::SkipSample).build().unwrap();
    let mut batches = loader.epoch(0);
    let first = next_of(&mut batches).unwrap().unwrap();
    let reported: Vec<_> = first
        .info
        .skipped
        .iter()
        .map(|skipped| (skipped.shard.unwrap(), skipped.item.index, skipped.rest_of_shard))
        .collect();
    assert_eq!(reported, [(0, 2, true), (1, 1, false)]);
    assert_eq!(places(&[streamed(&first)]), [(0, 0), (0, 1), (1, 0)]);
    assert_eq!(loader.metrics().skipped_samples, 2);
    // The state contains the cut, so the failure does not happen again.
    let state = batches.state();
    drop((batches, loader));
    let loader = streaming(&[6, 6], 0).lanes(1).build().unwrap();
    assert_eq!(places(&all_of(loader.resume(&state).unwrap())), [(1, 2), (1, 3), (1, 4), (1, 5)]);
}

/// Skipped batches don't count towards `steps`, whether they are skipped before or after the delivery of
/// earlier batches.
#[test]
fn steps_of_an_epoch_do_not_count_skipped_batches() {
    // The last of four batches of each pass fails. At first lane 0 is stopped, and lane 1 has ended.
    let shards = Shards::new(&[8, 8]).with((When::Row, 1, 5), Fault::Error, -1);
    let shards = shards.with((When::Row, 0, 0), Fault::Stop, 1);
    let loader = streaming_of(shards, 2).steps(4).on_error(OnError::SkipBatch).build().unwrap();
    let mut batches = loader.epoch(0);
    eventually("it is left out", || {
        assert!(batches.next_timeout(Duration::from_millis(5)).is_err());
        !batches.skipped_batches().is_empty()
    });
    let stopped = loader.pids().into_iter().find(|pid| threads_are(*pid, 'T')).expect("a worker is stopped");
    signal(stopped, Signal::CONT);
    let mut states = vec![batches.state()];
    while let Some(batch) = next_of(&mut batches) {
        drop(batch.unwrap());
        states.push(batches.state());
    }
    assert_eq!(states.iter().map(StreamState::batches).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    // After each resume, the number of remaining batches is right.
    for (given, state) in states.iter().enumerate() {
        assert_eq!(all_of(loader.resume(state).unwrap()).len(), 4 - given);
    }
    // In two passes, two batches are skipped.
    let loader = streaming_of(Shards::new(&[8, 8]).with((When::Row, 1, 5), Fault::Error, -1), 0);
    let loader = loader.steps(6).on_error(OnError::SkipBatch).build().unwrap();
    let given: Vec<u64> = all_of(loader.epochs(0..2)).iter().map(|batch| batch.0).collect();
    assert_eq!(given, [[0; 6], [1; 6]].concat());
}

/// Dataset whose batches all fail, and always name the first sample.
#[derive(Serialize, Deserialize)]
struct SaysTheFirst;

impl IterableDataset for SaysTheFirst {
    type Batch = Tensor<u64>;
    type Reader = std::vec::IntoIter<AnyResult<u64>>;

    fn shards(&self) -> usize {
        1
    }

    fn open(&mut self, _: usize, _: ShardPosition) -> AnyResult<Self::Reader> {
        Ok((0..8).map(Ok).collect::<Vec<_>>().into_iter())
    }

    fn fetch(&mut self, _: Samples<u64>, cx: &mut Context<Tensor<u64>>) -> AnyResult<Tensor<u64>> {
        cx.begin(Item { index: 0, position: 0 });
        Err("it is bad".into())
    }
}

/// The failure names a sample. If skipping that sample does not remove the failure, the failure is returned
/// as an error.
#[test]
fn batch_failing_without_its_sample_is_an_error() {
    let loader = StreamLoader::builder(SaysTheFirst).batch_size(4).num_workers(1);
    let loader = loader.on_error(OnError::SkipSample).build().unwrap();
    let mut batches = loader.epoch(0);
    for number in 0..2 {
        let error = next_of(&mut batches).unwrap().unwrap_err();
        assert_eq!((error.batch, error.item.map(|item| item.index)), (number, Some(0)), "{error}");
    }
    assert!(next_of(&mut batches).is_none());
}

/// `drop_last` drops batches that are short because the lane has ended.
#[test]
fn batch_with_skipped_sample_is_kept_by_drop_last() {
    for workers in [0, 1] {
        let shards = Shards::new(&[10]).with((When::Row, 0, 1), Fault::Error, -1);
        let loader = streaming_of(shards, workers).drop_last(true).on_error(OnError::SkipSample);
        let given = places(&all_of(loader.build().unwrap().epoch(0)));
        assert_eq!(given, [0, 2, 3, 4, 5, 6, 7].map(|sample| (0, sample)));
    }
}

#[test]
fn bad_stream_settings_states_and_tokens_are_refused() {
    let said = |builder: StreamLoaderBuilder<Shards>| match builder.build().unwrap_err() {
        BuildError::Setting { setting, reason } => format!("{setting}: {reason}"),
        other => panic!("{other}"),
    };
    assert!(said(streaming(&[], 0)).contains("distributed: the dataset has 0 shards"));
    assert!(said(streaming(&[1, 2], 0).distributed(0, 3)).contains("fewer than there are ranks (3)"));
    assert!(said(streaming(&[1, 2], 0).distributed(3, 2)).contains("rank 3 with 2 ranks"));
    assert!(said(streaming(&[1], 0).batch_size(0)).contains("batch_size"));
    assert!(said(streaming(&[1], 0).lanes(0)).contains("lanes"));
    assert!(said(streaming(&[1], 1001)).contains("num_workers"));

    let loader = shuffled(0).build().unwrap();
    let mut batches = loader.epoch(0);
    for _ in 0..5 {
        _ = next_of(&mut batches).unwrap().unwrap();
    }
    let state = batches.state();
    let others = [
        ("seed", shuffled(0).seed(18)),
        ("shards", streaming(&SIZES[..5], 0).lanes(3).shuffle_window(7)),
        ("lanes", shuffled(0).lanes(2)),
        ("rank", shuffled(0).distributed(1, 2).lanes(3)),
        ("world", shuffled(0).distributed(0, 2).lanes(3)),
        ("batch_size", shuffled(0).batch_size(5)),
        ("shuffle_window", shuffled(0).shuffle_window(8)),
        ("shuffle", streaming(&SIZES, 0).lanes(3)),
        ("steps", shuffled(0).steps(7)),
        ("drop_last", shuffled(0).drop_last(true)),
    ];
    for (what, builder) in others {
        let error = builder.build().unwrap().resume(&state).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
    // A state whose text was changed.
    let text = serde_json::to_string(&state).unwrap();
    assert!(text.len() < 800, "{text}");
    let change = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        serde_json::from_str::<StreamState>(&text.replacen(from, to, 1))
    };
    let says = |state: &StreamState, what: &str| {
        let error = loader.resume(state).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    says(&change("stream/1", "stream/2").unwrap(), "format");
    // States with possible values and a wrong checksum, and then states with impossible values and a correct
    // checksum.
    for (from, to) in [
        ("\"place\":0", "\"place\":1"),
        ("\"sample\":0", "\"sample\":1"),
        ("\"token\":70", "\"token\":80"),
        ("\"done\":1", "\"done\":2"),
        ("\"window\":[[0,8],[1,6]]", "\"window\":[[0,8],[1,5]]"),
        ("\"cuts\":[]", "\"cuts\":[[0,3]]"),
        ("\"round\":2", "\"round\":3"),
        ("\"ended\":false", "\"ended\":true"),
        ("\"epoch\":0", "\"epoch\":1"),
        ("\"pass\":0", "\"pass\":1"),
        ("\"first\":0", "\"first\":1"),
        ("\"batches\":5", "\"batches\":4"),
    ] {
        says(&change(from, to).unwrap(), "checksum");
    }
    for (from, to) in [
        ("\"place\":0", "\"place\":99"),
        ("\"done\":1", "\"done\":99"),
        ("\"window\":[[0,8],[1,6]]", "\"window\":[[0,8],[1,7]]"),
        ("\"window\":[[0,8],[1,6]]", "\"window\":[[0,8],[0,7]]"),
        ("\"window\":[[0,8],[1,6]]", "\"window\":[[0,8],[7,6]]"),
        ("\"cuts\":[]", "\"cuts\":[[7,3]]"),
        ("\"round\":2", "\"round\":18446744073709551615"),
        ("\"first\":0", "\"first\":3"),
        ("\"pass\":0", "\"pass\":1099511627776"),
    ] {
        says(&change(from, to).unwrap().sealed(), "lanes");
    }
    // No lane can have reached this round, but the search for the next batch takes no time.
    let far = change("\"round\":2", "\"round\":1099511627775").unwrap().sealed();
    let mut batches = loader.resume(&far).unwrap();
    while let Some(batch) = next_of(&mut batches) {
        drop(batch.unwrap());
    }
    assert!(change("\"lanes\":[", "\"lane\":[").is_err());

    // A reader that is opened at a wrong position, and not at its token.
    let lying = |workers| streaming_of(Shards { lies: 3, ..Shards::new(&[20]) }, workers).build().unwrap();
    let loader = lying(1);
    let mut batches = loader.epoch(0);
    _ = next_of(&mut batches).unwrap().unwrap();
    let state = batches.state();
    for workers in [0, 1] {
        let loader = lying(workers);
        let mut batches = loader.resume(&state).unwrap();
        let error = next_of(&mut batches).unwrap().unwrap_err();
        assert_eq!((error.shard, error.item.map(|item| item.index)), (Some(0), Some(4)));
        assert!(error.to_string().contains("token"), "{error}");
        assert!(next_of(&mut batches).is_none(), "the rest of the shard is left out");
    }
    // A shard that has become shorter.
    let state = {
        let loader = streaming_of(Shards::new(&[20]).without_tokens(), 0).build().unwrap();
        let mut batches = loader.epoch(0);
        _ = next_of(&mut batches).unwrap().unwrap();
        batches.state()
    };
    let loader = streaming_of(Shards::new(&[3]).without_tokens(), 0).build().unwrap();
    let error = next_of(&mut loader.resume(&state).unwrap()).unwrap().unwrap_err();
    assert!(error.to_string().contains("ends after 3 samples, but 4 were read"), "{error}");
}

#[test]
fn verify_names_shard_and_sample_of_failures() {
    for workers in [0, 1] {
        for when in [When::Read, When::Row] {
            let shards = Shards::new(&[12]).with((when, 0, 6), Fault::Error, -1);
            let loader = streaming_of(shards, workers).build().unwrap();
            let error = loader.verify(9).unwrap_err();
            assert_eq!((error.shard, error.item.map(|item| item.index)), (Some(0), Some(6)), "{error}");
            let text = error.to_string();
            assert!(text.starts_with("batch 1 of epoch 0, sample 6 of shard 0 (shard-0.tar)"), "{text}");
        }
    }
}
