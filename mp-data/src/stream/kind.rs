//! Batches of streams: lanes in turn, each from where it was.
//!
//! A lane is known twice: as of what has arrived, from where its next batch begins; and as of what was given,
//! which is the state. A slot that is there has the lane as it is behind it, until it is given.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use mp_core::user_code::catch_panic;

use super::dataset::IterableDataset;
use super::lane::{After, Lane};
use super::lanes::Lanes;
use super::order::{ShardOrder, StreamPlan};
use super::worker::{StreamTask, StreamWorker};
use crate::dataset::moment::{Moment, position};
use crate::trainer::kind::{Failed, Kind, Planned, Slot, Without};
use crate::worker::{Made, Orders};
use crate::{AnyResult, BatchInfo, Item};

/// Datasets of shards.
pub(crate) struct Streamed<D>(PhantomData<fn() -> D>);

/// Place of a trainer: each lane, in a pass of an epoch.
#[derive(Clone)]
pub(crate) struct Place {
    pub(super) epoch: u64,
    pub(super) pass: u64,
    /// The round with which the pass begins.
    pub(super) first: u64,
    /// Number of batches of the epoch that were given.
    pub(super) batches: u64,
    pub(super) lanes: Lanes,
}

impl Place {
    pub(super) fn start(lanes: u64, epoch: u64) -> Place {
        Place { epoch, pass: 0, first: 0, batches: 0, lanes: Lanes::new(lanes, 0) }
    }

    /// The place with which the pass of a slot begins, if it is behind this one.
    fn behind<D: IterableDataset>(&self, slot: &Slot<Streamed<D>>) -> Option<Place> {
        let (epoch, pass, first) = (slot.epoch, slot.turn, slot.part.first);
        if (epoch, pass) == (self.epoch, self.pass) {
            return None;
        }
        let goes_on = epoch == self.epoch;
        let batches = if goes_on { self.batches } else { 0 };
        Some(Place { epoch, pass, first, batches, lanes: Lanes::new(self.lanes.len() as u64, first) })
    }
}

pub(crate) struct Cursor {
    /// Place after the batches that have arrived.
    now: Place,
    /// Order of the shards in this pass; `None` until a shard is cut.
    order: Option<ShardOrder>,
    /// Round and lane that are planned next.
    next: (u64, usize),
    /// Place after the batches that were given.
    given: Place,
}

impl Cursor {
    pub(super) fn new(place: Place) -> Cursor {
        let round = place.lanes.earliest().unwrap_or_default();
        Cursor { now: place.clone(), order: None, next: (round, 0), given: place }
    }

    fn begin(&mut self, plan: &StreamPlan, epoch: u64, pass: u64, first: u64) {
        let lanes = Lanes::new(plan.lanes, first);
        self.order = None;
        self.next = (first, 0);
        self.now = Place { epoch, pass, first, batches: 0, lanes };
    }

    /// Changes a lane of this pass, as of what has arrived.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut Lane)) -> Arc<Lane> {
        let mut lane = self.now.lanes.get(number).clone();
        change(&mut lane);
        let lane = Arc::new(lane);
        self.now.lanes.set(number, Arc::clone(&lane));
        lane
    }

    /// Returns the task for a slot's batch. The slot was planned in this pass, as all slots without a batch
    /// are.
    pub(super) fn task(&self, part: &Part, threads: usize) -> StreamTask {
        StreamTask {
            epoch: self.now.epoch,
            pass: self.now.pass,
            lane: part.lane as u64,
            at: self.now.lanes.get(part.lane).at.clone(),
            skip: part.skip.clone(),
            threads: threads as u32,
            poison: None,
            opens: false,
        }
    }

    /// Ends a shard before the sample that can't be read. Returns `false` if it ended there before.
    fn cut(&mut self, plan: &StreamPlan, part: &Part, failed: &Failed) -> bool {
        let order = self.order.get_or_insert_with(|| plan.order(self.now.epoch, self.now.pass));
        let shard = |nth: &u64| plan.shard(order, part.lane as u64, *nth);
        let at = &self.now.lanes.get(part.lane).at;
        let mut left = (at.shard_in_lane..).take_while(|nth| shard(nth).is_some());
        let cut = left.find(|nth| shard(nth) == failed.shard);
        let Some(nth) = cut else { return false };
        let mut is_other = false;
        self.change(part.lane, |lane| is_other = lane.at.cut(nth, failed.item.index as u64));
        is_other
    }
}

