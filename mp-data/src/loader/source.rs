//! Interface between the loader in the training process and the two kinds of datasets: datasets with indices,
//! and streams.

use std::collections::VecDeque;

use crate::error::failure::DynError;
use crate::worker::batch_maker::{BatchMaker, WorkerReply};
use crate::{BatchInfo, Item, LoadError, LoadedBatch, SkippedSample};

/// Number of delivered batches whose position is retained, and of skipped batches whose error is retained.
pub(crate) const HISTORY: usize = 1024;

/// Result of planning the next batch.
pub(crate) enum PlanStep<P> {
    Batch {
        epoch: u64,
        /// Pass over the shards in the epoch, or 0 for a dataset with indices. Batches of one pass may be
        /// delivered out of order.
        turn: u64,
        number: u64,
        contents: P,
        /// `true` if the batch can't be sent yet: it begins at the end of the lane's previous batch, which is
        /// in flight.
        waits: bool,
    },
    /// The next batch is unknown until batches in flight have arrived.
    Blocked,
    End,
    /// No batch can be made in this pass over the data, or in any later pass.
    NoBatch {
        epoch: u64,
        number: u64,
        contents: P,
    },
    /// The batch can't be planned. `continues` is `true` if later batches can be planned.
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
    /// `true` if opening or reading the shard failed, so that later samples of the shard can't be read
    /// either.
    pub(crate) reading: bool,
}

/// Next step for a batch after the removal of the sample at which the batch failed.
pub(crate) enum AfterSkip {
    Retry,
    Empty,
    Impossible,
}

/// Batch in flight, from its planning to its delivery.
///
/// | state | next state | condition |
/// |---|---|---|
/// | planned | `Sent` | immediately |
/// | | `Waiting` | in a stream, if the previous batch of its lane has not arrived |
/// | `Waiting` | `Sent` | the previous batch of its lane has arrived, or an error in its place |
/// | | removed | the previous batch was the last of the lane |
/// | `Sent` | `Ready` | the worker has made the batch, or the batch can't be made and the error is delivered |
/// | | `Sent` | the batch is made again without a failed sample, or by one thread |
/// | | `OutOfMemory` | shared memory is exhausted, and other batches are in flight or ready |
/// | | `Skipped` | the batch can't be made, and the setting is to skip such batches |
/// | | removed | in a stream, if the lane of the batch has no more samples |
/// | `OutOfMemory` | `Sent` | another batch was delivered or made, or was dropped to release its memory |
/// | `Ready` | `OutOfMemory` | an earlier batch has no memory, and no other batch is in flight: the ready batch is dropped, and made again later. Not in a stream, because the lane has continued after the batch |
/// | `Ready`, `Skipped` | removed | the batch was delivered or passed over, in order or as soon as it was ready |
///
/// If no worker can run, slots keep their state, and the saved state does not count their batches as
/// delivered.
pub(crate) struct BatchSlot<K: BatchSource> {
    pub(crate) epoch: u64,
    pub(crate) turn: u64,
    pub(crate) number: u64,
    pub(crate) contents: K::Contents,
    pub(crate) skipped: Vec<SkippedSample>,
    pub(crate) threads: usize,
    /// Number of failed attempts to make the batch with its present samples.
    pub(crate) attempts: usize,
    /// `true` if the batch was sent while no other batch was in flight, after memory had been exhausted.
    pub(crate) alone: bool,
    pub(crate) state: BatchSlotState<BatchOf<K>>,
}

pub(crate) enum BatchSlotState<B> {
    Waiting,
    /// Sent to a worker. The number is the task's ticket.
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

    pub(crate) fn is_skipped(&self) -> bool {
        matches!(self.state, BatchSlotState::Skipped)
    }

    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.state, BatchSlotState::Sent(_))
    }

    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self.state, BatchSlotState::OutOfMemory)
    }

    /// Returns `true` if the state changes only by delivery.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, BatchSlotState::Ready(_) | BatchSlotState::Skipped)
    }

    /// Drops a ready batch if it can be made again. Returns `true` if it was dropped.
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
/// Reply of a worker to a loader's task.
pub(crate) type ReplyOf<K> = WorkerReply<BatchOf<K>, <WorkerOf<K> as BatchMaker>::Progress>;

