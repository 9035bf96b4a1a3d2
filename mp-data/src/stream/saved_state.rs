//! Saved state of an iterator over a stream.

use serde::{Deserialize, Serialize};

use super::lane::{Lane, MOST_ROUNDS};
use super::lane_tree::LaneTree;
use super::plan::StreamPlan;
use super::source::StreamPosition;
use crate::plan::{PlanError, checksum, same};

/// Name of the format of a saved state and of the version of the order.
const FORMAT: &str = "stream/1";

/// Saved state of an iterator over a stream, with the position of each lane: see
/// [`StreamBatches::state`](crate::StreamBatches::state). In any format of serde, the state has a few hundred
/// bytes, and up to 100 bytes more for each lane. With shuffled windows, each shard in a current window needs
/// some additional bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[doc(alias = "state_dict")]
pub struct StreamState {
    #[serde(deserialize_with = "crate::settings::saved_state_kind::name")]
    format: String,
    plan: StreamPlan,
    epoch: u64,
    pass: u64,
    first: u64,
    batches: u64,
    lanes: Vec<Lane>,
    /// Checksum of all other fields.
    check: u64,
}

impl StreamState {
    pub(super) fn new(plan: &StreamPlan, place: StreamPosition) -> Self {
        let StreamPosition { epoch, pass, first, batches, lanes } = place;
        let lanes = lanes.iter().cloned().collect();
        let (format, plan) = (FORMAT.to_string(), plan.clone());
        StreamState { format, plan, epoch, pass, first, batches, lanes, check: 0 }.sealed()
    }

    /// Computes the checksum of a state, and returns the complete state.
    #[doc(hidden)]
    #[must_use]
    pub fn sealed(self) -> Self {
        StreamState { check: self.content(), ..self }
    }

    fn content(&self) -> u64 {
        let StreamState { format, plan, epoch, pass, first, batches, lanes, check: _ } = self;
        let plan = plan.words().into_iter().chain([*epoch, *pass, *first, *batches]);
        checksum(format.bytes().map(u64::from).chain(plan).chain(lanes.iter().flat_map(Lane::words)))
    }

    /// Returns the epoch of the next batch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of delivered batches of the epoch, including errors in the place of batches.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Returns the saved position. Returns an error if it is not valid for this plan.
    pub(super) fn place(&self, plan: &StreamPlan) -> Result<StreamPosition, PlanError> {
        let StreamState { format, plan: mine, epoch, pass, first, batches, lanes, check } = self;
        same("format", &format.as_str(), &FORMAT)?;
        same("seed", &mine.seed, &plan.seed)?;
        same("number of shards", &mine.shards, &plan.shards)?;
        same("rank", &mine.rank, &plan.rank)?;
        same("world", &mine.world, &plan.world)?;
        same("lanes", &mine.lanes, &plan.lanes)?;
        same("batch_size", &mine.batch_size, &plan.batch_size)?;
        same("drop_last", &mine.drop_last, &plan.drop_last)?;
        same("shuffle", &mine.shuffle, &plan.shuffle)?;
        same("shuffle_window", &mine.window, &plan.window)?;
        same("steps", &mine.steps, &plan.steps)?;
        if *check != self.content() {
            return Err(PlanError::StateChanged);
        }
        same("number of lanes", &(lanes.len() as u64), &plan.lanes)?;
        // Positions that no loader can have saved are rejected.
        let fits = |lane: &Lane| lane.is_possible(plan.shards, plan.window, *first, plan.batch_size);
        let counts = [*pass, *batches, *first];
        if counts.into_iter().any(|count| count >= MOST_ROUNDS) || !(lanes.iter().all(fits)) {
            return Err(PlanError::StateImpossible { what: "where its lanes are" });
        }
        let (epoch, pass, first, batches) = (*epoch, *pass, *first, *batches);
        Ok(StreamPosition { epoch, pass, first, batches, lanes: LaneTree::of(lanes, first) })
    }
}
