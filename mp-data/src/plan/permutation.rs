//! Permutations of the numbers below n, and draws by weight.
//!
//! The results of each named algorithm are frozen: saved states of users and `tests/golden` depend on them.
//! An algorithm with other results gets another name (`/2`).

use super::philox::{RngPurpose, Words, below, epoch_key, pair, philox, unit};

/// Returns a permutation of the numbers below n by algorithm `fisher-yates/1`. From the last element to the
/// second, each element is swapped with a random element at the same or a lower index.
pub(crate) fn fisher_yates(n: u32, seed: u64, epoch: u64) -> Vec<u32> {
    let mut list: Vec<u32> = (0..n).collect();
    shuffle(&mut list, epoch_key(seed, epoch, RngPurpose::FisherYates));
    list
}

/// Shuffles a list by the algorithm `fisher-yates/1`, with random numbers from `key`.
pub(crate) fn shuffle<T>(list: &mut [T], key: u64) {
    let mut words = Words::new(key);
    for i in (1..list.len()).rev() {
        list.swap(i, below(i as u64 + 1, || words.next()) as usize);
    }
}

/// Returns element `at` of a permutation of the numbers below n by algorithm `feistel/1`. The algorithm is a
/// Feistel network of eight rounds over two halves of equally many bits, with Philox as the round function.
/// The rounds are repeated until the result is below n.
pub(crate) fn feistel(n: u64, at: u64, seed: u64, epoch: u64) -> u64 {
    let bits = (64 - n.saturating_sub(1).leading_zeros()).max(2).div_ceil(2);
    let mask = (1u64 << bits) - 1;
    let key = epoch_key(seed, epoch, RngPurpose::Feistel);
    let key = [key as u32, (key >> 32) as u32];
    let mut x = at;
    loop {
        let (mut left, mut right) = (x >> bits, x & mask);
        for round in 0..8 {
            let [a, ..] = philox([right as u32, (right >> 32) as u32, round, 2], key);
            (left, right) = (right, left ^ (u64::from(a) & mask));
        }
        x = left << bits | right;
        if x < n {
            return x;
        }
    }
}

/// Table for weighted draws with replacement, algorithm `alias/1`: threshold and alias of each column. A draw
/// selects a column and a random number. The result of the draw is the column's index if the random number is
/// below the threshold, and otherwise the alias.
#[derive(Debug)]
pub(crate) struct AliasTable(Vec<(f64, u32)>);

impl AliasTable {
    pub(crate) fn new(weights: &[f64]) -> Self {
        // Weights are divided by the largest weight first, so that the sum is finite.
        let most = weights.iter().copied().fold(0.0, f64::max);
        let sum: f64 = weights.iter().map(|w| w / most).sum();
        let mut left: Vec<f64> = weights.iter().map(|w| w / most / sum * weights.len() as f64).collect();
        let mut table: Vec<(f64, u32)> = (0..weights.len() as u32).map(|i| (1.0, i)).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..left.len()).partition(|&i| left[i] < 1.0);
        while let (Some(&s), Some(&l)) = (small.last(), large.last()) {
            small.pop();
            table[s] = (left[s], l as u32);
            left[l] -= 1.0 - left[s];
            if left[l] < 1.0 {
                large.pop();
                small.push(l);
            }
        }
        // Columns that remain because of rounding must not return an index without weight.
        for s in small {
            if weights[s] == 0.0 {
                let heaviest = weights.iter().position(|&w| w == most).unwrap_or(0);
                table[s] = (0.0, heaviest as u32);
            }
        }
        Self(table)
    }

    pub(crate) fn draw(&self, k: u64, seed: u64, epoch: u64) -> u64 {
        let (a, b) = pair(epoch_key(seed, epoch, RngPurpose::Alias), k);
        let column = ((u128::from(a) * self.0.len() as u128) >> 64) as usize;
        let (threshold, other) = self.0[column];
        if unit(b) < threshold { column as u64 } else { u64::from(other) }
    }
}

/// Returns draw `k`, with replacement, from the numbers below n by algorithm `replace/1`.
pub(crate) fn with_replacement(n: u64, k: u64, seed: u64, epoch: u64) -> u64 {
    ((u128::from(pair(epoch_key(seed, epoch, RngPurpose::Replace), k).0) * u128::from(n)) >> 64) as u64
}

/// Returns `draws` indices, drawn by weight without replacement, by algorithm `exponential-keys/1`: the
/// indices in ascending order of -ln(u)/w, for uniform random numbers u.
pub(crate) fn without_replacement(weights: &[f64], draws: u64, seed: u64, epoch: u64) -> Vec<u32> {
    let key = epoch_key(seed, epoch, RngPurpose::ExponentialKeys);
    let most = weights.iter().copied().fold(0.0, f64::max);
    let mut keys: Vec<(f64, u32)> = (0u32..)
        .zip(weights)
        .filter(|&(_, &w)| w > 0.0)
        .map(|(i, &w)| {
            (-ln(((pair(key, u64::from(i)).0 >> 11) + 1) as f64 / (1u64 << 53) as f64) / (w / most), i)
        })
        .collect();
    keys.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    keys.truncate(draws as usize);
    keys.into_iter().map(|(_, i)| i).collect()
}

/// Returns the natural logarithm, for normal numbers in (0, 1]. Only additions, products and divisions are
/// used, whose results IEEE 754 prescribes. The results of a C library differ between machines.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if m > std::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for odd in (1..=23).rev().step_by(2) {
        sum = sum * square + 1.0 / f64::from(odd);
    }
    2.0 * s * sum + exponent as f64 * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    #[test]
    fn ln_matches_the_standard_library() {
        for i in 1..10_000 {
            let x = f64::from(i) / 10_000.0;
            assert!((super::ln(x) - x.ln()).abs() < 1e-14 * (1.0 + x.ln().abs()), "{x}");
        }
        assert_eq!(super::ln(1.0), 0.0);
    }
}
