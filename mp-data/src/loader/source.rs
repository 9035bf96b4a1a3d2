//! Interface between the trainer's side of a loader and the two kinds of datasets: those with indices, and
//! streams.

use std::collections::VecDeque;

use crate::error::failure::DynError;
use crate::worker::batch_maker::BatchMaker;
use crate::worker::reply::WorkerReply;
use crate::{BatchInfo, Item, LoadError, LoadedBatch, SkippedSample};

/// Number of delivered batches whose place is kept, and of left out batches whose error is kept.
pub(crate) const HISTORY: usize = 1024;

/// Result of planning.
pub(crate) enum PlanStep<P> {
    Batch {
        epoch: u64,
        /// Batches of one turn may be given out of order.
        turn: u64,
        number: u64,
        contents: P,
        /// The batch before it in its lane is on its way: it begins where that ends.
        waits: bool,
    },
    /// Unknown until batches in flight have arrived.
    Blocked,
    End,
    /// Neither this pass over the data nor any later one can have a batch.
    NoBatch {
        epoch: u64,
        number: u64,
        contents: P,
    },
    /// The batch can't be planned; `continues` if others can.
    Failed {
        epoch: u64,
        number: u64,
        contents: P,
        source: DynError,
        continues: bool,
    },
}

/// Sample at which a batch failed.
#[derive(Clone, Copy)]
pub(crate) struct FailedSample {
    pub(crate) item: Item,
    pub(crate) shard: Option<usize>,
    /// `true` if opening or reading the shard failed, so that samples after it can't be read either.
    pub(crate) reading: bool,
}

/// Outcome for a batch without the sample at which it failed.
pub(crate) enum AfterSkip {
    Retry,
    Empty,
    Impossible,
}

/// A batch on its way: from its planning until it is given.
///
/// | the slot is | it becomes | when |
/// |---|---|---|
/// | planned | `Sent` | at once |
/// | | `Waits` | of a stream: the batch before it in its lane isn't there |
/// | `Waits` | `Sent` | that is there, or an error in its place |
/// | | gone | that was the last of the lane |
/// | `Sent` | `Ready` | the worker has made it, or it can't be made |
/// | | `Sent` | it is made again without a sample, or by one thread |
/// | | `Held` | there was no memory, and others are on their way or wait to be given |
/// | | `LeftOut` | it can't be made, and is to be left out |
/// | | gone | of a stream: its lane has no samples any more |
/// | `Held` | `Sent` | another one was given or made, or gave its memory up |
/// | `Ready` | `Held` | a batch before it has no memory, and nothing else is on its way: it is made again later. Not of a stream, whose lane goes on behind it |
/// | `Ready`, `LeftOut` | gone | it is given; in order, or as soon as it is ready |
///
/// When no worker can live, what was not made stays as it is: the state says that it was not given.
pub(crate) struct BatchSlot<K: BatchSource> {
    pub(crate) epoch: u64,
    pub(crate) turn: u64,
    pub(crate) number: u64,
    pub(crate) contents: K::Contents,
    pub(crate) skipped: Vec<SkippedSample>,
    pub(crate) threads: usize,
    /// Number of attempts before it was sent last.
    pub(crate) attempts: usize,
    /// There was no memory for it when no other was on its way.
    pub(crate) alone: bool,
    pub(crate) state: BatchSlotState<BatchOf<K>>,
}

pub(crate) enum BatchSlotState<B> {
    Waiting,
    /// Under this ticket.
    Sent(usize),
    OutOfMemory,
    Ready(Box<Result<LoadedBatch<B>, LoadError>>),
    Skipped,
}

impl<K: BatchSource> BatchSlot<K> {
    pub(crate) fn new(
        epoch: u64,
        turn: u64,
        number: u64,
        contents: K::Contents,
        threads: usize,
    ) -> BatchSlot<K> {
        let (skipped, attempts, alone, state) = (Vec::new(), 0, false, BatchSlotState::OutOfMemory);
        BatchSlot { epoch, turn, number, contents, skipped, threads, attempts, alone, state }
    }

    /// Returns `true` if it is not known yet whether there is such a batch.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_done()
    }

    pub(crate) fn is_skipped(&self) -> bool {
        matches!(self.state, BatchSlotState::Skipped)
    }

    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.state, BatchSlotState::Sent(_))
    }

    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self.state, BatchSlotState::OutOfMemory)
    }

    /// Nothing more happens to it before it is given.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, BatchSlotState::Ready(_) | BatchSlotState::Skipped)
    }

    /// Drops the batch that is there, if it can be made again, the same; whether that is so.
    pub(crate) fn release_memory(&mut self) -> bool {
        let BatchSlotState::Ready(result) = &mut self.state else { return false };
        let Ok(loaded) = &mut **result else { return false };
        if !K::take_back(&mut self.contents, &mut loaded.info) {
            return false;
        }
        self.skipped = std::mem::take(&mut loaded.info.skipped);
        let before = std::mem::replace(&mut self.state, BatchSlotState::OutOfMemory);
        if let BatchSlotState::Ready(result) = before {
            mp_core::user_code::drop_caught(result);
        }
        true
    }
}

