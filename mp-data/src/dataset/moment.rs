//! How samples of a stream are numbered, and what notes say of them.

/// Bits of a position that are the number of a sample in its shard; above them is the shard's.
const SAMPLE_BITS: u32 = 40;
/// How many samples a shard may have.
pub(crate) const MOST_SAMPLES: u64 = 1 << SAMPLE_BITS;
/// How many shards there may be: what a note has room for.
pub(crate) const MOST_SHARDS: usize = 1 << 22;

/// A sample's number in an epoch: a function of shard and sample that is no other sample's.
pub(crate) fn position(shard: usize, sample: u64) -> u64 {
    (shard as u64) << SAMPLE_BITS | sample
}

/// What a worker is doing for a batch of a stream: its note, together with the position at which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// It opens or reads a shard.
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
