//! Positions of a stream's samples, and notes about them.

/// Bits of a position that are the number of a sample in its shard; above them is the shard's.
const SAMPLE_BITS: u32 = 40;
/// Most samples of a shard.
pub(crate) const MOST_SAMPLES: u64 = 1 << SAMPLE_BITS;
/// Most shards: a note has no room for more.
pub(crate) const MOST_SHARDS: usize = 1 << 22;

/// A sample's number in an epoch: a function of shard and sample that is no other sample's.
pub(crate) fn position(shard: usize, sample: u64) -> u64 {
    (shard as u64) << SAMPLE_BITS | sample
}

/// Activity of a worker for a batch of a stream: its note, together with its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The worker opens or reads a shard.
    Read = 1,
    Row = 3,
}

impl Moment {
    pub(crate) fn note(self, position: u64) -> u64 {
        (self as u64) << 62 | position
    }

    /// The moment, the shard and the sample.
    pub(crate) fn of(note: u64) -> Option<(Moment, usize, u64)> {
        let moment = match note >> 62 {
            1 => Moment::Read,
            3 => Moment::Row,
            _ => return None,
        };
        let shard = note >> SAMPLE_BITS & (MOST_SHARDS as u64 - 1);
        Some((moment, shard as usize, note & (MOST_SAMPLES - 1)))
    }
}
