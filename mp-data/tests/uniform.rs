//! Uniformity of shuffles and draws, with fixed seeds, so that each run has the same numbers.

use mp_data::plan::{Item, Plan, PlanBuilder, Sampler, Shuffle};

/// Number of counted epochs.
const EPOCHS: u64 = 4_000;

fn order(plan: &Plan, epoch: u64) -> Vec<usize> {
    let order = plan.epoch(epoch);
    let batches = (0..order.batches().expect("length")).map(|k| order.batch(k).unwrap().expect("a batch"));
    batches.flat_map(|batch| batch.items).map(|Item { index, .. }| index).collect()
}

/// Returns `true` if a sum with a chi-squared distribution is within four standard deviations of its mean.
fn likely(sum: f64, freedom: f64) -> bool {
    (sum - freedom).abs() < 4.0 * (2.0 * freedom).sqrt()
}

fn squares(counts: &[u64], expected: f64) -> f64 {
    counts.iter().map(|&n| (n as f64 - expected).powi(2) / expected).sum()
}

fn shuffles(n: u64) -> [(Shuffle, Plan); 2] {
    let of = |by| Plan::builder(n).seed(17).batch_size(16).shuffle_by(by).build().unwrap();
    [Shuffle::FisherYates, Shuffle::Feistel].map(|by| (by, of(by)))
}

#[test]
fn shuffle_puts_samples_at_each_position_equally() {
    for n in [5, 16, 50, 64] {
        for (by, plan) in shuffles(n) {
            let side = n as usize;
            let mut counts = vec![0; side * side];
            for epoch in 0..EPOCHS {
                for (position, index) in order(&plan, epoch).into_iter().enumerate() {
                    counts[position * side + index] += 1;
                }
            }
            // Each row and each column of the table has a fixed sum, so there are (n − 1)² degrees of
            // freedom.
            let n = n as f64;
            let sum = squares(&counts, EPOCHS as f64 / n) * (n - 1.0) / n;
            assert!(likely(sum, (n - 1.0).powi(2)), "{by:?} of {n}: {sum}");
        }
    }
}

#[test]
fn ordered_pairs_of_shuffled_samples_are_uniform() {
    for (by, plan) in shuffles(8) {
        let mut counts = vec![0; 64];
        for epoch in 0..4 * EPOCHS {
            let order = order(&plan, epoch);
            counts[order[0] * 8 + order[1]] += 1;
        }
        counts.retain(|n| *n > 0);
        assert_eq!(counts.len(), 56, "{by:?}");
        let sum = squares(&counts, (4 * EPOCHS) as f64 / 56.0);
        assert!(likely(sum, 55.0), "{by:?}: {sum}");
    }
}

#[test]
fn neighbors_in_a_shuffled_order_are_uncorrelated() {
    const N: u64 = 1_000_000;
    let replaced: fn(PlanBuilder) -> PlanBuilder = |plan| plan.sampler(Sampler::WithReplacement(N));
    let kinds: [fn(PlanBuilder) -> PlanBuilder; 3] =
        [|plan| plan.shuffle_by(Shuffle::FisherYates), |plan| plan.shuffle_by(Shuffle::Feistel), replaced];
    for (i, kind) in kinds.into_iter().enumerate() {
        let plan = kind(Plan::builder(N).seed(17).batch_size(1_000)).build().unwrap();
        let all: Vec<f64> = order(&plan, 0).into_iter().map(|index| index as f64 / N as f64 - 0.5).collect();
        let product: f64 = all.windows(2).map(|two| two[0] * two[1]).sum();
        let square: f64 = all.iter().map(|x| x * x).sum();
        assert!((product / square).abs() < 4.0 / (N as f64).sqrt(), "{i}: {}", product / square);
    }
}

#[test]
fn sampler_weights_determine_draw_frequencies() {
    const DRAWS: u64 = 100_000;
    let weights = [1.0, 0.0, 2.0, 4.0, 0.5, 2.5];
    let sampler = Sampler::Weighted { weights: weights.into(), draws: DRAWS, replacement: true };
    let plan = Plan::builder(6).seed(17).batch_size(1_000).sampler(sampler).build().unwrap();
    let mut counts = [0_u64; 6];
    order(&plan, 0).into_iter().for_each(|index| counts[index] += 1);
    assert_eq!(counts[1], 0);
    let part =
        |(n, w): (&u64, f64)| (*n as f64 - DRAWS as f64 * w / 10.0).powi(2) / (DRAWS as f64 * w / 10.0);
    let sum: f64 = counts.iter().zip(weights).filter(|(_, w)| *w > 0.0).map(part).sum();
    assert!(likely(sum, 4.0), "{counts:?}: {sum}");

    // Without replacement, counts the first draw of each epoch.
    let sampler = Sampler::Weighted { weights: weights.into(), draws: 1, replacement: false };
    let plan = Plan::builder(6).seed(17).sampler(sampler).build().unwrap();
    let mut counts = [0_u64; 6];
    (0..DRAWS / 10).for_each(|epoch| counts[order(&plan, epoch)[0]] += 1);
    let part =
        |(n, w): (&u64, f64)| (*n as f64 - DRAWS as f64 * w / 100.0).powi(2) / (DRAWS as f64 * w / 100.0);
    let sum: f64 = counts.iter().zip(weights).filter(|(_, w)| *w > 0.0).map(part).sum();
    assert!(counts[1] == 0 && likely(sum, 4.0), "{counts:?}: {sum}");
}

#[test]
fn too_many_draws_in_an_epoch_are_an_error() {
    let plan = Plan::builder(3).batch_size(2).sampler(Sampler::WithReplacement(u64::MAX)).build().unwrap();
    let text = plan.epoch(u64::MAX).batch(u64::MAX).unwrap_err().to_string();
    assert!(text.contains("draws an epoch"), "{text}");
    assert_eq!(Plan::builder(0).build().unwrap().epoch(0).batch(0).unwrap(), None);
}
