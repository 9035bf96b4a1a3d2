//! Assignment of samples to batches: orders, ranks, states. No processes.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mp_data::plan::*;
use proptest::prelude::*;

fn indices(plan: &Plan, epoch: u64) -> Vec<u64> {
    items(plan, epoch).iter().map(|item| item.index as u64).collect()
}

/// Returns the valid items of all batches of one rank.
fn items(plan: &Plan, epoch: u64) -> Vec<Item> {
    let order = plan.epoch(epoch);
    let mut all = Vec::new();
    for k in 0.. {
        let Some(batch) = order.batch(k).unwrap() else {
            assert!(order.batches().is_none_or(|n| n == k));
            return all;
        };
        assert_eq!(batch.number, k);
        all.extend(&batch.items[..batch.valid]);
    }
    all
}

fn golden(name: &str) -> Vec<u64> {
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap().split_whitespace().map(|n| n.parse().unwrap()).collect()
}

fn seeded(n: u64) -> PlanBuilder {
    Plan::builder(n).seed(17).batch_size(4)
}

fn weights() -> Arc<[f64]> {
    (0..20).map(|i| f64::from(i % 5)).collect()
}

#[test]
fn sample_orders_match_the_golden_files() {
    let of = |builder: PlanBuilder| indices(&builder.build().unwrap(), 3);
    assert_eq!(of(seeded(20).shuffle(true)), golden("fisher-yates-1"));
    assert_eq!(of(seeded(20).shuffle_by(Shuffle::Feistel)), golden("feistel-1"));
    assert_eq!(of(seeded(20).sampler(Sampler::WithReplacement(20))), golden("replace-1"));
    let weighted = |draws, replacement| Sampler::Weighted { weights: weights(), draws, replacement };
    assert_eq!(of(seeded(20).sampler(weighted(20, true))), golden("alias-1"));
    assert_eq!(of(seeded(20).sampler(weighted(16, false))), golden("exponential-keys-1"));
    let lengths = (0..20).map(|i| (i * 7) % 10).collect();
    let bucket = Batching::BucketByLength { lengths, window: 3 };
    assert_eq!(of(seeded(20).shuffle(true).batching(bucket)), golden("bucket-1"));
    let mut rng = seeded(20).build().unwrap().rng(3, 5);
    assert_eq!((0..4).map(|_| rng.next_u64()).collect::<Vec<_>>(), golden("philox-1"));
}

/// A line of the golden file has the rank, the number of the batch, the number of valid rows, and the index
/// and position of each draw.
#[test]
fn max_tokens_order_matches_the_golden_file() {
    let path = format!("{}/tests/golden/max-tokens-1.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for rank in 0..3 {
        let lengths = (0..100).map(|i| 1 + i * 7 % 23).collect();
        let batching = Batching::MaxTokens { lengths, tokens: 60, window: 22 };
        let builder = Plan::builder(100).seed(17).shuffle(true).distributed(rank, 3);
        let plan = builder.batching(batching).build().unwrap();
        let order = plan.epoch(3);
        for number in 0..10 {
            let batch = order.batch(number).unwrap().unwrap();
            let draws: Vec<String> =
                batch.items.iter().map(|item| format!(" {} {}", item.index, item.position)).collect();
            found.push(format!("{rank} {number} {}{}", batch.valid, draws.concat()));
        }
        assert_eq!(order.batch(10).unwrap(), None);
    }
    assert_eq!(found, lines);
}

#[test]
fn test_large_sampler_indices() {
    let plan = seeded(1 << 40).shuffle(true).build().unwrap();
    let first = plan.epoch(3).batch(0).unwrap().unwrap();
    assert_eq!(first.items.iter().map(|i| i.index as u64).collect::<Vec<_>>(), golden("feistel-1-large"));
    assert!(plan.epoch(3).batch((1 << 38) - 1).unwrap().is_some());
    assert!(plan.epoch(3).batch(1 << 38).unwrap().is_none());
}

#[test]
fn batches_of_a_plan_without_shuffle_are_sequential() {
    let plan = Plan::builder(10).batch_size(3).build().unwrap();
    assert_eq!(indices(&plan, 0), (0..10).collect::<Vec<_>>());
    assert_eq!(plan.epoch(0).batch(3).unwrap().unwrap().items, [Item { index: 9, position: 9 }]);
}

