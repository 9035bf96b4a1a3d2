//! Interface between the trainer's side of a loader and the two kinds of datasets: those with indices, and
//! streams.

use std::collections::VecDeque;

use mp_reduce::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::failure::Source;
use crate::worker::{Made, Maker, Orders};
use crate::{AnyResult, Batch, BatchInfo, Item, LoadError, Loaded, Skipped};

/// Number of delivered batches whose place is kept, and of left out batches whose error is kept.
pub(crate) const HISTORY: usize = 1024;

/// Result of planning.
pub(crate) enum Planned<P> {
    Batch {
        epoch: u64,
        /// Batches of one turn may be given out of order.
        turn: u64,
        number: u64,
        part: P,
        /// The batch before it in its lane is on its way: it begins where that ends.
        waits: bool,
    },
    /// Unknown until batches in flight have arrived.
    NotYet,
    Over,
    /// Neither this pass over the data nor any later one can have a batch.
    NoBatch {
        epoch: u64,
        number: u64,
        part: P,
    },
    /// The batch can't be planned; `goes_on` if others can.
    Broken {
        epoch: u64,
        number: u64,
        part: P,
        source: Source,
        goes_on: bool,
    },
}

/// Sample at which a batch failed.
#[derive(Clone, Copy)]
pub(crate) struct Failed {
    pub(crate) item: Item,
    pub(crate) shard: Option<usize>,
    /// `true` if opening or reading the shard failed, so that samples after it can't be read either.
    pub(crate) reading: bool,
}

/// Outcome for a batch without the sample at which it failed.
pub(crate) enum Without {
    Again,
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
pub(crate) struct Slot<K: Kind> {
    pub(crate) epoch: u64,
    pub(crate) turn: u64,
    pub(crate) number: u64,
    pub(crate) part: K::Part,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) threads: usize,
    /// Number of attempts before it was sent last.
    pub(crate) attempts: usize,
    /// There was no memory for it when no other was on its way.
    pub(crate) alone: bool,
    pub(crate) at: At<K::Batch>,
}

pub(crate) enum At<B> {
    Waits,
    /// Under this ticket.
    Sent(usize),
    Held,
    Ready(Box<Result<Loaded<B>, LoadError>>),
    LeftOut,
}

impl<K: Kind> Slot<K> {
    pub(crate) fn new(epoch: u64, turn: u64, number: u64, part: K::Part, threads: usize) -> Slot<K> {
        let (skipped, attempts, alone, at) = (Vec::new(), 0, false, At::Held);
        Slot { epoch, turn, number, part, skipped, threads, attempts, alone, at }
    }

    /// Returns `true` if it is not known yet whether there is such a batch.
    pub(crate) fn is_open(&self) -> bool {
        !self.is_done()
    }

    pub(crate) fn is_left_out(&self) -> bool {
        matches!(self.at, At::LeftOut)
    }

    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.at, At::Sent(_))
    }

    pub(crate) fn is_held(&self) -> bool {
        matches!(self.at, At::Held)
    }

    /// Nothing more happens to it before it is given.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.at, At::Ready(_) | At::LeftOut)
    }

    /// Drops the batch that is there, if it can be made again, the same; whether that is so.
    pub(crate) fn give_up(&mut self) -> bool {
        let At::Ready(result) = &mut self.at else { return false };
        let Ok(loaded) = &mut **result else { return false };
        if !K::take_back(&mut self.part, &mut loaded.info) {
            return false;
        }
        self.skipped = std::mem::take(&mut loaded.info.skipped);
        if let At::Ready(result) = std::mem::replace(&mut self.at, At::Held) {
            mp_core::user_code::drop_caught(result);
        }
        true
    }
}

/// Result of a loader's task.
pub(crate) type MadeOf<K> = Made<<K as Kind>::Batch, <K as Kind>::After>;

/// Kind of a loader: its batches, and the tasks for its workers.
pub(crate) trait Kind: Sized + 'static {
    type Dataset: Serialize + DeserializeOwned + Send + Sync + 'static;
    type Batch: Batch;
    type Plan: Send + Sync;
    /// Part of the plan that workers need.
    type Sent: Clone + Serialize + DeserializeOwned + Send + Sync + 'static;
    type Worker: Maker<Batch = Self::Batch, Task = Self::Task, After = Self::After>;
    type Task: Message + Send;
    /// Place after a batch, which comes with the batch.
    type After: Serialize + DeserializeOwned + Send + 'static;
    /// Place of planned, arrived and delivered batches.
    type Cursor;
    /// Contents of one batch.
    type Part;
    /// Place of a trainer.
    type Place: Clone;

    fn begin(orders: Orders<Self::Dataset, Self::Sent>) -> AnyResult<Self::Worker>;
    /// The seed, and the plan for workers.
    fn sent(plan: &Self::Plan) -> (u64, Self::Sent);
    fn plan(
        plan: &Self::Plan,
        cursor: &mut Self::Cursor,
        window: &VecDeque<Slot<Self>>,
        last: u64,
    ) -> Planned<Self::Part>;
    fn task(cursor: &Self::Cursor, slot: &Slot<Self>) -> Self::Task;
    /// The lane of a batch: each of its batches begins where the one before ends.
    fn lane(part: &Self::Part) -> Option<u64>;
    /// A batch was made, or it turned out that there is none; whether its lane has others.
    fn arrived(
        cursor: &mut Self::Cursor,
        part: &mut Self::Part,
        made: &mut Made<Self::Batch, Self::After>,
    ) -> bool;
    fn fill_in(part: &mut Self::Part, info: &mut BatchInfo);
    fn failed(part: &Self::Part, note: u64) -> Option<Failed>;
    fn describe(dataset: &Self::Dataset, failed: &Failed) -> Option<String>;
    fn without(
        plan: &Self::Plan,
        cursor: &mut Self::Cursor,
        part: &mut Self::Part,
        failed: &Failed,
    ) -> Without;
    /// A batch can't be made: its lane goes on behind it.
    fn lost(plan: &Self::Plan, cursor: &mut Self::Cursor, part: &mut Self::Part, failed: Option<&Failed>);
    /// A batch is given, an error in its place, or neither.
    fn given(cursor: &mut Self::Cursor, slot: &mut Slot<Self>, front: Option<&Slot<Self>>);
    /// Returns `true` if the turn with which the cursor begins has had no batch before.
    fn begins_a_turn(cursor: &Self::Cursor) -> bool;
    /// The epoch and the number of the batch that is planned next.
    fn next(cursor: &Self::Cursor) -> (u64, u64);
    /// Returns the place of the trainer; `front` is the first slot that was not given.
    fn place(cursor: &Self::Cursor, front: Option<&Slot<Self>>) -> Self::Place;
    /// Returns `true` if as many batches were given before the first slot as a state may name.
    fn is_far(_: &Self::Cursor, _: &Slot<Self>) -> bool {
        false
    }
    /// A batch that was made is to be made again; false if it can't be.
    fn take_back(_: &mut Self::Part, _: &mut BatchInfo) -> bool {
        false
    }
    /// Returns the most batches that are left, if that is known.
    fn left(
        plan: &Self::Plan,
        cursor: &Self::Cursor,
        window: &VecDeque<Slot<Self>>,
        last: u64,
    ) -> Option<usize>;
}

/// Returns the report of a sample that is left out.
pub(crate) fn skipped(failed: &Failed, why: String) -> Skipped {
    Skipped { item: failed.item, shard: failed.shard, rest_of_shard: failed.reading, why }
}
