//! Worker of a stream, which continues a lane at the position of the task and makes one batch.
//!
//! | moment of death | effect | lane |
//! |---|---|---|
//! | before the worker takes the task | another worker takes the task | continues in that worker |
//! | in `open`, while it reads, while it writes rows | the batch's memory is freed | is opened again by another worker at the position of the task, with the same samples |
//! | before the reply is put | the batch's memory is freed | is opened again by another worker at the position of the task, with the same samples |
//! | after the reply is put | none | continues after the batch: the reply has the batch and the new position |
//!
//! Open readers are a cache: a reader is used only if its position is equal to the position of the task.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use mp_core::user_code::catch_panic;
use serde::{Deserialize, Serialize};

use super::dataset::IterableDataset;
use super::lane::{LanePosition, LaneProgress};
use super::open_lane::{OpenLane, ReadContext};
use super::plan::{ShardOrder, StreamPlan};
use crate::batch::rows::{UnwrittenRow, UnwrittenRowError};
use crate::batch::traits::check;
use crate::dataset::context::{Context, SECOND_FILL};
use crate::dataset::info::WorkerInfo;
use crate::dataset::row_threads::RowThreads;
use crate::dataset::samples::Samples;
use crate::dataset::stream_position::Moment;
use crate::worker::batch_maker::{BatchMaker, WorkerInit, WorkerReply, nanos_since};
use crate::{AnyResult, Item};

/// Task to make a batch.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct StreamTask {
    pub(super) epoch: u64,
    pub(super) pass: u64,
    pub(super) lane: u64,
    pub(super) at: LanePosition,
    /// Positions of skipped samples.
    pub(super) skip: Vec<u64>,
    pub(super) threads: u32,
    pub(super) poison: Option<u8>,
    /// `true` if the worker must open the lane again, even if the lane is already open.
    pub(super) opens: bool,
}

/// Worker of a stream, with its own copy of the dataset.
pub(crate) struct StreamWorker<D: IterableDataset> {
    dataset: D,
    info: WorkerInfo,
    row_threads: Arc<RowThreads>,
    plan: StreamPlan,
    /// Duration of the worker's start in nanoseconds: decoding of the dataset, and `init`.
    began: u64,
    /// Epoch and pass of the last batch, and the order of their shards.
    order: Option<((u64, u64), ShardOrder)>,
    /// Open lanes of the last batch's epoch and pass.
    open: OpenLanes<D>,
}

/// Open lanes of a worker, with their positions.
struct OpenLanes<D: IterableDataset> {
    /// Open lanes by the number of their last use, the latest last.
    by_use: BTreeMap<u64, (u64, LanePosition, OpenLane<D>)>,
    /// Key in `by_use` of each lane.
    used: HashMap<u64, u64>,
    next_use: u64,
}

impl<D: IterableDataset> OpenLanes<D> {
    fn new() -> Self {
        OpenLanes { by_use: BTreeMap::new(), used: HashMap::new(), next_use: 0 }
    }

    fn take(&mut self, lane: u64) -> Option<(LanePosition, OpenLane<D>)> {
        let used = self.used.remove(&lane)?;
        self.by_use.remove(&used).map(|(_, at, open)| (at, open))
    }

    /// Stores an open lane. If `most` lanes are already open, closes the least recently used lane first.
    fn keep(&mut self, lane: u64, at: LanePosition, open: OpenLane<D>, most: u64) {
        if self.by_use.len() as u64 >= most
            && let Some((_, (oldest, ..))) = self.by_use.pop_first()
        {
            self.used.remove(&oldest);
        }
        self.used.insert(lane, self.next_use);
        self.by_use.insert(self.next_use, (lane, at, open));
        self.next_use += 1;
    }
}

impl<D: IterableDataset> StreamWorker<D> {
    /// Returns the lane of a task. Reuses the open lane if this worker has the lane open at the task's
    /// position.
    fn lane(&mut self, task: &StreamTask) -> OpenLane<D> {
        let is_there = |at: &LanePosition| *at == task.at;
        let found = self.open.take(task.lane).filter(|(at, _)| is_there(at));
        let opens = task.opens;
        found.filter(|_| !opens).map_or_else(|| OpenLane::new(&task.at), |(_, open)| open)
    }

    /// Keeps a lane open. The limit is twice this worker's share of the lanes, since other workers may
    /// continue some of the open lanes.
    fn keep(&mut self, task: &StreamTask, at: LanePosition, run: OpenLane<D>) {
        let most = 2 * self.plan.lanes.div_ceil(self.info.num_workers.max(1) as u64);
        self.open.keep(task.lane, at, run, most.max(2));
    }
}

impl<D: IterableDataset> BatchMaker for StreamWorker<D> {
    type Dataset = D;
    type Plan = StreamPlan;
    type Batch = D::Batch;
    type Task = StreamTask;
    type Progress = LaneProgress;