#[test]
fn test_len() {
    let of = |b: PlanBuilder| b.build().unwrap().epoch(0).batches();
    assert_eq!(of(Plan::builder(100).batch_size(3)), Some(34));
    assert_eq!(of(Plan::builder(100).batch_size(3).drop_last(true)), Some(33));
    assert_eq!(of(Plan::builder(0).batch_size(3)), Some(0));
}

#[test]
fn epochs_and_seeds_have_distinct_sample_orders() {
    let plan = seeded(50).shuffle(true).build().unwrap();
    assert_ne!(indices(&plan, 0), indices(&plan, 1));
    assert_ne!(indices(&plan, 0), indices(&seeded(50).seed(18).shuffle(true).build().unwrap(), 0));
}

/// torch: `set_epoch`. Each epoch has another order, which the ranks share.
#[test]
fn ranks_share_the_sample_order_of_each_epoch() {
    let rank = |rank| seeded(48).shuffle(true).distributed(rank, 3).build().unwrap();
    let whole = seeded(48).shuffle(true).build().unwrap();
    for epoch in 0..3 {
        let ranks = [0, 1, 2].map(|number| indices(&rank(number), epoch));
        let dealt: Vec<u64> = (0..16).flat_map(|at| ranks.iter().map(move |rank| rank[at])).collect();
        let (mut sorted, mut all) = (dealt.clone(), indices(&whole, epoch));
        sorted.sort_unstable();
        all.sort_unstable();
        assert_eq!(sorted, all, "each sample belongs to one rank");
        assert_ne!(ranks[0], indices(&rank(0), epoch + 1));
    }
}

#[test]
fn samples_have_distinct_random_keys() {
    let plan = seeded(1).build().unwrap();
    let keys: HashSet<u64> = (0..1_000_000).map(|p| plan.rng(0, p).next_u64()).collect();
    assert!(keys.len() >= 999_999, "{}", keys.len());
}

#[derive(Debug)]
struct Wrong;

impl IndexSampler for Wrong {
    fn name(&self) -> &str {
        "wrong/1"
    }
    fn len(&self, _epoch: u64) -> u64 {
        10
    }
    fn index(&self, _epoch: u64, k: u64) -> u64 {
        k
    }
}

#[test]
fn sample_index_out_of_range_is_an_error_of_its_batch() {
    let plan = Plan::builder(8).batch_size(3).index_sampler(Wrong).build().unwrap();
    assert!(plan.epoch(0).batch(1).is_ok());
    let found = plan.epoch(4).batch(2).unwrap_err();
    assert_eq!(found, PlanError::IndexOutOfRange { epoch: 4, batch: 2, index: 8, len: 8 });
}

/// Sampler that chooses the samples in order and counts its calls.
#[derive(Debug)]
struct Counted(Arc<AtomicU64>, u64);

impl IndexSampler for Counted {
    fn name(&self) -> &str {
        "counted/1"
    }
    fn len(&self, _epoch: u64) -> u64 {
        self.1
    }
    fn index(&self, _epoch: u64, k: u64) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed);
        k
    }
}

const DRAWS: u64 = 3000;
const WINDOW: u64 = 20;

fn counted(rank: u32, world: u32) -> (Plan, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let lengths = (0..DRAWS as u32).map(|i| 1 + i * 7 % 31).collect();
    let batching = Batching::MaxTokens { lengths, tokens: 60, window: WINDOW };
    let builder = Plan::builder(DRAWS).seed(17).distributed(rank, world).batching(batching);
    (builder.index_sampler(Counted(asked.clone(), DRAWS)).build().unwrap(), asked)
}

