//! Batches of datasets with indices. The plan assigns samples to batches.

use std::collections::VecDeque;
use std::marker::PhantomData;

use mp_core::user_code::catch_panic;
use mp_spawn::CallFailure;

use crate::error::failure::{DynError, panic_error};
use crate::indexed::delivered_set::DeliveredSet;
use crate::indexed::worker::{IndexedTask, IndexedWorker};
use crate::loader::source::{AfterSkip, BatchSlot, BatchSource, FailedSample, PlanStep};
use crate::plan::{EpochOrder, Plan, PlanError, PlannedBatch, WindowStart};
use crate::worker::reply::WorkerReply;
use crate::{BatchInfo, Dataset, Item};

/// Maximum number of batches that are delivered before an earlier one, if they may be out of order. A state
/// lists them.
const AHEAD: u64 = 1024;

/// Datasets with indices.
pub(crate) struct IndexedSource<D>(PhantomData<fn() -> D>);

pub(crate) struct IndexedCursor {
    pub(crate) order: EpochOrder,
    /// Epoch and number of the next batch to plan.
    pub(crate) next: (u64, u64),
    pub(crate) delivered: DeliveredSet,
}

impl IndexedCursor {
    pub(crate) fn new(plan: &Plan, next: (u64, u64), out_of_order: &[u64]) -> IndexedCursor {
        IndexedCursor::of(plan.epoch(next.0), next.1, out_of_order)
    }

    /// Starts at a batch of an order.
    pub(crate) fn of(order: EpochOrder, next: u64, out_of_order: &[u64]) -> IndexedCursor {
        let epoch = order.epoch();
        IndexedCursor { order, next: (epoch, next), delivered: DeliveredSet::new(epoch, out_of_order) }
    }

    /// Advances to the next batch. Returns `false` if the number overflows.
    fn step(&mut self) -> bool {
        let next = self.next.1.checked_add(1);
        self.next.1 = next.unwrap_or(u64::MAX);
        next.is_some()
    }

    /// Returns the next batch. If it can't be planned, returns the cause, and `true` if later batches may be
    /// planned. Calls samplers of the user.
    fn planned(&self) -> Result<Option<PlannedBatch>, (DynError, bool)> {
        let number = self.next.1;
        let more = || self.batches().is_some_and(|all| number < all.saturating_sub(1));
        match CallFailure::catch(|| self.order.batch(number)) {
            Ok(Ok(planned)) => Ok(planned),
            Ok(Err(error)) => {
                let continues = matches!(error, PlanError::IndexOutOfRange { .. });
                Err((Box::new(error), continues && more()))
            }
            Err(panic) => Err((panic_error(*panic), more())),
        }
    }

    /// Returns the number of batches in the epoch, if it is known. A panic of the user's sampler is ignored
    /// here and reported at the next batch.
    pub(crate) fn batches(&self) -> Option<u64> {
        catch_panic(|| self.order.batches()).flatten()
    }

    /// Returns `true` if no epoch has a batch, so that a search for one would not end.
    fn is_always_empty(&self) -> bool {
        self.order.has_fixed_length() && self.order.batches() == Some(0)
    }
}

/// Most empty epochs in a row that a sampler of the user may return.
const MOST_EMPTY: u32 = 1000;

/// Samples of a batch, and the number of valid ones.
#[derive(Default)]
pub(crate) struct IndexedContents {
    items: Vec<Item>,
    valid: usize,
    window: Option<WindowStart>,
}

/// First batch that was not delivered, the batches after it that were, and its window of the order if the
/// order has windows.
#[derive(Clone)]
pub(crate) struct IndexedPosition {
    pub(crate) next: (u64, u64),
    pub(crate) out_of_order: Vec<u64>,
    pub(crate) window: Option<WindowStart>,
}

impl<D: Dataset> BatchSource for IndexedSource<D> {
    type Worker = IndexedWorker<D>;
    type Plan = Plan;
    type Cursor = IndexedCursor;
    type Contents = IndexedContents;
    type Position = IndexedPosition;
    const IS_ENDLESS: bool = false;

    fn worker_plan(plan: &Plan) -> (u64, ()) {
        (plan.seed(), ())
    }

