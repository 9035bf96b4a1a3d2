//! Facts before the first batch: number of batches, name of the loader, kind of a state.

use mp_data::plan::{Batching, IndexSampler};
use mp_data::{
    AnyResult, BuildError, Context, DataLoader, Dataset, Item, LoaderState, OnError, StreamLoader,
    StreamState,
};
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::common::shards::Shards;
use crate::common::{Fault, Samples, all, bare, builder, kept, next};

#[test]
fn state_of_the_other_loader_kind_is_refused() {
    let loader = builder(8, 0).build().unwrap();
    let text = serde_json::to_string(&loader.epoch(0).state()).unwrap();
    let error = serde_json::from_str::<StreamState>(&text).unwrap_err().to_string();
    assert!(error.contains("the state of a `StreamLoader` begins"), "{error}");
    let stream = StreamLoader::builder(Shards::new(&[8])).build().unwrap();
    let text = serde_json::to_string(&stream.epoch(0).state()).unwrap();
    let error = serde_json::from_str::<LoaderState>(&text).unwrap_err().to_string();
    assert!(error.contains("the state of a `DataLoader` begins"), "{error}");
}

#[test]
fn invalid_loader_process_name_is_refused() {
    for name in ["", "a\nb", "a\0b"] {
        let error = builder(8, 1).name(name).build().unwrap_err();
        assert!(matches!(error, BuildError::Setting { setting: "name", .. }), "{error}");
        let error = StreamLoader::builder(Shards::new(&[8])).name(name).build().unwrap_err();
        assert!(matches!(error, BuildError::Setting { setting: "name", .. }), "{error}");
    }
}

/// Sampler whose number of draws is the number of the epoch.
#[derive(Debug)]
struct Growing;

impl IndexSampler for Growing {
    fn name(&self) -> &str {
        "growing/1"
    }

    fn len(&self, epoch: u64) -> u64 {
        epoch
    }

    fn index(&self, _: u64, k: u64) -> u64 {
        k
    }
}

#[test]
fn size_hint_of_an_epoch_is_exact_for_known_lengths() {
    for workers in [0, 2] {
        let loader = builder(30, workers).in_order(false).build().unwrap();
        assert_eq!(loader.batches_in_epoch(7), Some(8));
        let mut batches = loader.epochs(1..4);
        let mut states = vec![batches.state()];
        for left in (0..=24).rev() {
            assert_eq!(batches.size_hint(), (left, Some(left)));
            assert_eq!(next(&mut batches).is_some(), left > 0);
            states.push(batches.state());
        }
        for state in states {
            let batches = loader.resume_until(&state, 4).unwrap();
            let hint = batches.size_hint();
            let came = all(batches).len();
            assert_eq!(hint, (came, Some(came)), "{state:?}");
        }
        assert_eq!(loader.epochs(3..3).size_hint(), (0, Some(0)));
        assert_eq!(builder(0, workers).build().unwrap().epochs(0..9).size_hint(), (0, Some(0)));
        assert_eq!(loader.epochs(0..u64::MAX).size_hint(), (0, None), "more than can be counted");

        // A batch may be skipped.
        for how in [OnError::SkipBatch, OnError::SkipSample] {
            let one = Samples::new(5).with(3, Fault::Error, -1);
            let loader = bare(one, workers).on_error(how).build().unwrap();
            let batches = loader.epoch(0);
            assert_eq!(batches.size_hint(), (0, Some(5)), "{how:?}");
            assert_eq!(all(batches).len(), 4, "{how:?}");
        }
        // An error counts as a batch.
        let one = Samples::new(5).with(3, Fault::Error, -1);
        let loader = bare(one, workers).build().unwrap();
        assert_eq!((loader.epoch(0).size_hint(), loader.epoch(0).count()), ((5, Some(5)), 5));
        // A sampler of the user may return another length the next time.
        let loader = bare(Samples::new(30), workers).index_sampler(Growing).build().unwrap();
        assert_eq!((loader.batches_in_epoch(4), loader.batches_in_epoch(9)), (Some(4), Some(9)));
        assert_eq!(loader.epoch(4).size_hint(), (0, Some(4)));
        let lengths = [3; 30].into();
        let tokens = Batching::MaxTokens { lengths, tokens: 9, window: 30 };
        let loader = bare(Samples::new(30), workers).batching(tokens).build().unwrap();
        assert_eq!((loader.batches_in_epoch(0), loader.epoch(0).size_hint()), (None, (0, None)));
    }
}

/// Dataset with a sample for each number below 2^40.
#[derive(Serialize, Deserialize)]
struct Vast;

impl Dataset for Vast {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        1 << 40
    }

    fn fetch(&mut self, items: &[Item], cx: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        cx.rows(items, &[2], |item, rng, row| {
            row.copy_from_slice(&[item.index as u64, rng.next_u64()]);
            Ok(())
        })
    }
}

#[test]
fn dataset_of_2_40_samples_shuffles_and_resumes() {
    let small = |workers| {
        let loader = DataLoader::builder(Vast).batch_size(4).shuffle(true).seed(17).num_workers(workers);
        loader.build().unwrap()
    };
    let loader = small(1);
    assert_eq!(loader.batches_in_epoch(0), Some(1 << 38));
    let mut batches = loader.epoch(0);
    assert_eq!(batches.size_hint(), (1 << 38, Some(1 << 38)));
    let mut rows = |count: usize| -> Vec<u64> {
        (0..count).flat_map(|_| next(&mut batches).unwrap().unwrap().to_vec()).collect()
    };
    let first = rows(5);
    assert!(first.as_chunks::<2>().0.iter().all(|[index, _]| *index < 1 << 40));
    assert!(first.as_chunks::<2>().0.iter().any(|[index, _]| *index > 1 << 36));
    let second = rows(5);
    // Another loader continues in the same order, without the earlier batches.
    let whole = small(0);
    let mut again = whole.epoch(0);
    (0..5).for_each(|_| _ = next(&mut again).unwrap().unwrap());
    let state = kept(&again.state());
    let other = small(2);
    let mut resumed = other.resume(&state).unwrap();
    let given: Vec<u64> = (0..5).flat_map(|_| next(&mut resumed).unwrap().unwrap().to_vec()).collect();
    assert_eq!(given, second);
}