#[test]
fn resume_of_max_tokens_cuts_at_most_two_windows() {
    // In the last case, groups are larger than windows.
    for (rank, world) in [(0, 1), (1, 3), (2, 50)] {
        let (plan, _) = counted(rank, world);
        let order = plan.epoch(1);
        let mut all = Vec::new();
        while let Some(batch) = order.batch(all.len() as u64).unwrap() {
            all.push((batch, order.state(all.len() as u64)));
        }
        assert!(all.len() > 8, "{}", all.len());
        let end = order.state(all.len() as u64);
        for (k, (batch, state)) in all.iter().enumerate() {
            let text = serde_json::to_string(state).unwrap();
            assert!(text.len() < 500, "{text}");
            let (again, asked) = counted(rank, world);
            let (order, next) = again.resume(&serde_json::from_str(&text).unwrap()).unwrap();
            assert_eq!((next, order.batch(next).unwrap().as_ref()), (k as u64, Some(batch)));
            // The batch's window, and the earlier windows from which it has leftover batches.
            let most = if world > 10 { 10 } else { 2 };
            let windows = asked.load(Ordering::Relaxed).div_ceil(WINDOW);
            assert!(windows <= most, "world {world}, batch {k}: {windows} windows");
            if k % 40 != 0 {
                continue;
            }
            // Later and earlier batches are the same, too.
            let far = all.len() - 1;
            assert_eq!(order.batch(far as u64).unwrap().as_ref(), Some(&all[far].0));
            assert_eq!(order.batch(0).unwrap().as_ref(), Some(&all[0].0));
            assert_eq!(order.state(k as u64).next(), k as u64);
        }
        let (again, asked) = counted(rank, world);
        let (order, next) = again.resume(&end).unwrap();
        assert_eq!(order.batch(next).unwrap(), None);
        assert!(asked.load(Ordering::Relaxed) <= 10 * WINDOW);
        // A state that has only the batch number: all windows are cut, and the batch is the same.
        let k = all.len() as u64 / 2;
        let (order, next) = again.resume(&plan.state(1, k)).unwrap();
        assert_eq!(order.batch(next).unwrap().as_ref(), Some(&all[k as usize].0));
    }
}

#[test]
fn impossible_window_in_a_state_changes_no_batch() {
    let (plan, _) = counted(1, 3);
    let order = plan.epoch(1);
    let right = order.batch(70).unwrap();
    let state = serde_json::to_value(order.state(70)).unwrap();
    assert!(state["window"]["number"].as_u64().unwrap() > 1);
    let reported = |window: serde_json::Value| {
        let mut state = state.clone();
        state["window"] = window;
        let state: PlanState = serde_json::from_value(state).unwrap();
        // The changed state is refused. With a correct checksum, an impossible window is ignored.
        assert!(matches!(plan.resume(&state), Err(PlanError::StateChanged)));
        let (order, next) = plan.resume(&state.sealed()).unwrap();
        order.batch(next).unwrap()
    };
    let window = |number: u64, before: u64| serde_json::json!({ "number": number, "before": before });
    // Cases: windows after the end, more batches than draws, a start after the requested batch, batches
    // before the first window.
    for (number, before) in
        [(u64::MAX, 3), (DRAWS / WINDOW, 3), (2, 41), (100, 3 * 71), (0, 2), (u64::MAX, u64::MAX)]
    {
        assert_eq!(reported(window(number, before)), right, "{number} {before}");
    }
    assert_eq!(reported(serde_json::Value::Null), right);
}

#[derive(Debug)]
struct Pairs(u32, u32);

impl BatchSampler for Pairs {
    fn name(&self) -> &str {
        "pairs/1"
    }
    fn batches(&self, _epoch: u64) -> Option<u64> {
        Some(5)
    }
    fn batch(&self, _epoch: u64, k: u64) -> Option<Vec<u64>> {
        // The last group is padded with the first batches.
        assert!(k % u64::from(self.1) == u64::from(self.0) || k == 0, "asked for batch {k}");
        (k < 5).then(|| vec![2 * k, 2 * k + 1])
    }
}

#[test]
fn test_batch_sampler() {
    let of = |rank| Plan::builder(10).batch_sampler(Pairs(rank, 2)).distributed(rank, 2).build().unwrap();
    assert_eq!(indices(&of(0), 0), [0, 1, 4, 5, 8, 9]);
    assert_eq!(indices(&of(1), 0), [2, 3, 6, 7]);
    assert_eq!(of(1).epoch(0).batch(2).unwrap().unwrap().valid, 0);
    // Only the last, incomplete group is dropped.
    let dropped = |rank, world| {
        let plan = Plan::builder(10).batch_sampler(Pairs(rank, world)).distributed(rank, world);
        indices(&plan.uneven(Uneven::Drop).build().unwrap(), 0)
    };
    assert_eq!((dropped(0, 2), dropped(1, 2)), (vec![0, 1, 4, 5], vec![2, 3, 6, 7]));
    assert_eq!((dropped(0, 5), dropped(4, 5)), (vec![0, 1], vec![8, 9]));
}

#[test]
fn invalid_sampler_weights_are_errors() {
    for weights in [vec![], vec![0.0, 0.0], vec![1.0, f64::NAN], vec![1.0, -1.0]] {
        let n = weights.len() as u64;
        let sampler = Sampler::Weighted { weights: weights.into(), draws: 1, replacement: true };
        assert!(matches!(Plan::builder(n).sampler(sampler).build(), Err(PlanError::Setting { .. })));
    }
}