type WorkerOf<K> = <K as BatchSource>::Worker;
pub(crate) type DatasetOf<K> = <WorkerOf<K> as BatchMaker>::Dataset;
pub(crate) type WorkerPlanOf<K> = <WorkerOf<K> as BatchMaker>::Plan;
pub(crate) type BatchOf<K> = <WorkerOf<K> as BatchMaker>::Batch;
pub(crate) type TaskOf<K> = <WorkerOf<K> as BatchMaker>::Task;
/// Result of a loader's task.
pub(crate) type ReplyOf<K> = WorkerReply<BatchOf<K>, <WorkerOf<K> as BatchMaker>::Progress>;

/// Kind of a loader: its batches, and the tasks for its workers.
pub(crate) trait BatchSource: Sized + 'static {
    type Worker: BatchMaker;
    type Plan: Send + Sync;
    /// Place of planned, arrived and delivered batches.
    type Cursor;
    /// Contents of one batch.
    type Contents;
    /// Place of a trainer.
    type Position: Clone;

    /// The seed, and the plan for workers.
    fn worker_plan(plan: &Self::Plan) -> (u64, WorkerPlanOf<Self>);
    fn plan(
        plan: &Self::Plan,
        cursor: &mut Self::Cursor,
        window: &VecDeque<BatchSlot<Self>>,
        last: u64,
    ) -> PlanStep<Self::Contents>;
    fn task(cursor: &Self::Cursor, slot: &BatchSlot<Self>) -> TaskOf<Self>;
    /// The lane of a batch: each of its batches begins where the one before ends.
    fn lane(contents: &Self::Contents) -> Option<u64>;
    /// A batch was made, or it turned out that there is none; whether its lane has others.
    fn record_arrival(
        cursor: &mut Self::Cursor,
        contents: &mut Self::Contents,
        made: &mut ReplyOf<Self>,
    ) -> bool;
    fn fill_info(contents: &mut Self::Contents, info: &mut BatchInfo);
    fn locate_failure(contents: &Self::Contents, note: u64) -> Option<FailedSample>;
    fn describe(dataset: &DatasetOf<Self>, failed: &FailedSample) -> Option<String>;
    fn skip_sample(
        plan: &Self::Plan,
        cursor: &mut Self::Cursor,
        contents: &mut Self::Contents,
        failed: &FailedSample,
    ) -> AfterSkip;
    /// A batch can't be made: its lane goes on behind it.
    fn record_loss(
        plan: &Self::Plan,
        cursor: &mut Self::Cursor,
        contents: &mut Self::Contents,
        failed: Option<&FailedSample>,
    );
    /// A batch is given, an error in its place, or neither.
    fn record_delivery(
        cursor: &mut Self::Cursor,
        slot: &mut BatchSlot<Self>,
        front: Option<&BatchSlot<Self>>,
    );
    /// Returns `true` if the turn with which the cursor begins has had no batch before.
    fn begins_turn(cursor: &Self::Cursor) -> bool;
    /// The epoch and the number of the batch that is planned next.
    fn next(cursor: &Self::Cursor) -> (u64, u64);
    /// Returns the place of the trainer; `front` is the first slot that was not given.
    fn position(cursor: &Self::Cursor, front: Option<&BatchSlot<Self>>) -> Self::Position;
    /// Returns `true` if as many batches were given before the first slot as a state may name.
    fn is_too_far_ahead(_: &Self::Cursor, _: &BatchSlot<Self>) -> bool {
        false
    }
    /// A batch that was made is to be made again; false if it can't be.
    fn take_back(_: &mut Self::Contents, _: &mut BatchInfo) -> bool {
        false
    }
    /// Returns the most batches that are left, if that is known.
    fn remaining(
        plan: &Self::Plan,
        cursor: &Self::Cursor,
        window: &VecDeque<BatchSlot<Self>>,
        last: u64,
    ) -> Option<usize>;
}

/// Returns the report of a sample that is left out.
pub(crate) fn skipped(failed: &FailedSample, why: String) -> SkippedSample {
    SkippedSample { item: failed.item, shard: failed.shard, rest_of_shard: failed.reading, why }
}
