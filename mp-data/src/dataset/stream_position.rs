//! Positions of a stream's samples, and notes. A note is a number of 64 bits with the activity of a worker
//! and a position. Errors use it to name the sample.

/// Number of bits of a position that contain the number of a sample in its shard. The higher bits contain the
/// shard.
const SAMPLE_BITS: u32 = 40;
/// Maximum number of samples of a shard.
pub(crate) const MOST_SAMPLES: u64 = 1 << SAMPLE_BITS;
/// Maximum number of shards, such that each shard's number fits into a note.
pub(crate) const MOST_SHARDS: usize = 1 << 22;

/// Returns the position of a sample: a number that is unique in the epoch.
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

    /// Returns the activity in a note, the shard, and the number of the sample in the shard.
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