#[test]
fn loader_state_of_another_plan_is_refused() {
    let bucket = |lengths: [u32; 3]| Batching::BucketByLength { lengths: Arc::new(lengths), window: 1 };
    let plan = |b: PlanBuilder| b.build().unwrap();
    let state = plan(seeded(3).batching(bucket([1, 2, 3]))).state(1, 2);
    let refused = |b: PlanBuilder| matches!(plan(b).next_batch(&state), Err(PlanError::StateDiffers { .. }));
    assert!(!refused(seeded(3).batching(bucket([1, 2, 3]))));
    assert!(refused(seeded(3).batching(bucket([1, 2, 4]))));
    assert!(refused(seeded(3).batching(bucket([1, 2, 3])).uneven(Uneven::Drop)));
    assert!(refused(seeded(3).batching(bucket([1, 2, 3])).seed(1)));
    let subset = |indices: [u64; 3]| plan(seeded(9).sampler(Sampler::Subset(Arc::new(indices))));
    let state = subset([1, 2, 3]).state(0, 0);
    assert!(subset([1, 2, 3]).next_batch(&state).is_ok());
    let error = subset([1, 2, 4]).next_batch(&state).unwrap_err();
    assert!(matches!(error, PlanError::StateDiffers { what: "hash of the subset", .. }), "{error}");
}

#[test]
fn subset_sampler_refuses_indices_beyond_the_dataset() {
    let of = |index| seeded(9).sampler(Sampler::Subset(Arc::new([0, index]))).build();
    assert_eq!(indices(&of(8).unwrap(), 0), [0, 8]);
    let error = of(9).unwrap_err().to_string();
    assert!(error.contains("the subset has index 9 of 9 samples"), "{error}");
}

#[test]
fn test_distributed_sampler_uneven() {
    let of =
        |rank, uneven| Plan::builder(10).batch_size(2).distributed(rank, 4).uneven(uneven).build().unwrap();
    let padded = of(2, Uneven::Pad).epoch(0).batch(1).unwrap().unwrap();
    assert_eq!((padded.items[0].index, padded.valid), (0, 0));
    assert_eq!(of(0, Uneven::Drop).epoch(0).batches(), Some(1));
}

/// If all epochs have equally many draws, draws that can't be divided are an error of `build`. Otherwise the
/// error replaces the incomplete batch.
#[test]
fn uneven_epoch_is_reported_as_early_as_possible() {
    let of = |n, size| Plan::builder(n).batch_size(size).uneven(Uneven::Error);
    let left = |built: Result<Plan, PlanError>| match built {
        Err(PlanError::Uneven { batch, left, world, .. }) => Some((batch, left, world)),
        other => other.map(|_| None).unwrap(),
    };
    assert_eq!(left(of(10, 2).distributed(0, 4).build()), Some((1, 2, 4)));
    assert_eq!(left(of(8, 2).distributed(0, 4).build()), None);
    assert_eq!(left(of(12, 2).distributed(0, 4).build()), None, "the last batches are equally short");
    assert_eq!(left(of(10, 2).distributed(0, 4).drop_last(true).build()), None);
    assert_eq!(left(of(11, 2).build()), None, "one rank");
    let bucket = |n: u32| Batching::BucketByLength { lengths: (0..n).collect(), window: 2 };
    assert_eq!(left(of(9, 2).distributed(0, 2).batching(bucket(9)).build()), Some((2, 1, 2)));
    assert_eq!(left(of(9, 2).distributed(0, 2).drop_last(true).batching(bucket(9)).build()), None);
    // The error of `build` is the error of the batch.
    for n in 0..40 {
        for drop in [false, true] {
            for world in 1..4 {
                for windows in [false, true] {
                    let of = |uneven| {
                        let b = Plan::builder(n)
                            .batch_size(3)
                            .drop_last(drop)
                            .distributed(0, world)
                            .uneven(uneven);
                        if windows { b.batching(bucket(n as u32)) } else { b }.build()
                    };
                    let (pad, cut) = (of(Uneven::Pad).unwrap(), of(Uneven::Drop).unwrap());
                    let rows = |plan: Plan| -> usize {
                        let order = plan.epoch(0);
                        (0..order.batches().unwrap())
                            .map(|k| order.batch(k).unwrap().unwrap().items.len())
                            .sum()
                    };
                    assert_eq!(
                        of(Uneven::Error).is_ok(),
                        rows(pad) == rows(cut),
                        "{n} {drop} {world} {windows}"
                    );
                }
            }
        }
    }
    // Batches by tokens, and samplers, may differ between epochs, so the last batch returns the error.
    let lengths: Arc<[u32]> = [3, 3, 3].into();
    let tokens = Batching::MaxTokens { lengths, tokens: 3, window: 9 };
    let plan = Plan::builder(3).uneven(Uneven::Error).distributed(0, 2).batching(tokens).build().unwrap();
    assert!(matches!(plan.epoch(0).batch(1), Err(PlanError::Uneven { left: 1, .. })));
    let own = of(10, 2).index_sampler(Counted(Arc::new(AtomicU64::new(0)), 10)).distributed(0, 4);
    assert!(matches!(own.build().unwrap().epoch(0).batch(1), Err(PlanError::Uneven { left: 2, .. })));
}

