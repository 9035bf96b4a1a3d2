//! Places of lanes.
//!
//! | what | changes | what a death leaves |
//! |---|---|---|
//! | where a lane is, as of what has arrived | with the reply that has its batch, or when that is given up | the worker's: where it was before; the task is done again from there |
//! | where it is, as of what was given | when the trainer is given that batch | nothing: it is the trainer's |

use serde::{Deserialize, Serialize};

use crate::Item;
use crate::dataset::moment::MOST_SAMPLES;

/// No lane has as many batches: rounds are counted and multiplied.
pub(crate) const MOST_ROUNDS: u64 = 1 << 40;

/// Place of a lane in the row of its samples: in the window that is read from a sample of a shard on, behind
/// the first `done` of its samples, in their order; and how many of those that come next are not given.
///
/// Saved in states: names and order of what it has are part of their format, and a change needs a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LanePosition {
    /// Number of the shard among the lane's shards. In states it is called `place`, as their format has it.
    #[serde(rename = "place")]
    pub(crate) shard_in_lane: u64,
    pub(crate) sample: u64,
    pub(crate) token: Option<u64>,
    pub(crate) done: u64,
    /// Number of samples of lost batches: those that come next, of all that can be read.
    pub(crate) lost: u64,
    /// Samples of the window, if some of them were given: up to which one of each shard, by its
    /// number in the lane. So it is the same window when it is read again, and what can't be read any more is
    /// missing where it was.
    pub(crate) window: Vec<(u64, u64)>,
    /// Shards that can't be read any further: their numbers in the lane, and the first sample that is left
    /// out.
    pub(crate) cuts: Vec<(u64, u64)>,
}

impl LanePosition {
    /// Returns the sample before which this shard of the lane ends, if it was cut.
    pub(crate) fn end_of(&self, shard_in_lane: u64) -> u64 {
        let cut = self.cuts.iter().find(|cut| cut.0 == shard_in_lane);
        cut.map_or(u64::MAX, |cut| cut.1)
    }

    /// From now on this shard of the lane ends before `sample`; false if it did already.
    ///
    /// With that other samples come next, and those of lost batches are not known any more. None of them was
    /// given: they are tried once more, so that no sample of another shard is passed over instead.
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

/// A lane, and how far it is.
///
/// Saved in states: names and order of what it has are part of their format, and a change needs a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lane {
    pub(crate) at: LanePosition,
    /// The round of its next batch.
    pub(crate) round: u64,
    pub(crate) ended: bool,
}

impl Lane {
    /// Returns `true` if a lane can have come there, of a plan with this number of shards and windows of this
    /// number of samples, since round `first`, with `batch_size` samples in each.
    pub(crate) fn is_possible(&self, shards: u64, window: u64, first: u64, batch_size: u64) -> bool {
        let Lane {
            at: LanePosition { shard_in_lane, sample, done, lost, window: ends, cuts, .. },
            round,
            ..
        } = self;
        let most = u128::from(round.saturating_sub(first)) * u128::from(batch_size) + u128::from(window);
        let mut before = (*shard_in_lane, *sample);
        // Behind each other, and of no more samples than a window has.
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

    /// All of it, as numbers.
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

/// Samples of a stream's batch, and the place of its lane after it.
#[derive(Serialize, Deserialize)]
pub(crate) struct LaneProgress {
    /// Number in its shard and position of each sample, and its shard.
    pub(crate) items: Vec<u64>,
    pub(crate) at: LanePosition,
    /// `true` if the lane has no samples any more.
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
