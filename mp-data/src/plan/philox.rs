//! Philox4x32-10: random numbers as a function of a key and a counter.

/// Returns the four random words of Philox4x32-10 for a counter and a key.
pub(crate) fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox_blocks(counter.map(|word| [word]), key).map(|[word]| word)
}

/// Computes [`philox`] for `N` counters at once. Element i of the argument and the result has word i of all
/// counters.
fn philox_blocks<const N: usize>(mut counters: [[u32; N]; 4], mut key: [u32; 2]) -> [[u32; N]; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        let [c0, c1, c2, c3] = &mut counters;
        for n in 0..N {
            let a = u64::from(c0[n]) * 0xD251_1F53;
            let b = u64::from(c2[n]) * 0xCD9E_8D57;
            c0[n] = (b >> 32) as u32 ^ c1[n] ^ key[0];
            c1[n] = b as u32;
            c2[n] = (a >> 32) as u32 ^ c3[n] ^ key[1];
            c3[n] = a as u32;
        }
    }
    counters
}

/// Number of counters that are computed together. It is large enough for the compiler to use vector
/// instructions.
const BLOCKS: usize = 16;

/// Sequence of the same words as [`SampleRng::next_u64`] returns for a key. Faster for long lists, because
/// many words are computed at once.
pub(super) struct Words {
    key: [u32; 2],
    counter: u64,
    words: [u64; 2 * BLOCKS],
    taken: usize,
}

impl Words {
    pub(super) fn new(key: u64) -> Self {
        Words { key: [key as u32, (key >> 32) as u32], counter: 0, words: [0; 2 * BLOCKS], taken: 2 * BLOCKS }
    }

    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        if self.taken == self.words.len() {
            self.fill();
        }
        self.taken += 1;
        self.words[self.taken - 1]
    }

    #[inline(never)]
    fn fill(&mut self) {
        let counters: [u64; BLOCKS] = std::array::from_fn(|n| self.counter + n as u64);
        let [low, high] = [counters.map(|n| n as u32), counters.map(|n| (n >> 32) as u32)];
        let [a, b, c, d] = philox_blocks([low, high, [0; BLOCKS], [0; BLOCKS]], self.key);
        for n in 0..BLOCKS {
            self.words[2 * n] = u64::from(a[n]) | u64::from(b[n]) << 32;
            self.words[2 * n + 1] = u64::from(c[n]) | u64::from(d[n]) << 32;
        }
        (self.counter, self.taken) = (self.counter + BLOCKS as u64, 0);
    }
}

/// Returns a uniform random number below `end`, computed from the random words of `next`. `end` must not be
/// 0.
pub(super) fn below(end: u64, mut next: impl FnMut() -> u64) -> u64 {
    loop {
        let wide = u128::from(next()) * u128::from(end);
        let low = wide as u64;
        // The second condition is slow, and almost never checked.
        if low >= end || low >= end.wrapping_neg() % end {
            return (wide >> 64) as u64;
        }
    }
}

/// Maps 64 bits by a bijection in which each output bit depends on each input bit.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Purpose of a key. Keys for different purposes give independent random numbers. The values are part of the
/// algorithms' definitions (docs/data.md). Never change a value or reuse it for another purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum RngPurpose {
    Sample = 0,
    FisherYates = 1,
    Feistel = 2,
    Alias = 3,
    Replace = 4,
    ExponentialKeys = 5,
    LengthWindows = 6,
    Shards = 7,
    ShuffleWindows = 8,
    Split = 9,
}

/// Returns the key of the draws of an epoch for one purpose.
pub(crate) fn epoch_key(seed: u64, epoch: u64, purpose: RngPurpose) -> u64 {
    let inner = mix(seed.wrapping_add(0x9E37_79B9_7F4A_7C15));
    mix(mix(inner.wrapping_add(epoch)).wrapping_add((purpose as u64).wrapping_mul(0xD1B5_4A32_D192_ED03)))
}

/// Returns the two random words for counter `at` and `key`.
pub(crate) fn pair(key: u64, at: u64) -> (u64, u64) {
    let [a, b, c, d] = philox([at as u32, (at >> 32) as u32, 0, 1], [key as u32, (key >> 32) as u32]);
    (u64::from(a) | u64::from(b) << 32, u64::from(c) | u64::from(d) << 32)
}

