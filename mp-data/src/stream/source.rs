//! Batches of streams, taken from the lanes in turn.
//!
//! The position of each lane is stored twice. The position after the arrived batches is where the lane's next
//! batch begins. The position after the delivered batches is saved in states. A slot whose batch has arrived
//! stores the lane's position after that batch until delivery.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use super::dataset::IterableDataset;
use super::lane::{Lane, LaneProgress};
use super::lane_tree::LaneTree;
use super::plan::{ShardOrder, StreamPlan};
use super::worker::{StreamTask, StreamWorker};
use crate::dataset::stream_position::{Moment, position};
use crate::loader::source::{AfterSkip, BatchSlot, BatchSource, FailedSample, PlanStep};
use crate::worker::batch_maker::WorkerReply;
use crate::{BatchInfo, Item};

/// Position of a trainer: all lanes, in a pass of an epoch.
#[derive(Clone)]
pub(crate) struct StreamPosition {
    pub(super) epoch: u64,
    pub(super) pass: u64,
    /// Round of the first batch in the pass.
    pub(super) first: u64,
    /// Number of delivered batches of the epoch.
    pub(super) batches: u64,
    pub(super) lanes: LaneTree,
}

impl StreamPosition {
    pub(super) fn start(lanes: u64, epoch: u64) -> StreamPosition {
        StreamPosition { epoch, pass: 0, first: 0, batches: 0, lanes: LaneTree::new(lanes, 0) }
    }

    /// If the slot is in a later pass than this position, returns the position at the start of that pass.
    fn behind<D: IterableDataset>(&self, slot: &BatchSlot<StreamSource<D>>) -> Option<StreamPosition> {
        let (epoch, pass, first) = (slot.epoch, slot.turn, slot.contents.first);
        if (epoch, pass) == (self.epoch, self.pass) {
            return None;
        }
        let continues = epoch == self.epoch;
        let batches = if continues { self.batches } else { 0 };
        Some(StreamPosition {
            epoch,
            pass,
            first,
            batches,
            lanes: LaneTree::new(self.lanes.len() as u64, first),
        })
    }
}

/// Source of the batches of a stream.
pub(crate) struct StreamSource<D> {
    plan: StreamPlan,
    /// Position after the batches that have arrived.
    now: StreamPosition,
    /// Order of the shards in this pass. `None` until it is needed to end a shard early.
    order: Option<ShardOrder>,
    /// Round and lane from which the next batch is planned.
    next: (u64, usize),
    /// Position after the delivered batches.
    delivered: StreamPosition,
    dataset: PhantomData<fn() -> D>,
}

impl<D> StreamSource<D> {
    pub(super) fn new(plan: &StreamPlan, place: StreamPosition) -> Self {
        let round = place.lanes.earliest().unwrap_or_default();
        let (now, next) = (place.clone(), (round, 0));
        StreamSource { plan: plan.clone(), now, order: None, next, delivered: place, dataset: PhantomData }
    }

    fn begin(&mut self, epoch: u64, pass: u64, first: u64) {
        let lanes = LaneTree::new(self.plan.lanes, first);
        self.order = None;
        self.next = (first, 0);
        self.now = StreamPosition { epoch, pass, first, batches: 0, lanes };
    }

    /// Changes a lane in `self.now`, the position after the arrived batches.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut Lane)) -> Arc<Lane> {
        let mut lane = self.now.lanes.get(number).clone();
        change(&mut lane);
        let lane = Arc::new(lane);
        self.now.lanes.set(number, Arc::clone(&lane));
        lane
    }

    /// Ends a shard before the sample that can't be read. Returns `false` if the shard already ended at that
    /// sample or earlier.
    fn cut(&mut self, contents: &StreamContents, failed: &FailedSample) -> bool {
        let plan = &self.plan;
        let order = self.order.get_or_insert_with(|| plan.order(self.now.epoch, self.now.pass));
        let shard = |nth: &u64| plan.shard(order, contents.lane as u64, *nth);
        let at = &self.now.lanes.get(contents.lane).at;
        let mut left = (at.shard_in_lane..).take_while(|nth| shard(nth).is_some());
        let cut = left.find(|nth| shard(nth) == failed.shard);
        let Some(nth) = cut else { return false };
        let mut is_other = false;
        self.change(contents.lane, |lane| is_other = lane.at.cut(nth, failed.item.index as u64));
        is_other
    }
}