/// Batch sampler without a known number of batches.
#[derive(Debug)]
struct Unknown;

impl BatchSampler for Unknown {
    fn name(&self) -> &str {
        "unknown/1"
    }
    fn batch(&self, _: u64, k: u64) -> Option<Vec<u64>> {
        (k < 3).then(|| vec![k])
    }
}

type Sets = fn(PlanBuilder) -> PlanBuilder;

#[test]
fn conflicting_plan_settings_are_refused_by_name() {
    let tokens =
        |b: PlanBuilder| b.batching(Batching::MaxTokens { lengths: [1; 10].into(), tokens: 4, window: 5 });
    let own = |b: PlanBuilder| b.index_sampler(Counted(Arc::new(AtomicU64::new(0)), 10));
    let refused: [(&str, Sets, &str, Sets); 22] = [
        ("batch_sampler", |b| b.batch_sampler(Pairs(0, 1)), "shuffle", |b| b.shuffle(true)),
        ("batch_sampler", |b| b.batch_sampler(Pairs(0, 1)), "shuffle_by", |b| b.shuffle_by(Shuffle::Feistel)),
        ("batch_sampler", |b| b.batch_sampler(Pairs(0, 1)), "drop_last", |b| b.drop_last(true)),
        ("batch_sampler", |b| b.batch_sampler(Pairs(0, 1)), "batch_size", |b| b.batch_size(1)),
        ("batch_sampler", |b| b.batch_sampler(Pairs(0, 1)), "global_batch_size", |b| b.global_batch_size(2)),
        ("batch_sampler", |b| b.batch_sampler(Pairs(0, 1)), "index_sampler", own),
        (
            "batch_sampler",
            |b| b.batch_sampler(Pairs(0, 1)),
            "sampler",
            |b| b.sampler(Sampler::WithReplacement(4)),
        ),
        ("batch_sampler", |b| b.batch_sampler(Pairs(0, 1)), "batching", tokens),
        (
            "batch_sampler",
            |b| b.batch_sampler(Unknown).distributed(0, 2),
            "uneven",
            |b| b.uneven(Uneven::Error),
        ),
        ("batching", |b| b.batching(Batching::Custom(Arc::new(Unknown))), "drop_last", |b| b.drop_last(true)),
        ("batching", |b| b.batching(Batching::Custom(Arc::new(Unknown))), "shuffle", |b| b.shuffle(true)),
        ("batching", tokens, "batch_size", |b| b.batch_size(8)),
        ("batching", tokens, "global_batch_size", |b| b.global_batch_size(8)),
        ("batching", tokens, "drop_last", |b| b.drop_last(true)),
        ("sampler", |b| b.sampler(Sampler::Random), "shuffle", |b| b.shuffle(false)),
        ("sampler", |b| b.sampler(Sampler::Sequential), "shuffle", |b| b.shuffle(true)),
        ("sampler", |b| b.sampler(Sampler::WithReplacement(3)), "shuffle", |b| b.shuffle(true)),
        (
            "sampler",
            |b| b.sampler(Sampler::WithReplacement(3)),
            "shuffle_by",
            |b| b.shuffle_by(Shuffle::Auto),
        ),
        ("index_sampler", own, "shuffle", |b| b.shuffle(true)),
        ("index_sampler", own, "sampler", |b| b.sampler(Sampler::Random)),
        ("global_batch_size", |b| b.global_batch_size(8), "batch_size", |b| b.batch_size(5)),
        ("shuffle_by", |b| b.shuffle_by(Shuffle::Feistel), "shuffle", |b| b.shuffle(false)),
    ];
    for (one, sets_one, other, sets_other) in refused {
        assert!(sets_one(Plan::builder(10)).build().is_ok(), "{one}");
        for b in [sets_other(sets_one(Plan::builder(10))), sets_one(sets_other(Plan::builder(10)))] {
            let error = b.build().expect_err(&format!("`{other}` beside `{one}`"));
            assert!(matches!(error, PlanError::Setting { setting, .. } if setting == other), "{error}");
            assert!(error.to_string().contains(&format!("`{one}`")), "{one}, {other}: {error}");
        }
    }
    // Default values and equal settings do not exclude each other.
    let accepted: [Sets; 7] = [
        |b| b.batch_sampler(Pairs(0, 1)).shuffle(false).drop_last(false),
        |b| b.batch_sampler(Pairs(0, 1)).uneven(Uneven::Drop).distributed(0, 2),
        |b| b.batch_sampler(Unknown).uneven(Uneven::Error),
        |b| b.sampler(Sampler::Random).shuffle(true),
        |b| b.sampler(Sampler::Subset([1, 2].into())).shuffle_by(Shuffle::Feistel),
        |b| b.sampler(Sampler::WithReplacement(3)).shuffle(false).batch_size(2),
        |b| b.batch_size(3).batch_size(2).shuffle(true).shuffle(false),
    ];
    for (i, sets) in accepted.into_iter().enumerate() {
        sets(Plan::builder(10)).build().unwrap_or_else(|error| panic!("{i}: {error}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn ranks_partition_the_samples(
        len in 0u64..300,
        size in 1u64..8,
        world in 1u32..5,
        by in 0..5,
        seed: u64,
    ) {
        let lengths: Arc<[u32]> = (0..len as u32).map(|i| i * 7 % 31).collect();
        let plan = |rank| {
            let b = Plan::builder(len).distributed(rank, world).seed(seed);
            let b = if by == 4 { b } else { b.batch_size(size) };
            match by {
                0 => b,
                1 => b.shuffle(true),
                2 => b.shuffle_by(Shuffle::Feistel),
                3 => {
                    let lengths = lengths.clone();
                    b.shuffle(true).batching(Batching::BucketByLength { lengths, window: 3 })
                }
                _ => {
                    let lengths = lengths.clone();
                    b.shuffle(true).batching(Batching::MaxTokens { lengths, tokens: 60, window: 25 })
                }
            }
            .build()
            .unwrap()
        };
        let all: Vec<Vec<Item>> = (0..world).map(|rank| items(&plan(rank), 2)).collect();
        let mut found: Vec<usize> = all.iter().flatten().map(|item| item.index).collect();
        found.sort_unstable();
        prop_assert_eq!(found, (0..len as usize).collect::<Vec<_>>());
        let mut positions: Vec<u64> = all.iter().flatten().map(|item| item.position).collect();
        positions.sort_unstable();
        prop_assert_eq!(positions, (0..len).collect::<Vec<_>>());
        // Each batch is the same if it is requested first, and all ranks have equally many batches.
        let counts: HashSet<u64> = (0..world)
            .map(|rank| (0..).find(|&k| plan(rank).epoch(2).batch(k).unwrap().is_none()).unwrap())
            .collect();
        prop_assert_eq!(counts.len(), 1);
        let order = plan(0).epoch(2);
        for k in 0..*counts.iter().next().unwrap() {
            prop_assert_eq!(plan(0).epoch(2).batch(k).unwrap(), order.batch(k).unwrap());
        }
    }

    #[test]
    fn resume_with_another_world_size_keeps_sample_order(len in 0u64..300, seed: u64) {
        let plan = |rank, world| {
            let builder = Plan::builder(len).global_batch_size(12).distributed(rank, world);
            builder.shuffle(true).seed(seed).build().unwrap()
        };
        let text = serde_json::to_string(&plan(0, 2).state(5, 3)).unwrap();
        prop_assert!(text.len() < 500);
        let state: PlanState = serde_json::from_str(&text).unwrap();
        let of = |world: u32| -> Vec<usize> {
            let (epoch, k) = plan(0, world).next_batch(&state).unwrap();
            (0..world)
                .filter_map(|rank| plan(rank, world).epoch(epoch).batch(k).unwrap())
                .flat_map(|b| b.items[..b.valid].iter().map(|i| i.index).collect::<Vec<_>>())
                .collect()
        };
        prop_assert_eq!(of(2), of(3));
        prop_assert_eq!(of(2), of(1));
    }
}
