//! Where lanes are.
//!
//! | what | changes | what a death leaves |
//! |---|---|---|
//! | where a lane is, as of what has arrived | with the reply that has its batch, or when that is given up | the worker's: where it was before; the task is done again from there |
//! | where it is, as of what was given | when the trainer is given that batch | nothing: it is the trainer's |

use serde::{Deserialize, Serialize};

use crate::Item;

/// A place in the row of a lane's samples: behind `done` samples, in their order, of what is read from a place of a shard on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LaneAt {
    /// The number of the shard in the lane.
    pub(crate) place: u64,
    pub(crate) sample: u64,
    pub(crate) token: Option<u64>,
    pub(crate) done: u64,
    /// Shards that can't be read any further: their places in the lane, and the first sample that is left out.
    pub(crate) cuts: Vec<(u64, u64)>,
}

impl LaneAt {
    /// Where the shard at this place ends, if it is before its end.
    pub(crate) fn end_of(&self, place: u64) -> u64 {
        let cut = self.cuts.iter().find(|cut| cut.0 == place);
        cut.map_or(u64::MAX, |cut| cut.1)
    }

    /// From now on the shard at `place` ends before `sample`; false if it did already. If that is in a window of which samples were given
    /// (`again`), that window would have others now, and given ones could come again: what is left of it is left out.
    pub(crate) fn cut(&mut self, place: u64, sample: u64, again: bool) -> bool {
        if self.end_of(place) <= sample {
            return false;
        }
        if again {
            *self = LaneAt { place: place + 1, ..LaneAt::default() };
            return true;
        }
        self.cuts.retain(|cut| cut.0 != place);
        self.cuts.push((place, sample));
        true
    }
}

/// A lane, and how far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lane {
    pub(crate) at: LaneAt,
    /// The round of its next batch.
    pub(crate) round: u64,
    pub(crate) ended: bool,
}

impl Lane {
    /// Lanes at the beginning of a pass.
    pub(crate) fn all(lanes: u64, round: u64) -> Vec<Lane> {
        (0..lanes).map(|_| Lane { round, ..Lane::default() }).collect()
    }
}

/// What a batch of a stream is of, and where its lane is behind it.
#[derive(Serialize, Deserialize)]
pub(crate) struct After {
    /// Number in its shard and position of each sample, and its shard.
    pub(crate) items: Vec<u64>,
    pub(crate) at: LaneAt,
    /// Whether the lane has no samples any more.
    pub(crate) ended: bool,
}

impl After {
    pub(crate) fn items(&self) -> (Vec<Item>, Vec<usize>) {
        let (items, _) = self.items.as_chunks::<3>();
        let item =
            |&[index, position, shard]: &[u64; 3]| (Item { index: index as usize, position }, shard as usize);
        items.iter().map(item).unzip()
    }
}