/// Source of the batches of one iterator: a dataset with indices, or a stream, and the position of planned,
/// arrived and delivered batches.
pub(crate) trait BatchSource: Sized + 'static {
    type Worker: BatchMaker;
    type Plan: Send + Sync;
    /// Contents of one batch.
    type Contents;
    /// Position of an iterator, for its saved state.
    type Position: Clone;

    /// `true` if an epoch may have no end, so that a search for a batch must end with an error.
    const IS_ENDLESS: bool = false;

    /// Returns the seed, and the plan for workers.
    fn worker_plan(plan: &Self::Plan) -> (u64, WorkerPlanOf<Self>);
    /// Returns a description of the dataset and its order. Loaders of two hosts work together only if their
    /// descriptions are equal.
    fn kind(plan: &Self::Plan) -> String;
    fn describe(dataset: &DatasetOf<Self>, failed: &FailedSample) -> Option<String>;
    /// Plans the next batch of the epochs up to `last`. `window` has the batches in flight.
    fn plan(&mut self, window: &VecDeque<BatchSlot<Self>>, last: u64) -> PlanStep<Self::Contents>;
    fn task(&self, slot: &BatchSlot<Self>) -> TaskOf<Self>;
    /// Returns the samples of a batch that was made, and their shards in a stream.
    fn samples(contents: &Self::Contents, made: &ReplyOf<Self>) -> (Vec<Item>, Vec<usize>);
    fn fill_info(contents: &mut Self::Contents, info: &mut BatchInfo);
    fn locate_failure(contents: &Self::Contents, note: u64) -> Option<FailedSample>;
    fn skip_sample(&mut self, contents: &mut Self::Contents, failed: &FailedSample) -> AfterSkip;
    /// Records that a batch, or an error in its place, was delivered, or that the batch was skipped. `front`
    /// is the first remaining slot.
    fn record_delivery(&mut self, slot: &mut BatchSlot<Self>, front: Option<&BatchSlot<Self>>);
    /// Returns `true` if the iterator begins at the start of an epoch or pass, of which no batch was
    /// delivered before.
    fn begins_turn(&self) -> bool;
    /// Returns epoch and number of the next batch to plan.
    fn next(&self) -> (u64, u64);
    /// Returns the position of the iterator. `front` is the first slot that was not delivered.
    fn position(&self, front: Option<&BatchSlot<Self>>) -> Self::Position;
    /// Returns the maximum number of remaining batches, or `None` if it is unknown. `in_flight` of them are
    /// planned.
    fn remaining(&self, in_flight: usize, last: u64) -> Option<usize>;

    /// Returns the lane of a batch. Each batch of a lane begins where the lane's previous batch ends.
    fn lane(_: &Self::Contents) -> Option<u64> {
        None
    }
    /// Records the reply for a batch. The reply can report that the batch doesn't exist. Returns `true` if
    /// the lane of the batch has more batches.
    fn record_arrival(&mut self, _: &mut Self::Contents, _: &mut ReplyOf<Self>) -> bool {
        true
    }
    /// Records that a batch can't be made. The batch's lane continues after the batch.
    fn record_loss(&mut self, _: &mut Self::Contents, _: Option<&FailedSample>) {}
    /// Returns `true` if planning must wait until this slot is no longer the first one, because a saved state
    /// could not list all batches after the slot.
    fn is_too_far_ahead(&self, _: &BatchSlot<Self>) -> bool {
        false
    }
    /// Prepares a ready batch to be made again. Returns `false` if that is impossible.
    fn take_back(_: &mut Self::Contents, _: &mut BatchInfo) -> bool {
        false
    }
}

/// Creates the description of a skipped sample.
pub(crate) fn skipped(failed: &FailedSample, why: String) -> SkippedSample {
    SkippedSample { item: failed.item, shard: failed.shard, rest_of_shard: failed.reading, why }
}