/// Lane, round and samples of a slot.
#[derive(Default)]
pub(crate) struct StreamContents {
    pub(super) lane: usize,
    round: u64,
    first: u64,
    /// Positions of skipped samples.
    skip: Vec<u64>,
    items: Vec<Item>,
    shards: Vec<usize>,
    /// State of the lane after this slot's batch.
    progress: Option<Arc<Lane>>,
}

impl<D: IterableDataset> BatchSource for StreamSource<D> {
    type Worker = StreamWorker<D>;
    type Plan = StreamPlan;
    type Contents = StreamContents;
    type Position = StreamPosition;
    const IS_ENDLESS: bool = true;

    fn worker_plan(plan: &StreamPlan) -> (u64, StreamPlan) {
        (plan.seed, plan.clone())
    }

    fn kind(plan: &StreamPlan) -> String {
        format!("a dataset {} with the plan {:?}", std::any::type_name::<D>(), plan.words())
    }

    fn plan(&mut self, window: &VecDeque<BatchSlot<Self>>, last: u64) -> PlanStep<StreamContents> {
        loop {
            let StreamPosition { epoch, pass, first, .. } = self.now;
            let (round, lane) = self.next;
            let here = || window.iter().filter(|slot| slot.epoch == epoch);
            let enough = self.plan.steps.is_some_and(|steps| {
                let given = if self.delivered.epoch == epoch { self.delivered.batches } else { 0 };
                let counts = |slot: &&BatchSlot<Self>| !slot.is_skipped();
                given + here().filter(counts).count() as u64 >= steps
            });
            if enough && here().any(|slot| !slot.is_done()) {
                return PlanStep::Blocked;
            }
            let lanes = &self.now.lanes;
            let (earliest, rounds) = (lanes.earliest(), lanes.latest());
            let all_ended = earliest.is_none();
            if enough || (all_ended && self.plan.steps.is_none()) {
                // After an epoch without a batch, a search for a batch might never end.
                if epoch >= last || rounds == 0 {
                    return PlanStep::End;
                }
                self.begin(epoch + 1, 0, 0);
                continue;
            }
            if all_ended {
                if rounds > first {
                    self.begin(epoch, pass + 1, rounds);
                    continue;
                }
                let number = rounds * self.plan.lanes;
                let contents = StreamContents { first, ..StreamContents::default() };
                return PlanStep::NoBatch { epoch, number, contents };
            }
            let next = lanes.next_in(round, lane);
            let Some(lane) = next else {
                // No lane has a batch in the rest of this round, nor in the rounds before the earliest round
                // of all lanes.
                self.next = (earliest.unwrap_or_default().max(round + 1), 0);
                continue;
            };
            self.next = (round, lane + 1);
            let waits = here().any(|slot| !slot.is_done() && slot.contents.lane == lane);
            let contents = StreamContents { lane, round, first, ..StreamContents::default() };
            let number = round * self.plan.lanes + lane as u64;
            return PlanStep::Batch { epoch, turn: pass, number, contents, waits };
        }
    }

    /// Returns the task for a slot. The slot's pass is always the current pass.
    fn task(&self, slot: &BatchSlot<Self>) -> StreamTask {
        let contents = &slot.contents;
        StreamTask {
            epoch: self.now.epoch,
            pass: self.now.pass,
            lane: contents.lane as u64,
            at: self.now.lanes.get(contents.lane).at.clone(),
            skip: contents.skip.clone(),
            threads: slot.threads as u32,
            poison: None,
            opens: false,
        }
    }

    fn samples(_: &StreamContents, made: &WorkerReply<D::Batch, LaneProgress>) -> (Vec<Item>, Vec<usize>) {
        made.progress.as_ref().map(LaneProgress::items).unwrap_or_default()
    }

