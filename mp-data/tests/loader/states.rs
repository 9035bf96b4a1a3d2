//! States of delivered batches, and changes of the dataset.

use mp_data::plan::PlanError;
use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, LoaderState, OnError};
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::common::shards::{Shards, streaming};
use crate::common::{Fault, Samples, all, bare, builder, builder_of, bytes, eventually, kept, next};

#[test]
fn state_of_unordered_batches_belongs_to_its_rank() {
    let of = |rank, world, samples: Samples| {
        bare(samples, 2).shuffle(true).global_batch_size(4).distributed(rank, world).in_order(false)
    };
    // Batch 0 arrives last.
    let plan = of(1, 2, Samples::new(40)).build().unwrap().plan().clone();
    let first = plan.epoch(0).batch(0).unwrap().unwrap().items[0].index;
    let loader = of(1, 2, Samples::new(40).with(first, Fault::Hang, 1)).build().unwrap();
    let mut batches = loader.epoch(0);
    assert_eq!(bytes(&next(&mut batches).unwrap().unwrap()).1, 1);
    let state = batches.state();
    assert_eq!((state.next(), state.out_of_order()), (0, &[1][..]));
    let resume = |rank, world| of(rank, world, Samples::new(40)).build().unwrap().resume(&state);
    assert_eq!(all(resume(1, 2).unwrap()).len(), 9);
    let said = |rank, world| resume(rank, world).unwrap_err().to_string();
    for (text, what, numbers) in [
        (said(0, 2), ": rank (", " is 1 in the state, 0 in the plan"),
        (said(0, 1), ": world (", " is 2 in the state, 1 in the plan"),
    ] {
        assert!(text.contains(what) && text.contains("out of order") && text.ends_with(numbers), "{text}");
    }
}

#[test]
fn state_of_another_dataset_needs_permission() {
    let of = |len| builder(len, 1);
    let mut batches = of(40).build().unwrap().epoch(1);
    (0..3).for_each(|_| drop(next(&mut batches).unwrap().unwrap()));
    let state = batches.state();
    let error = of(60).build().unwrap().resume(&state).unwrap_err();
    assert!(error.to_string().contains("len is 40 in the state, 60 in the plan"), "{error}");
    let grown = of(60).allow_changed_dataset(true).build().unwrap();
    assert_eq!(all(grown.resume(&state).unwrap()), all(grown.epoch(1))[3..]);
    let error = of(60).allow_changed_dataset(true).batch_size(5).build().unwrap().resume(&state).unwrap_err();
    assert!(
        error.to_string().contains("`batch_size`") && !error.to_string().contains("global_batch"),
        "{error}"
    );
}

#[test]
fn changed_dataset_ignores_unordered_deliveries() {
    let of = |len| builder(len, 0).in_order(false).allow_changed_dataset(true).build().unwrap();
    let mut state = serde_json::to_value(of(40).epoch(1).state()).unwrap();
    state["beyond"] = serde_json::json!([1, 2]);
    let state: LoaderState = serde_json::from_value(state).unwrap();
    assert!(matches!(of(60).resume(&state), Err(PlanError::StateChanged)));
    // The batches 1 and 2 that were delivered had other samples.
    assert_eq!(all(of(60).resume(&state.sealed()).unwrap()), all(of(60).epoch(1)));
}

#[test]
fn states_of_the_last_1024_batches_are_kept() {
    let loader = builder(1100, 0).batch_size(1).build().unwrap();
    let mut batches = loader.epoch(0);
    let mut states = Vec::new();
    while let Some(batch) = next(&mut batches) {
        assert_eq!(batch.unwrap().info.number, states.len() as u64);
        states.push(batches.state());
    }
    assert_eq!(batches.state_after(1100 - 1025), None);
    for number in [1100 - 1024, 1099] {
        assert_eq!(batches.state_after(number).as_ref(), states.get(number as usize));
    }
    // Of two batches with the same number, the last one counts.
    let loader = builder(8, 0).build().unwrap();
    let mut batches = loader.epochs(0..2);
    (0..4).for_each(|_| drop(next(&mut batches).unwrap().unwrap()));
    assert_eq!(batches.state_after(0).map(|state| (state.epoch(), state.next())), Some((1, 1)));
}

/// Dataset whose samples all fail.
#[derive(Serialize, Deserialize)]
struct Fails(usize);

impl Dataset for Fails {
    type Batch = Tensor<u8>;

    fn len(&self) -> usize {
        self.0
    }

    fn fetch(&mut self, _: &[Item], _: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        Err("it is bad".into())
    }
}

#[test]
fn errors_of_the_last_1024_skipped_batches_are_kept() {
    let loader = DataLoader::builder(Fails(1100)).on_error(OnError::SkipBatch).build().unwrap();
    let mut batches = loader.epoch(0);
    assert!(next(&mut batches).is_none());
    let numbers: Vec<u64> = batches.skipped_batches().iter().map(|error| error.batch).collect();
    assert_eq!(numbers, (1100 - 1024..1100).collect::<Vec<_>>());
    assert_eq!(loader.metrics().skipped_batches, 1100);
}

#[test]
fn set_dataset_keeps_settings_and_recounts_lanes() {
    let bad = |len| Samples::new(len).with(5, Fault::Error, -1);
    let mut loader = builder_of(bad(8), 2).batch_size(2).on_error(OnError::SkipBatch).build().unwrap();
    loader.set_dataset(bad(12)).unwrap();
    let mut batches = loader.epoch(0);
    let given = std::iter::from_fn(|| next(&mut batches)).filter(Result::is_ok).count();
    assert_eq!((given, batches.skipped_batches().len()), (5, 1));
    eventually("there are two workers", || loader.pids().len() == 2);
    // One lane for each shard.
    let mut loader = streaming(&[4, 4], 0).build().unwrap();
    let state = loader.epoch(0).state();
    assert_eq!(loader.lanes(), 2);
    loader.set_dataset(Shards::new(&[4; 5])).unwrap();
    assert_eq!(loader.lanes(), 5);
    assert!(loader.resume(&state).is_err());
}

/// With several threads, each sample of a batch gets the full number of attempts, also after another sample
/// was skipped.
#[test]
fn skipped_sample_does_not_reduce_attempts_of_others() {
    let (always, twice) = (0, 3);
    let samples = Samples::new(4).with(always, Fault::Kill, -1).with(twice, Fault::Kill, 2);
    let loader = builder_of(samples, 1).shuffle(false).threads_per_worker(2).retries(2);
    let loader = loader.on_error(OnError::SkipSample).build().unwrap();
    let mut batches = loader.epoch(0);
    let batch = next(&mut batches).unwrap().unwrap();
    assert_eq!(batch.info.indices(), [1, 2, 3], "{:?}", batch.info.skipped);
    let state = kept(&batches.state());
    assert_eq!((state.next(), next(&mut batches).is_none()), (1, true));
}
