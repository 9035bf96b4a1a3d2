//! Batches of datasets with indices. The plan assigns samples to batches.

use std::collections::{BTreeSet, VecDeque};
use std::marker::PhantomData;

use mp_core::quantity;
use mp_core::user_code::catch_panic;
use mp_spawn::CallFailure;

use crate::error::failure::{DynError, panic_error};
use crate::indexed::worker::{IndexedTask, IndexedWorker};
use crate::loader::source::{AfterSkip, BatchSlot, BatchSource, FailedSample, PlanStep};
use crate::plan::{EpochOrder, Plan, PlanError, PlannedBatch, WindowStart};
use crate::worker::batch_maker::WorkerReply;
use crate::{BatchInfo, Dataset, Item};

/// Maximum number of batches that are delivered before an earlier batch, with `in_order(false)`. A state
/// lists these batches.
const AHEAD: u64 = 1024;

/// Batches of a dataset with indices.
pub(crate) struct IndexedSource<D> {
    plan: Plan,
    pub(crate) order: EpochOrder,
    /// Epoch and number of the next batch to plan.
    pub(crate) next: (u64, u64),
    pub(crate) delivered: DeliveredSet,
    dataset: PhantomData<fn() -> D>,
}

impl<D> IndexedSource<D> {
    /// Starts at batch `next` of an order.
    pub(crate) fn new(plan: &Plan, order: EpochOrder, next: u64, out_of_order: &[u64]) -> Self {
        let epoch = order.epoch();
        let (plan, delivered) = (plan.clone(), DeliveredSet::new(epoch, out_of_order));
        IndexedSource { plan, order, next: (epoch, next), delivered, dataset: PhantomData }
    }

    /// Advances to the next batch. Returns `false` if the number overflows.
    fn step(&mut self) -> bool {
        let next = self.next.1.checked_add(1);
        self.next.1 = next.unwrap_or(u64::MAX);
        next.is_some()
    }

    /// Returns the next batch. If it can't be planned, returns the cause, and `true` if later batches can be
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

    /// Returns `true` if no epoch has a batch, so that a search for the next batch would not end.
    fn is_always_empty(&self) -> bool {
        self.order.has_fixed_length() && self.order.batches() == Some(0)
    }
}

/// Maximum number of empty epochs in a row that a sampler of the user may return.
const MOST_EMPTY: u32 = 1000;

/// Samples of a batch, and the number of valid samples.
#[derive(Default)]
pub(crate) struct IndexedContents {
    pub(super) items: Vec<Item>,
    valid: usize,
    window: Option<WindowStart>,
}

/// Position of an iterator: the first undelivered batch, the later batches that were already delivered, and,
/// if the order has windows, the window of the first undelivered batch.
#[derive(Clone)]
pub(crate) struct IndexedPosition {
    pub(crate) next: (u64, u64),
    pub(crate) out_of_order: Vec<u64>,
    pub(crate) window: Option<WindowStart>,
}

impl<D: Dataset> BatchSource for IndexedSource<D> {
    type Worker = IndexedWorker<D>;
    type Plan = Plan;
    type Contents = IndexedContents;
    type Position = IndexedPosition;

    fn worker_plan(plan: &Plan) -> (u64, ()) {
        (plan.seed(), ())
    }

    fn kind(plan: &Plan) -> String {
        let dataset = std::any::type_name::<D>();
        format!("a dataset {dataset} of {}, seed {}", quantity(plan.len(), "sample"), plan.seed())
    }

    fn plan(&mut self, _: &VecDeque<BatchSlot<Self>>, last: u64) -> PlanStep<IndexedContents> {
        let mut empty = 0;
        loop {
            let (epoch, number) = self.next;
            if self.delivered.has(self.next) {
                if !self.step() {
                    return PlanStep::End;
                }
                continue;
            }
            let (source, continues) = match self.planned() {
                Ok(Some(PlannedBatch { number, items, valid })) => {
                    self.step();
                    let contents = IndexedContents { items, valid, window: self.order.window(number) };
                    return PlanStep::Batch { epoch, turn: 0, number, contents, waits: false };
                }
                Ok(None) if epoch < last && (number > 0 || !self.is_always_empty()) => {
                    empty += u32::from(number == 0);
                    if empty == MOST_EMPTY {
                        let source =
                            format!("{MOST_EMPTY} epochs in a row have no batch: the sampler draws nothing");
                        let (contents, source) = (IndexedContents::default(), source.into());
                        return PlanStep::Failed { epoch, number, contents, source, continues: false };
                    }
                    self.next = (epoch + 1, 0);
                    self.order = self.plan.epoch(epoch + 1);
                    continue;
                }
                Ok(None) => return PlanStep::End,
                Err(why) => why,
            };
            let continues = self.step() && continues;
            return PlanStep::Failed {
                epoch,
                number,
                contents: IndexedContents::default(),
                source,
                continues,
            };
        }
    }