    fn plan(
        plan: &Plan,
        cursor: &mut IndexedCursor,
        _: &VecDeque<BatchSlot<Self>>,
        last: u64,
    ) -> PlanStep<IndexedContents> {
        let mut empty = 0;
        loop {
            let (epoch, number) = cursor.next;
            if cursor.delivered.has(cursor.next) {
                if !cursor.step() {
                    return PlanStep::End;
                }
                continue;
            }
            let (source, continues) = match cursor.planned() {
                Ok(Some(PlannedBatch { number, items, valid })) => {
                    cursor.step();
                    let contents = IndexedContents { items, valid, window: cursor.order.window(number) };
                    return PlanStep::Batch { epoch, turn: 0, number, contents, waits: false };
                }
                Ok(None) if epoch < last && (number > 0 || !cursor.is_always_empty()) => {
                    empty += u32::from(number == 0);
                    if empty == MOST_EMPTY {
                        let source =
                            format!("{MOST_EMPTY} epochs in a row have no batch: the sampler draws nothing");
                        let (contents, source) = (IndexedContents::default(), source.into());
                        return PlanStep::Failed { epoch, number, contents, source, continues: false };
                    }
                    cursor.next = (epoch + 1, 0);
                    cursor.order = plan.epoch(epoch + 1);
                    continue;
                }
                Ok(None) => return PlanStep::End,
                Err(why) => why,
            };
            let continues = cursor.step() && continues;
            return PlanStep::Failed {
                epoch,
                number,
                contents: IndexedContents::default(),
                source,
                continues,
            };
        }
    }

    fn task(_: &IndexedCursor, slot: &BatchSlot<Self>) -> IndexedTask {
        IndexedTask::new(slot.epoch, slot.threads, None, &slot.contents.items)
    }

    fn lane(_: &IndexedContents) -> Option<u64> {
        None
    }

    fn record_arrival(
        _: &mut IndexedCursor,
        _: &mut IndexedContents,
        _: &mut WorkerReply<D::Batch, ()>,
    ) -> bool {
        true
    }

    fn fill_info(contents: &mut IndexedContents, info: &mut BatchInfo) {
        info.items = std::mem::take(&mut contents.items);
        info.valid = contents.valid;
    }

    fn locate_failure(contents: &IndexedContents, note: u64) -> Option<FailedSample> {
        let nth = usize::try_from(note).ok()?.checked_sub(1)?;
        let item = *contents.items.get(nth)?;
        Some(FailedSample { item, shard: None, reading: false })
    }

    fn describe(dataset: &D, failed: &FailedSample) -> Option<String> {
        dataset.describe(failed.item.index)
    }

    fn skip_sample(
        _: &Plan,
        _: &mut IndexedCursor,
        contents: &mut IndexedContents,
        failed: &FailedSample,
    ) -> AfterSkip {
        let Some(nth) = contents.items.iter().position(|item| *item == failed.item) else {
            return AfterSkip::Impossible;
        };
        contents.items.remove(nth);
        contents.valid -= usize::from(nth < contents.valid);
        if contents.items.is_empty() { AfterSkip::Empty } else { AfterSkip::Retry }
    }

    fn record_loss(_: &Plan, _: &mut IndexedCursor, _: &mut IndexedContents, _: Option<&FailedSample>) {}

    fn record_delivery(
        cursor: &mut IndexedCursor,
        slot: &mut BatchSlot<Self>,
        front: Option<&BatchSlot<Self>>,
    ) {
        let first = front.map_or(cursor.next, |slot| (slot.epoch, slot.number));
        let next = cursor.delivered.add((slot.epoch, slot.number), first);
        if front.is_none() {
            // Earlier deliveries are removed from the set, and must not be planned again.
            cursor.next = next;
        }
    }

    fn begins_turn(cursor: &IndexedCursor) -> bool {
        cursor.next.1 == 0 && cursor.delivered.out_of_order(cursor.next).is_empty()
    }

    fn next(cursor: &IndexedCursor) -> (u64, u64) {
        cursor.next
    }

    fn position(cursor: &IndexedCursor, front: Option<&BatchSlot<Self>>) -> IndexedPosition {
        let window = front.map_or_else(|| cursor.order.window(cursor.next.1), |slot| slot.contents.window);
        let front = front.map(|slot| (slot.epoch, slot.number));
        let next = cursor.delivered.first_from(front.unwrap_or(cursor.next));
        IndexedPosition { next, out_of_order: cursor.delivered.out_of_order(next), window }
    }

    fn is_too_far_ahead(cursor: &IndexedCursor, first: &BatchSlot<Self>) -> bool {
        first.epoch == cursor.next.0 && cursor.next.1.saturating_sub(first.number) >= AHEAD
    }

    fn take_back(contents: &mut IndexedContents, info: &mut BatchInfo) -> bool {
        contents.items = std::mem::take(&mut info.items);
        true
    }

    fn remaining(
        _: &Plan,
        cursor: &IndexedCursor,
        window: &VecDeque<BatchSlot<Self>>,
        last: u64,
    ) -> Option<usize> {
        let all = cursor.batches().filter(|_| cursor.next.0 >= last)?;
        usize::try_from(all.saturating_sub(cursor.next.1)).ok()?.checked_add(window.len())
    }
}
