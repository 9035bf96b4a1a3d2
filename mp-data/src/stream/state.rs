//! Where in a stream a trainer is, in a form that can be kept.

use serde::{Deserialize, Serialize};

use super::kind::Place;
use super::order::StreamPlan;
use crate::lane::{Lane, LaneAt};
use crate::plan::{PlanError, same};

/// The names of what is in a state, and of what the order is made by.
const FORMAT: &str = "stream/1";

/// Which batches of a stream a trainer was given: where each lane is, see [`StreamBatches::state`](crate::StreamBatches::state). Less
/// than a hundred bytes a lane in any format of serde.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[doc(alias = "state_dict")]
pub struct StreamState {
    format: String,
    plan: StreamPlan,
    epoch: u64,
    pass: u64,
    first: u64,
    batches: u64,
    lanes: Vec<Lane>,
}

impl StreamState {
    pub(super) fn new(plan: &StreamPlan, place: Place) -> Self {
        let Place { epoch, pass, first, batches, lanes } = place;
        StreamState { format: FORMAT.to_string(), plan: plan.clone(), epoch, pass, first, batches, lanes }
    }

    /// The epoch that it is in.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many batches of the epoch were given, those in whose place an error was included.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// The place, if it is one of this plan.
    pub(super) fn place(&self, plan: &StreamPlan) -> Result<Place, PlanError> {
        let StreamState { format, plan: mine, epoch, pass, first, batches, lanes } = self;
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
        same("number of lanes", &(lanes.len() as u64), &plan.lanes)?;
        // What no state has that was made by a loader; rounds are counted and multiplied.
        let most = 1 << 40;
        let shards = plan.shards;
        let fits = |Lane { at, round, .. }: &Lane| {
            let LaneAt { place, sample, done, .. } = at;
            *place <= shards && *sample < most && *done < most && (*first..most).contains(round)
        };
        if *pass >= most || *batches >= most || !lanes.iter().all(fits) {
            let (state, plan) = ("a place that can't be".into(), format!("{shards} shards"));
            return Err(PlanError::StateDiffers { what: "lanes", state, plan });
        }
        let (epoch, pass, first, batches) = (*epoch, *pass, *first, *batches);
        Ok(Place { epoch, pass, first, batches, lanes: lanes.clone() })
    }
}