    fn task(&self, slot: &BatchSlot<Self>) -> IndexedTask {
        IndexedTask::new(slot.epoch, slot.threads, None, &slot.contents.items)
    }

    fn samples(contents: &IndexedContents, _: &WorkerReply<D::Batch, ()>) -> (Vec<Item>, Vec<usize>) {
        (contents.items.clone(), Vec::new())
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

    fn skip_sample(&mut self, contents: &mut IndexedContents, failed: &FailedSample) -> AfterSkip {
        let Some(nth) = contents.items.iter().position(|item| *item == failed.item) else {
            return AfterSkip::Impossible;
        };
        contents.items.remove(nth);
        contents.valid -= usize::from(nth < contents.valid);
        if contents.items.is_empty() { AfterSkip::Empty } else { AfterSkip::Retry }
    }

    fn record_delivery(&mut self, slot: &mut BatchSlot<Self>, front: Option<&BatchSlot<Self>>) {
        let first = front.map_or(self.next, |slot| (slot.epoch, slot.number));
        let next = self.delivered.add((slot.epoch, slot.number), first);
        if front.is_none() {
            // The set no longer has the delivered batches before `next`, so planning must continue at `next`.
            self.next = next;
        }
    }

    fn begins_turn(&self) -> bool {
        self.next.1 == 0 && self.delivered.out_of_order(self.next).is_empty()
    }

    fn next(&self) -> (u64, u64) {
        self.next
    }

    fn position(&self, front: Option<&BatchSlot<Self>>) -> IndexedPosition {
        let window = front.map_or_else(|| self.order.window(self.next.1), |slot| slot.contents.window);
        let front = front.map(|slot| (slot.epoch, slot.number));
        let next = self.delivered.first_from(front.unwrap_or(self.next));
        IndexedPosition { next, out_of_order: self.delivered.out_of_order(next), window }
    }

    fn is_too_far_ahead(&self, first: &BatchSlot<Self>) -> bool {
        first.epoch == self.next.0 && self.next.1.saturating_sub(first.number) >= AHEAD
    }

    fn take_back(contents: &mut IndexedContents, info: &mut BatchInfo) -> bool {
        contents.items = std::mem::take(&mut info.items);
        true
    }

    fn remaining(&self, in_flight: usize, last: u64) -> Option<usize> {
        let all = self.batches().filter(|_| self.next.0 >= last)?;
        usize::try_from(all.saturating_sub(self.next.1)).ok()?.checked_add(in_flight)
    }
}

/// Epoch, and number of a batch in it.
pub(crate) type BatchId = (u64, u64);

/// Batches that were delivered while an earlier batch was in flight.
#[derive(Debug, Default)]
pub(crate) struct DeliveredSet {
    out_of_order: BTreeSet<BatchId>,
}

impl DeliveredSet {
    /// Creates the set from the list in a saved state.
    pub(crate) fn new(epoch: u64, out_of_order: &[u64]) -> DeliveredSet {
        let out_of_order = out_of_order.iter().map(|number| (epoch, *number)).collect();
        DeliveredSet { out_of_order }
    }

    pub(crate) fn has(&self, batch: BatchId) -> bool {
        self.out_of_order.contains(&batch)
    }

    /// Returns the first batch that was not delivered, from `batch` on.
    pub(crate) fn first_from(&self, mut batch: BatchId) -> BatchId {
        while self.has(batch)
            && let Some(next) = batch.1.checked_add(1)
        {
            batch.1 = next;
        }
        batch
    }

    /// Returns the numbers of the delivered batches of the epoch that are not less than `next`.
    pub(crate) fn out_of_order(&self, (epoch, next): BatchId) -> Vec<u64> {
        self.out_of_order.range((epoch, next)..=(epoch, u64::MAX)).map(|given| given.1).collect()
    }

    /// Adds a batch that was delivered or skipped. `first` is the first batch in flight, or the next batch to
    /// plan. Returns the first batch that was not delivered.
    pub(crate) fn add(&mut self, batch: BatchId, first: BatchId) -> BatchId {
        if batch > first || !self.out_of_order.is_empty() {
            self.out_of_order.insert(batch);
        }
        let next = self.first_from(first);
        if !self.out_of_order.is_empty() {
            self.out_of_order = self.out_of_order.split_off(&next);
        }
        next
    }
}
