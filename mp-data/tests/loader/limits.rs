//! How many batches are on their way, and how many are given before an earlier one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mp_data::plan::{Batching, IndexSampler};
use mp_data::{AnyResult, Context, DataLoader, Dataset, Item, Other};
use serde::{Deserialize, Serialize};

use crate::common::{Fault, Samples, all, builder, builder_of, bytes, kept, next};

#[test]
fn a_batch_that_hangs_holds_up_no_other_until_1024_were_given_before_it() {
    let first = all(builder(1200, 0).batch_size(1).build().unwrap().epoch(0))[0].2[0];
    let of = |samples, workers| builder_of(samples, workers).batch_size(1).in_order(false);
    let loader = of(Samples::new(1200).with(first, Fault::Hang, 1), 2).build().unwrap();
    let mut batches = loader.epoch(0);
    for _ in 0..1023 {
        assert_ne!(next(&mut batches).unwrap().unwrap().info.number, 0);
    }
    assert!(batches.next_timeout(Duration::from_millis(50)).is_err());
    let state = batches.state();
    assert_eq!((state.next(), state.beyond().len()), (0, 1023));
    assert_eq!(batches.state_after(1023), Some(state.clone()));
    let rest = all(of(Samples::new(1200), 1).build().unwrap().resume(&state).unwrap());
    assert_eq!(rest.len(), 1200 - 1023);
    assert!(rest.iter().any(|batch| batch.1 == 0));
}

/// Batches without any shared memory.
#[derive(Serialize, Deserialize)]
struct Texts;

impl Dataset for Texts {
    type Batch = Other<String>;

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
fn a_budget_bounds_bytes_and_nothing_else() {
    let loader =
        DataLoader::builder(Texts).num_workers(2).prefetch_factor(4).memory_budget(1).build().unwrap();
    let mut most = 0;
    for (k, batch) in loader.epoch(0).enumerate() {
        assert_eq!(batch.unwrap()[0], k.to_string());
        most = most.max(loader.metrics().under_way);
    }
    assert_eq!(most, 8, "batches of no bytes are not one at a time");
    // Of 96 bytes and more each: two fit.
    let loader = builder(80, 2).prefetch_factor(4).memory_budget(600).build().unwrap();
    let mut most = 0;
    let mut batches = loader.epoch(0);
    while let Some(batch) = next(&mut batches) {
        drop(batch.unwrap());
        most = most.max(loader.metrics().under_way);
    }
    assert!((1..=4).contains(&most), "{most}");
}

#[test]
fn what_was_given_before_a_state_is_not_given_again_after_it() {
    let of = |workers| builder(24, workers).in_order(false).prefetch_factor(1).build().unwrap();
    for workers in [0, 1] {
        let loader = of(workers);
        let mut state = serde_json::to_value(loader.epoch(0).state()).unwrap();
        state["beyond"] = serde_json::json!([1, 2, 4]);
        let batches = loader.resume(&serde_json::from_value(state).unwrap()).unwrap();
        assert_eq!(all(batches).iter().map(|batch| batch.1).collect::<Vec<_>>(), [0, 3, 5]);
    }
}

/// As it comes; counts what it is asked for.
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
fn a_resume_far_in_batches_by_tokens_looks_at_the_windows_there_alone() {
    let of = |workers| {
        let asked = Arc::new(AtomicU64::new(0));
        let lengths = (0..4000).map(|i| 1 + i * 7 % 31).collect();
        let batching = Batching::MaxTokens { lengths, tokens: 60, window: 20 };
        let builder = builder(4000, workers).shuffle(false).batching(batching).distributed(1, 2);
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
        // The last of an epoch, too, when the next one was planned already.
        for at in [0, each - 200, each - 1, each, each + 1] {
            let (again, asked) = of(workers);
            let mut rest = again.resume_until(&kept(&states[at]), 2).unwrap();
            let batch = bytes(&next(&mut rest).unwrap().unwrap());
            assert_eq!((batch.0 as usize, batch.1 as usize), (at / each, at % each));
            // Its window, one before for what that left, and one at most of those that are planned ahead.
            let asked = asked.load(Ordering::Relaxed);
            assert!(asked <= 3 * 20, "batch {at} of {each} an epoch: {asked} draws");
            assert_eq!(rest.state(), states[at + 1]);
        }
    }
}