/// Random number generator of one sample. The numbers are the same for the same seed, epoch and position, in
/// any process.
///
/// ```
/// # use mp_data::plan::SampleRng;
/// let (mut one, mut same) = (SampleRng::new(17, 0, 5), SampleRng::new(17, 0, 5));
/// assert_eq!(one.next_u64(), same.next_u64());
/// assert!(one.below(10) < 10);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleRng {
    key: [u32; 2],
    counter: u128,
    words: [u32; 4],
    left: u8,
}

impl SampleRng {
    /// Creates the generator of the draw at `position` of an epoch.
    pub fn new(seed: u64, epoch: u64, position: u64) -> Self {
        Self::at(epoch_key(seed, epoch, RngPurpose::Sample), position)
    }

    /// Creates the generator of the draw at `position`. `key` is the key of the epoch for samples.
    pub(crate) fn at(key: u64, position: u64) -> Self {
        // A bijection of the position: two samples of an epoch never share a key.
        Self::keyed(mix(key.wrapping_add(position)))
    }

    pub(crate) fn keyed(key: u64) -> Self {
        Self { key: [key as u32, (key >> 32) as u32], counter: 0, words: [0; 4], left: 0 }
    }

    /// Returns 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.left == 0 {
            let c = self.counter;
            self.words = philox([c as u32, (c >> 32) as u32, (c >> 64) as u32, (c >> 96) as u32], self.key);
            self.counter = c.wrapping_add(1);
            self.left = 4;
        }
        let word = self.words[4 - usize::from(self.left)];
        self.left -= 1;
        word
    }

    /// Returns 64 random bits: two words, the low one first.
    pub fn next_u64(&mut self) -> u64 {
        let low = self.next_u32();
        u64::from(low) | u64::from(self.next_u32()) << 32
    }

    /// Returns a uniform random number in [0, 1), a multiple of 2⁻²⁴.
    pub fn f32(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 / (1u32 << 24) as f32
    }

    /// Returns a uniform random number in [0, 1), a multiple of 2⁻⁵³.
    pub fn f64(&mut self) -> f64 {
        unit(self.next_u64())
    }

    /// Returns `true` or `false` with equal probability.
    pub fn bool(&mut self) -> bool {
        self.next_u32() >> 31 == 1
    }

    /// Returns a uniform number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { below(end, || self.next_u64()) }
    }

    /// Fills a slice with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(4) {
            chunk.copy_from_slice(&self.next_u32().to_le_bytes()[..chunk.len()]);
        }
    }
}

pub(crate) fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// Allows a `SampleRng` in functions that take a generator of `rand`:
///
/// ```
/// use mp_data::plan::Plan;
/// use rand_core::Rng;
///
/// fn two(rng: &mut impl Rng) -> (u32, u64) {
///     (rng.next_u32(), rng.next_u64())
/// }
///
/// let plan = Plan::builder(100).seed(17).build()?;
/// let (mut here, mut there) = (plan.rng(3, 42), plan.rng(3, 42));
/// assert_eq!(two(&mut here), (there.next_u32(), there.next_u64()));
/// # Ok::<(), mp_data::plan::PlanError>(())
/// ```
#[cfg(feature = "rand")]
#[cfg_attr(docsrs, doc(cfg(feature = "rand")))]
impl rand_core::TryRng for SampleRng {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        Ok(SampleRng::next_u32(self))
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(SampleRng::next_u64(self))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        self.fill(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{SampleRng, mix, philox};

    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    /// Inverts `mix` by undoing its three steps.
    fn unmix(mut x: u64) -> u64 {
        x ^= x >> 31 ^ x >> 62;
        x = x.wrapping_mul(0x3196_42b2_d24d_8ec3);
        x ^= x >> 27 ^ x >> 54;
        x = x.wrapping_mul(0x96de_1b17_3f11_9089);
        x ^ x >> 30 ^ x >> 60
    }

    #[test]
    fn philox_keys_of_samples_are_distinct() {
        // Each key can be inverted to its position, so no two keys are equal. Sorting the keys would take
        // seconds in a debug build.
        let first = unmix(key(&SampleRng::new(17, 3, 0)));
        for position in 0..10_000_000 {
            let key = key(&SampleRng::new(17, 3, position));
            assert_eq!(unmix(key).wrapping_sub(first), position);
        }
        assert!([0, 1, u64::MAX, 0x0123_4567_89ab_cdef].into_iter().all(|x| unmix(mix(x)) == x));
    }

    fn key(rng: &SampleRng) -> u64 {
        u64::from(rng.key[0]) | u64::from(rng.key[1]) << 32
    }
}