    fn lane(contents: &StreamContents) -> Option<u64> {
        Some(contents.lane as u64)
    }

    fn record_arrival(
        &mut self,
        contents: &mut StreamContents,
        made: &mut WorkerReply<D::Batch, LaneProgress>,
    ) -> bool {
        let mut behind = None;
        if let Some(progress) = made.progress.take() {
            (contents.items, contents.shards) = progress.items();
            let LaneProgress { at, ended, .. } = progress;
            behind = Some((at, ended));
        }
        let lane = self.change(contents.lane, |lane| {
            if let Some(behind) = behind {
                (lane.at, lane.ended) = behind;
            }
            if made.batch.is_some() || !contents.skip.is_empty() {
                lane.round = contents.round + 1;
            }
        });
        contents.progress = Some(Arc::clone(&lane));
        !lane.ended
    }

    fn fill_info(contents: &mut StreamContents, info: &mut BatchInfo) {
        info.items = std::mem::take(&mut contents.items);
        info.shards = std::mem::take(&mut contents.shards);
        info.valid = info.items.len();
    }

    fn locate_failure(_: &StreamContents, note: u64) -> Option<FailedSample> {
        let (moment, shard, sample) = Moment::of(note)?;
        let item = Item { index: sample as usize, position: position(shard, sample) };
        Some(FailedSample { item, shard: Some(shard), reading: moment != Moment::Row })
    }

    fn describe(dataset: &D, failed: &FailedSample) -> Option<String> {
        let shard = failed.shard?;
        dataset.describe(shard)
    }

    fn skip_sample(&mut self, contents: &mut StreamContents, failed: &FailedSample) -> AfterSkip {
        if failed.reading {
            let is_other = self.cut(contents, failed);
            return if is_other { AfterSkip::Retry } else { AfterSkip::Impossible };
        }
        let again = contents.skip.len() as u64 >= self.plan.batch_size
            || contents.skip.contains(&failed.item.position);
        if again {
            return AfterSkip::Impossible;
        }
        contents.skip.push(failed.item.position);
        AfterSkip::Retry
    }

    fn record_loss(&mut self, contents: &mut StreamContents, failed: Option<&FailedSample>) {
        // If the shard is cut, other samples follow, so no sample is skipped in place of this batch's
        // samples.
        let others = failed.is_some_and(|failed| failed.reading && self.cut(contents, failed));
        let batch_size = self.plan.batch_size;
        let lane = self.change(contents.lane, |lane| {
            if !others {
                lane.at.lost += batch_size;
            }
            lane.round = contents.round + 1;
        });
        contents.progress = Some(lane);
    }

    fn record_delivery(&mut self, slot: &mut BatchSlot<Self>, _: Option<&BatchSlot<Self>>) {
        if let Some(behind) = self.delivered.behind(slot) {
            self.delivered = behind;
        }
        // A final error replaces a batch that was neither made nor lost. Its slot has no `progress` and does
        // not count as delivered.
        let Some(progress) = slot.contents.progress.take() else { return };
        self.delivered.lanes.set(slot.contents.lane, progress);
        let counts = !slot.is_skipped();
        self.delivered.batches += u64::from(counts);
    }

    fn begins_turn(&self) -> bool {
        let StreamPosition { first, lanes, .. } = &self.delivered;
        lanes.latest() == *first && !lanes.has_ended()
    }

    fn next(&self) -> (u64, u64) {
        let (round, lane) = self.next;
        (self.now.epoch, round * self.now.lanes.len() as u64 + lane as u64)
    }

    fn position(&self, front: Option<&BatchSlot<Self>>) -> StreamPosition {
        front.and_then(|front| self.delivered.behind(front)).unwrap_or_else(|| self.delivered.clone())
    }

    fn remaining(&self, _: usize, last: u64) -> Option<usize> {
        let StreamPosition { epoch, batches, .. } = self.delivered;
        let all = self.plan.steps?.checked_mul(last.checked_sub(epoch)?.checked_add(1)?)?;
        usize::try_from(all.saturating_sub(batches)).ok()
    }
}