/// Lane, round and samples of a slot.
#[derive(Default)]
pub(crate) struct Part {
    pub(super) lane: usize,
    round: u64,
    first: u64,
    /// The positions of samples that are left out.
    skip: Vec<u64>,
    items: Vec<Item>,
    shards: Vec<usize>,
    /// The lane behind it.
    after: Option<Arc<Lane>>,
}

impl<D: IterableDataset> Kind for Streamed<D> {
    type Dataset = D;
    type Batch = D::Batch;
    type Plan = StreamPlan;
    type Sent = StreamPlan;
    type Worker = StreamWorker<D>;
    type Task = StreamTask;
    type After = After;
    type Cursor = Cursor;
    type Part = Part;
    type Place = Place;

    fn begin(orders: Orders<D, StreamPlan>) -> AnyResult<StreamWorker<D>> {
        StreamWorker::begin(orders)
    }

    fn sent(plan: &StreamPlan) -> (u64, StreamPlan) {
        (plan.seed, plan.clone())
    }

    fn plan(
        plan: &StreamPlan,
        cursor: &mut Cursor,
        window: &VecDeque<Slot<Self>>,
        last: u64,
    ) -> Planned<Part> {
        loop {
            let Place { epoch, pass, first, .. } = cursor.now;
            let (round, lane) = cursor.next;
            let here = || window.iter().filter(|slot| slot.epoch == epoch);
            let enough = plan.steps.is_some_and(|steps| {
                let given = if cursor.given.epoch == epoch { cursor.given.batches } else { 0 };
                let counts = |slot: &&Slot<Self>| !slot.is_left_out();
                given + here().filter(counts).count() as u64 >= steps
            });
            if enough && here().any(Slot::is_open) {
                return Planned::NotYet;
            }
            let lanes = &cursor.now.lanes;
            let (earliest, rounds) = (lanes.earliest(), lanes.latest());
            let all_ended = earliest.is_none();
            if enough || (all_ended && plan.steps.is_none()) {
                // Behind an epoch without a batch the search for one could have no end.
                if epoch >= last || rounds == 0 {
                    return Planned::Over;
                }
                cursor.begin(plan, epoch + 1, 0, 0);
                continue;
            }
            if all_ended {
                if rounds > first {
                    cursor.begin(plan, epoch, pass + 1, rounds);
                    continue;
                }
                let number = rounds * plan.lanes;
                return Planned::NoBatch { epoch, number, part: Part { first, ..Part::default() } };
            }
            let next = lanes.next_in(round, lane);
            let Some(lane) = next else {
                // Lanes that have ended are behind the others by as many rounds as those have batches.
                cursor.next = (earliest.unwrap_or_default().max(round + 1), 0);
                continue;
            };
            cursor.next = (round, lane + 1);
            let waits = here().any(|slot| slot.is_open() && slot.part.lane == lane);
            let part = Part { lane, round, first, ..Part::default() };
            let number = round * plan.lanes + lane as u64;
            return Planned::Batch { epoch, turn: pass, number, part, waits };
        }
    }

    fn task(cursor: &Cursor, slot: &Slot<Self>) -> StreamTask {
        cursor.task(&slot.part, slot.threads)
    }

    fn lane(part: &Part) -> Option<u64> {
        Some(part.lane as u64)
    }

