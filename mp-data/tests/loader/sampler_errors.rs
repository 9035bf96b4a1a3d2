//! Errors of samplers. Each error names a remedy, and loses no other batch.

use crate::common::next;
use crate::dataset_errors::{Wrong, by_themselves, numbers, outcomes};
use mp_core::user_code::catch_panic;
use mp_data::plan::{BatchSampler, IndexSampler};
use mp_data::{AnyResult, BuildError, Context, DataLoader, Dataset, Item, OnError};
use mp_tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Sampler that returns invalid indices, or panics, at some batches of two.
#[derive(Debug)]
struct Reckless {
    panics: bool,
    known: bool,
}

impl IndexSampler for Reckless {
    fn name(&self) -> &str {
        "reckless/1"
    }

    fn len(&self, epoch: u64) -> u64 {
        assert!(epoch < 2, "there is no epoch 2");
        12
    }

    fn index(&self, _: u64, k: u64) -> u64 {
        assert!(!self.panics || k != 4, "draw 4");
        if k == 4 { 100 } else { k }
    }
}

impl BatchSampler for Reckless {
    fn name(&self) -> &str {
        "reckless/1"
    }

    fn batches(&self, _: u64) -> Option<u64> {
        self.known.then_some(6)
    }

    fn batch(&self, epoch: u64, k: u64) -> Option<Vec<u64>> {
        Some(vec![IndexSampler::index(self, epoch, 2 * k), 2 * k + 1])
    }
}

#[test]
fn failing_batch_sampler_costs_one_batch() {
    for workers in [0, 2] {
        for panics in [false, true] {
            for by_batches in [false, true] {
                let of = |known| {
                    let builder = by_themselves(12, Wrong::Nothing, workers);
                    let sampler = Reckless { panics, known };
                    if by_batches {
                        builder.batch_sampler(sampler)
                    } else {
                        builder.index_sampler(sampler).batch_size(2)
                    }
                };
                let loader = of(true).build().unwrap();
                let (made, errors) = outcomes(&loader, 0);
                assert_eq!((made, errors.len()), (vec![0, 1, 3, 4, 5], 1), "{workers} {panics} {by_batches}");
                assert_eq!((errors[0].epoch, errors[0].batch), (0, 2));
                let said =
                    if panics { "draw 4" } else { "the sampler gave index 100, the dataset has 12 samples" };
                assert!(errors[0].to_string().contains(said), "{}", errors[0]);
                assert_eq!(loader.metrics().failed, 1);
                let loader = of(true).on_error(OnError::SkipBatch).build().unwrap();
                assert_eq!(outcomes(&loader, 0).0, [0, 1, 3, 4, 5]);
                assert_eq!(loader.metrics().skipped_batches, 1);
                if by_batches {
                    // If the sampler has no length, an error ends the epoch, so that a sampler without an end
                    // has one.
                    let (made, errors) = outcomes(&of(false).build().unwrap(), 0);
                    assert_eq!((made, errors.len()), (vec![0, 1], 1));
                }
            }
        }
    }
}

#[test]
fn sampler_panic_keeps_batches_of_this_epoch() {
    for workers in [0, 2] {
        let sampler = Reckless { panics: false, known: true };
        let loader =
            numbers(12, Wrong::Nothing, workers).batch_size(2).index_sampler(sampler).build().unwrap();
        let mut batches = loader.epochs(1..4);
        let mut outcomes = Vec::new();
        while let Some(outcome) = next(&mut batches) {
            outcomes.push(outcome);
        }
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 5);
        let last = outcomes.last().unwrap().as_ref().unwrap_err();
        assert!(last.epoch == 2 && last.to_string().contains("there is no epoch 2"), "{last}");
    }
}

