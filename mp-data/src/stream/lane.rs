//! Positions of lanes.
//!
//! | data | changes | after a death of the worker |
//! |---|---|---|
//! | position of a lane after the arrived batches | when the reply with the lane's next batch arrives, or when that batch is lost | the position is unchanged, and the task runs again from there |
//! | position of a lane after the delivered batches | when the trainer takes the lane's next batch | nothing changes: the trainer has this position |

use serde::{Deserialize, Serialize};

use crate::Item;
use crate::dataset::stream_position::MOST_SAMPLES;

/// Upper bound of the number of rounds. A round is one batch of each lane. The product of a round and the
/// number of lanes must not overflow.
pub(crate) const MOST_ROUNDS: u64 = 1 << 40;

/// Position of a lane: the start of a window of samples, and two counts. `done` is the number of the window's
/// samples that were taken, in the permuted order. `lost` is the number of samples to skip next.
///
/// Saved in states: names and order of the fields are part of the format, and a change needs a new format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LanePosition {
    /// Number of the shard among the lane's shards. The format of states calls it `place`.
    #[serde(rename = "place")]
    pub(crate) shard_in_lane: u64,
    pub(crate) sample: u64,
    pub(crate) token: Option<u64>,
    pub(crate) done: u64,
    /// Number of samples of lost batches. The same number of readable samples is skipped next.
    pub(crate) lost: u64,
    /// Shards of the window, if some of its samples were taken: the shard's number in the lane, and the end
    /// of its samples. With this list, a window that is read again has the same samples. Their order does not
    /// change if one of them can no longer be read.
    pub(crate) window: Vec<(u64, u64)>,
    /// Shards that can't be read to their end: the shard's number in the lane, and the first sample that is
    /// left out.
    pub(crate) cuts: Vec<(u64, u64)>,
}

impl LanePosition {
    /// Returns the sample before which this shard of the lane was [cut](Self::cut), or `u64::MAX` if it was
    /// not cut.
    pub(crate) fn end_of(&self, shard_in_lane: u64) -> u64 {
        let cut = self.cuts.iter().find(|cut| cut.0 == shard_in_lane);
        cut.map_or(u64::MAX, |cut| cut.1)
    }

    /// Ends this shard of the lane before `sample`. Returns `false` if the shard was already cut there or
    /// earlier.
    ///
    /// After a cut, the lane continues with other samples, so the samples of lost batches are unknown.
    /// Samples of lost batches were not delivered. They are read once more, so that no sample of another
    /// shard is skipped instead.
    pub(crate) fn cut(&mut self, shard_in_lane: u64, sample: u64) -> bool {
        if self.end_of(shard_in_lane) <= sample {
            return false;
        }
        self.lost = 0;
        self.cuts.retain(|cut| cut.0 != shard_in_lane);
        self.cuts.push((shard_in_lane, sample));
        true
    }
}

/// A lane and its progress.
///
/// Saved in states: names and order of the fields are part of the format, and a change needs a new format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lane {
    pub(crate) at: LanePosition,
    /// Round of the lane's next batch. In each round, each lane has one batch.
    pub(crate) round: u64,
    pub(crate) ended: bool,
}

impl Lane {
    /// Returns `true` if a lane that began with round `first` can have reached this position. `shards`,
    /// `window` and `batch_size` are settings of the plan. Used for saved states.
    pub(crate) fn is_possible(&self, shards: u64, window: u64, first: u64, batch_size: u64) -> bool {
        let Lane {
            at: LanePosition { shard_in_lane, sample, done, lost, window: ends, cuts, .. },
            round,
            ..
        } = self;
        let most = u128::from(round.saturating_sub(first)) * u128::from(batch_size) + u128::from(window);
        let mut before = (*shard_in_lane, *sample);
        // Shards must be in ascending order, with no more samples in all than a window has.
        let counts = ends.iter().map(|&(shard, end)| {
            let from = if shard == before.0 { before.1 } else { 0 };
            let continues = shard >= before.0 && from < end && end <= MOST_SAMPLES && shard < shards;
            before = (shard, end);
            continues.then(|| end - from)
        });
        let samples = counts.sum::<Option<u64>>();
        *shard_in_lane <= shards
            && *sample < MOST_SAMPLES
            && u128::from(*done) + u128::from(*lost) <= most
            && samples.is_some_and(|samples| samples <= window)
            && cuts.iter().all(|(shard, sample)| *shard < shards && *sample <= MOST_SAMPLES)
            && (first..MOST_ROUNDS).contains(round)
    }

    /// Returns all fields as numbers, for checksums.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> {
        let Lane {
            at: LanePosition { shard_in_lane, sample, token, done, lost, window, cuts },
            round,
            ended,
        } = self;
        let token = [u64::from(token.is_some()), token.unwrap_or_default()];
        let pairs = |list: &'_ Vec<(u64, u64)>| {
            let pairs = list.iter().flat_map(|pair| [pair.0, pair.1]);
            std::iter::once(list.len() as u64).chain(pairs).collect::<Vec<_>>()
        };
        let lists = pairs(window).into_iter().chain(pairs(cuts));
        [*shard_in_lane, *sample, *done, *lost, *round, u64::from(*ended)]
            .into_iter()
            .chain(token)
            .chain(lists)
    }
}

/// Samples of a stream's batch, and the position of its lane after the batch.
#[derive(Serialize, Deserialize)]
pub(crate) struct LaneProgress {
    /// Three numbers for each sample: its number in its shard, its position, and its shard.
    pub(crate) items: Vec<u64>,
    pub(crate) at: LanePosition,
    /// `true` if the lane has no more samples.
    pub(crate) ended: bool,
}

impl LaneProgress {
    pub(crate) fn items(&self) -> (Vec<Item>, Vec<usize>) {
        let (items, _) = self.items.as_chunks::<3>();
        let item =
            |&[index, position, shard]: &[u64; 3]| (Item { index: index as usize, position }, shard as usize);
        items.iter().map(item).unzip()
    }
}