    fn arrived(cursor: &mut Cursor, part: &mut Part, made: &mut Made<D::Batch, After>) -> bool {
        let mut behind = None;
        if let Some(after) = made.after.take() {
            (part.items, part.shards) = after.items();
            let After { at, ended, .. } = after;
            behind = Some((at, ended));
        }
        let lane = cursor.change(part.lane, |lane| {
            if let Some(behind) = behind {
                (lane.at, lane.ended) = behind;
            }
            if made.batch.is_some() || !part.skip.is_empty() {
                lane.round = part.round + 1;
            }
        });
        part.after = Some(Arc::clone(&lane));
        !lane.ended
    }

    fn fill_in(part: &mut Part, info: &mut BatchInfo) {
        info.items = std::mem::take(&mut part.items);
        info.shards = std::mem::take(&mut part.shards);
        info.valid = info.items.len();
    }

    fn failed(_: &Part, note: u64) -> Option<Failed> {
        let (moment, shard, sample) = Moment::of(note)?;
        let item = Item { index: sample as usize, position: position(shard, sample) };
        Some(Failed { item, shard: Some(shard), reading: moment != Moment::Row })
    }

    fn describe(dataset: &D, failed: &Failed) -> Option<String> {
        let shard = failed.shard?;
        // A panic costs the name alone.
        catch_panic(|| dataset.describe(shard)).flatten()
    }

    fn without(plan: &StreamPlan, cursor: &mut Cursor, part: &mut Part, failed: &Failed) -> Without {
        if failed.reading {
            let is_other = cursor.cut(plan, part, failed);
            return if is_other { Without::Again } else { Without::Impossible };
        }
        let again = part.skip.len() as u64 >= plan.batch_size || part.skip.contains(&failed.item.position);
        if again {
            return Without::Impossible;
        }
        part.skip.push(failed.item.position);
        Without::Again
    }

    fn lost(plan: &StreamPlan, cursor: &mut Cursor, part: &mut Part, failed: Option<&Failed>) {
        // If less of a shard can be read than before, other samples come next.
        let others = failed.is_some_and(|failed| failed.reading && cursor.cut(plan, part, failed));
        let lane = cursor.change(part.lane, |lane| {
            if !others {
                lane.at.lost += plan.batch_size;
            }
            lane.round = part.round + 1;
        });
        part.after = Some(lane);
    }

    fn given(cursor: &mut Cursor, slot: &mut Slot<Self>, _: Option<&Slot<Self>>) {
        if let Some(behind) = cursor.given.behind(slot) {
            cursor.given = behind;
        }
        // An error that ends all is in the place of a batch that was neither made nor given up: it does not
        // count as given.
        let Some(after) = slot.part.after.take() else { return };
        cursor.given.lanes.set(slot.part.lane, after);
        let counts = !slot.is_left_out();
        cursor.given.batches += u64::from(counts);
    }

    fn begins_a_turn(cursor: &Cursor) -> bool {
        let Place { first, lanes, .. } = &cursor.given;
        lanes.latest() == *first && !lanes.has_ended()
    }

    fn next(cursor: &Cursor) -> (u64, u64) {
        let (round, lane) = cursor.next;
        (cursor.now.epoch, round * cursor.now.lanes.len() as u64 + lane as u64)
    }

    fn place(cursor: &Cursor, front: Option<&Slot<Self>>) -> Place {
        front.and_then(|front| cursor.given.behind(front)).unwrap_or_else(|| cursor.given.clone())
    }

    fn left(plan: &StreamPlan, cursor: &Cursor, _: &VecDeque<Slot<Self>>, last: u64) -> Option<usize> {
        let Place { epoch, batches, .. } = cursor.given;
        let all = plan.steps?.checked_mul(last.checked_sub(epoch)?.checked_add(1)?)?;
        usize::try_from(all.saturating_sub(batches)).ok()
    }
}