/// Sampler that panics in the named function, in one epoch or in all epochs.
#[derive(Debug)]
struct PanicsIn(&'static str, Option<u64>);

impl PanicsIn {
    fn is_in(&self, what: &str, epoch: u64) {
        assert!(self.0 != what || self.1.is_some_and(|of| of != epoch), "a panic in {what}");
    }
}

impl IndexSampler for PanicsIn {
    fn name(&self) -> &str {
        self.is_in("name", 0);
        "panics/1"
    }

    fn len(&self, epoch: u64) -> u64 {
        self.is_in("len", epoch);
        8
    }

    fn index(&self, epoch: u64, k: u64) -> u64 {
        self.is_in("index", epoch);
        k
    }
}

impl BatchSampler for PanicsIn {
    fn name(&self) -> &str {
        IndexSampler::name(self)
    }

    fn batches(&self, epoch: u64) -> Option<u64> {
        self.is_in("batches", epoch);
        Some(2)
    }

    fn batch(&self, epoch: u64, k: u64) -> Option<Vec<u64>> {
        self.is_in("batch", epoch);
        (k < 2).then(|| (4 * k..4 * k + 4).collect())
    }
}

/// Dataset that panics in `len`.
#[derive(Serialize, Deserialize)]
struct NoLength;

impl Dataset for NoLength {
    type Batch = Tensor<u64>;

    fn len(&self) -> usize {
        panic!("no length")
    }

    fn fetch(&mut self, _: &[Item], _: &mut Context<Self::Batch>) -> AnyResult<Self::Batch> {
        unreachable!("nothing is asked for")
    }
}

#[test]
fn sampler_panic_in_any_method_is_an_error() {
    for workers in [0, 2] {
        for what in ["len", "index", "batches", "batch"] {
            let builder = by_themselves(8, Wrong::Nothing, workers);
            let by_batches = what.starts_with("batch");
            let loader = if by_batches {
                builder.batch_sampler(PanicsIn(what, Some(1))).build().unwrap()
            } else {
                builder.index_sampler(PanicsIn(what, Some(1))).batch_size(4).build().unwrap()
            };
            let said = format!("a panic in {what}");
            // Runs twice, because the errors must not change the loader.
            for _ in 0..2 {
                assert_eq!(outcomes(&loader, 0).0, [0, 1], "{what}");
                let mut batches = loader.epoch(1);
                let state = batches.state();
                let hint = batches.size_hint();
                assert!(hint.0 == 0 && (hint.1.is_none() || hint.1 >= Some(1)), "{what}: {hint:?}");
                let error = next(&mut batches).unwrap().unwrap_err();
                assert!((error.epoch, error.batch) == (1, 0) && error.to_string().contains(&said), "{error}");
                drop(batches);
                let error = next(&mut loader.resume(&state).unwrap()).unwrap().unwrap_err();
                assert!(error.to_string().contains(&said), "{error}");
                // With several epochs, ready batches come before the error.
                let mut batches = loader.epochs(0..2);
                let first: Vec<_> =
                    (0..2).map(|_| next(&mut batches).unwrap().unwrap().info.number).collect();
                assert_eq!(first, [0, 1], "{what}");
                _ = batches.size_hint();
                assert!(next(&mut batches).unwrap().unwrap_err().to_string().contains(&said));
            }
            let direct = catch_panic(|| loader.plan().epoch(1));
            assert!(direct.is_some(), "{what}: the sampler was called before the first batch");
        }
        let refused = |error: BuildError| match error {
            BuildError::Setting { setting, reason } => format!("{setting}: {reason}"),
            other => panic!("{other}"),
        };
        let of = |sampler: bool| {
            let builder = by_themselves(8, Wrong::Nothing, workers);
            if sampler {
                builder.index_sampler(PanicsIn("name", None))
            } else {
                builder.batch_sampler(PanicsIn("name", None))
            }
        };
        for sampler in [true, false] {
            let text = refused(of(sampler).build().unwrap_err());
            assert!(text.starts_with("sampler: ") && text.contains("a panic in name"), "{text}");
        }
        let text = refused(DataLoader::builder(NoLength).num_workers(workers).build().unwrap_err());
        assert!(text.starts_with("dataset: ") && text.contains("no length"), "{text}");
        // In `verify`, a batch that can't be planned is an error, too.
        let loader =
            numbers(8, Wrong::Nothing, workers).index_sampler(PanicsIn("index", Some(0))).build().unwrap();
        assert!(loader.verify(1).unwrap_err().to_string().contains("a panic in index"));
    }
}
