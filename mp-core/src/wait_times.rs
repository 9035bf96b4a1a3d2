//! Histograms of the durations of waits, in words that processes share.
//!
//! | word | content | changed by |
//! |---|---|---|
//! | 1 + `i`, for `i` < 14 | the numbers of waits in the buckets `2 i` (low half) and `2 i + 1` | a thread whose wait has ended: adds 1 to a half |
//! | 0 | the sum of the durations in µs | the same thread, after that: adds the duration |
//!
//! Each change is one access. A death between the two accesses leaves a sum without one duration. A number
//! stops growing at 2^31, so that the low half never overflows into the high half.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::mem::{Mem, Word};

/// Largest number in a bucket. Threads that add at the same time may exceed it by one each.
const FULL: u64 = 1 << 31;

/// Number of waits by duration. Bucket `i` counts the waits of less than 2^`i` µs that no earlier bucket
/// counts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WaitTimes {
    /// Numbers of waits, without the empty buckets at the end.
    counts: Vec<u64>,
    /// Sum of the durations.
    total_us: u64,
}

impl WaitTimes {
    /// Number of words of a histogram in shared memory.
    pub const WORDS: u64 = 15;
    /// Number of buckets. The last bucket counts all waits of at least 2^26 µs (67 s).
    pub const BUCKETS: usize = 2 * (Self::WORDS as usize - 1);

    /// Counts a wait in the histogram at these words.
    pub fn record<M: Mem>(m: &M, at: Word, waited: Duration) {
        let bucket = Self::bucket(waited);
        let (word, shift) = (at.plus(1 + bucket as u64 / 2), bucket % 2 * 32);
        if m.load_relaxed(word) >> shift & u64::from(u32::MAX) < FULL {
            m.add(word, 1 << shift);
            m.add(at, Self::micros(waited));
        }
    }

    /// Reads the histogram at these words.
    pub fn read<M: Mem>(m: &M, at: Word) -> Self {
        let mut counts = [0; Self::BUCKETS];
        for (pair, i) in counts.as_chunks_mut::<2>().0.iter_mut().zip(1..) {
            let word = m.load_relaxed(at.plus(i));
            *pair = [word & u64::from(u32::MAX), word >> 32];
        }
        let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        Self { counts: counts[..used].to_vec(), total_us: m.load_relaxed(at) }
    }

    fn micros(waited: Duration) -> u64 {
        u64::try_from(waited.as_micros()).unwrap_or(u64::MAX)
    }

    fn bucket(waited: Duration) -> usize {
        Self::micros(waited).checked_ilog2().map_or(0, |power| power as usize + 1).min(Self::BUCKETS - 1)
    }

    /// Returns the number of waits.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    /// Returns the sum of the durations.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.total_us)
    }

    /// Returns the number of waits in each bucket.
    pub fn counts(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().copied().chain(std::iter::repeat(0)).take(Self::BUCKETS)
    }

    /// Returns the buckets that are not empty: for each, an upper bound of the durations, and the number of
    /// waits. Waits in the last bucket may be longer than its bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> {
        let counts = self.counts().enumerate().filter(|(_, count)| *count > 0);
        counts.map(|(i, count)| (Duration::from_micros(1 << i), count))
    }

    /// Returns the smallest power of two of microseconds that exceeds `percent` percent of the waits, or
    /// `None` if there are no waits.
    #[must_use]
    pub fn percentile(&self, percent: u8) -> Option<Duration> {
        let wanted = (u128::from(self.count()) * u128::from(percent)).div_ceil(100).max(1);
        let mut passed = 0;
        self.buckets()
            .find(|(_, count)| {
                passed += u128::from(*count);
                passed >= wanted
            })?
            .0
            .into()
    }

    /// Returns the waits that have ended since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.counts.iter().chain(std::iter::repeat(&0));
        let counts = self.counts.iter().zip(before).map(|(now, then)| now.saturating_sub(*then)).collect();
        Self { counts, total_us: self.total_us.saturating_sub(earlier.total_us) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::HeapMem;

    fn at() -> Word {
        Word::at(64)
    }

    #[test]
    fn wait_time_percentile_is_within_a_factor_of_two() {
        let m = HeapMem::new(64);
        for us in 0..1000 {
            WaitTimes::record(&m, at(), Duration::from_micros(us));
        }
        let times = WaitTimes::read(&m, at());
        assert_eq!((times.count(), times.total()), (1000, Duration::from_micros(499_500)));
        for (percent, exact) in [(1, 10), (50, 500), (99, 990), (100, 999)] {
            let found = times.percentile(percent).unwrap().as_micros();
            assert!(found > exact && found <= 2 * exact, "{percent}: {found}");
        }
        assert_eq!(WaitTimes::default().percentile(50), None);
    }

    #[test]
    fn longest_and_shortest_wait_times_have_a_bucket() {
        let m = HeapMem::new(64);
        for waited in [Duration::ZERO, Duration::from_secs(67), Duration::from_secs(1 << 20)] {
            WaitTimes::record(&m, at(), waited);
        }
        let times = WaitTimes::read(&m, at());
        let buckets: Vec<_> = times.buckets().map(|(limit, count)| (limit.as_micros(), count)).collect();
        assert_eq!(buckets, [(1, 1), (1 << 26, 1), (1 << 27, 1)]);
    }

    #[test]
    fn full_wait_time_bucket_keeps_its_neighbour_bucket() {
        let m = HeapMem::new(64);
        let first = at().plus(1);
        m.store(first, FULL | 7 << 32);
        WaitTimes::record(&m, at(), Duration::ZERO);
        WaitTimes::record(&m, at(), Duration::from_micros(1));
        assert_eq!((m.load(first), m.load(at())), (FULL | 8 << 32, 1));
    }

    #[test]
    fn wait_times_since_a_snapshot_omit_earlier_waits() {
        let m = HeapMem::new(64);
        WaitTimes::record(&m, at(), Duration::from_micros(3));
        let earlier = WaitTimes::read(&m, at());
        WaitTimes::record(&m, at(), Duration::from_millis(3));
        let later = WaitTimes::read(&m, at()).since(&earlier);
        assert_eq!(later.buckets().collect::<Vec<_>>(), [(Duration::from_micros(4096), 1)]);
    }
}