    fn begin(init: WorkerInit<D, StreamPlan>) -> AnyResult<Self> {
        let start = Instant::now();
        let (mut dataset, info, plan) = init.open()?;
        dataset.init(&info)?;
        let began = nanos_since(start);
        let row_threads = Arc::default();
        Ok(StreamWorker { dataset, info, row_threads, plan, began, order: None, open: OpenLanes::new() })
    }

    fn context(&self, task: &StreamTask) -> Context<D::Batch> {
        let seed = self.plan.pass_seed(task.pass);
        let threads = (task.threads as usize, Arc::clone(&self.row_threads));
        Context::new(self.info, (seed, task.epoch), Arc::default(), threads, task.poison).for_stream()
    }

    fn make(
        &mut self,
        task: &StreamTask,
        cx: &mut Context<D::Batch>,
    ) -> AnyResult<WorkerReply<D::Batch, LaneProgress>> {
        let made = self.made(task, cx)?;
        let Some((item, row)) = self.unwritten_again(task, cx) else { return Ok(made) };
        cx.begin(item);
        Err(UnwrittenRowError::from(row).into())
    }
}

impl<D: IterableDataset> StreamWorker<D> {
    /// Returns the first row that contains only the fill byte in two attempts with different bytes. Returns
    /// `None` if the batch can't be made again.
    fn unwritten_again(&mut self, task: &StreamTask, cx: &Context<D::Batch>) -> Option<(Item, UnwrittenRow)> {
        if cx.unwritten().is_empty() {
            return None;
        }
        let task = StreamTask { poison: Some(SECOND_FILL), opens: true, ..task.clone() };
        let mut again = self.context(&task).check_unwritten();
        catch_panic(|| self.made(&task, &mut again).map(drop))?.ok()?;
        let is_again = |seen: &&(Item, UnwrittenRow)| again.unwritten().contains(seen);
        cx.unwritten().iter().find(is_again).cloned()
    }

    fn made(
        &mut self,
        task: &StreamTask,
        cx: &mut Context<D::Batch>,
    ) -> AnyResult<WorkerReply<D::Batch, LaneProgress>> {
        let start = Instant::now();
        let of = (task.epoch, task.pass);
        if self.order.as_ref().is_some_and(|order| order.0 != of) {
            self.order = None;
            self.open = OpenLanes::new();
        }
        let mut run = self.lane(task);
        let order = &self.order.get_or_insert_with(|| (of, self.plan.order(of.0, of.1))).1;
        let mut reading = ReadContext {
            dataset: &mut self.dataset,
            plan: &self.plan,
            order,
            cx,
            epoch: task.epoch,
            pass: task.pass,
            lane: task.lane,
        };
        let taken = run.take(self.plan.batch_size, &mut reading)?;
        let is_short = (taken.len() as u64) < self.plan.batch_size;
        let (at, ended) = run.at();
        let mut progress = LaneProgress { items: Vec::new(), at, ended };
        let (mut items, mut samples) = (Vec::new(), Vec::new());
        for read in taken {
            if task.skip.contains(&read.item.position) {
                continue;
            }
            cx.note_moment(Moment::Row, read.item.position);
            samples.push(read.sample?);
            items.push(read.item);
            progress.items.extend([read.item.index as u64, read.item.position, read.shard as u64]);
        }
        cx.set_items(&items);
        let mut made = if samples.is_empty() || is_short && self.plan.drop_last {
            WorkerReply::new(None, &self.info, start)
        } else {
            let count = items.len();
            let fetched = self.dataset.fetch(Samples { items, samples }, cx);
            WorkerReply::of(fetched.and_then(|batch| check(batch, count)), &self.info, start)?
        };
        made.began = self.began;
        if made.no_memory.is_none() {
            if !progress.ended {
                self.keep(task, progress.at.clone(), run);
            }
            made.progress = Some(progress);
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::lane_tree::tests::Singles;

    #[test]
    fn open_lanes_evict_the_least_recently_used() {
        let mut open = OpenLanes::<Singles>::new();
        let at = |sample| LanePosition { sample, ..LanePosition::default() };
        let keep = |open: &mut OpenLanes<Singles>, lane: u64| {
            open.keep(lane, at(lane), OpenLane::new(&at(lane)), 2);
        };
        keep(&mut open, 7);
        keep(&mut open, 8);
        assert_eq!(open.take(7).map(|(at, _)| at.sample), Some(7));
        assert!(open.take(7).is_none());
        keep(&mut open, 7);
        keep(&mut open, 9);
        assert!(open.take(8).is_none(), "it was used before the others");
        assert_eq!([7, 9].map(|lane| open.take(lane).is_some()), [true, true]);
        assert!(open.by_use.is_empty() && open.used.is_empty());
    }
}
