//! Positions of a stream's samples, and notes about them.

/// Number of bits of a position for the number of a sample in its shard. The shard is in the bits above.
const SAMPLE_BITS: u32 = 40;
/// Maximum number of samples of a shard.
pub(crate) const MOST_SAMPLES: u64 = 1 << SAMPLE_BITS;
/// Maximum number of shards that fit into a note.
pub(crate) const MOST_SHARDS: usize = 1 << 22;

/// Returns a sample's number in an epoch, which is unique for shard and sample.
pub(crate) fn position(shard: usize, sample: u64) -> u64 {
    (shard as u64) << SAMPLE_BITS | sample
}

/// Activity of a worker that makes a batch of a stream. A note contains an activity and a position.
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

    /// Returns the moment, the shard and the sample of a note.
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
