//! Batches of datasets with indices: the plan says which samples are in each.

use std::collections::VecDeque;
use std::marker::PhantomData;

use mp_core::user_code::catch_panic;
use mp_spawn::CallFailure;

use crate::error::failure::{Source, raised};
use crate::indexed::given::Given;
use crate::plan::{EpochOrder, Plan, PlanError, PlannedBatch, WindowStart};
use crate::trainer::kind::{Failed, Kind, Planned, Slot, Without};
use crate::worker::{Made, Orders, Task, Worker};
use crate::{AnyResult, BatchInfo, Dataset, Item};

/// Most batches that may be given before an earlier one, if order does not matter: a state names them.
const AHEAD: u64 = 1024;

/// Datasets with indices.
pub(crate) struct Indexed<D>(PhantomData<fn() -> D>);

pub(crate) struct Cursor {
    pub(crate) order: EpochOrder,
    /// Epoch and number of the batch that is planned next.
    pub(crate) next: (u64, u64),
    pub(crate) given: Given,
}

impl Cursor {
    pub(crate) fn new(plan: &Plan, next: (u64, u64), beyond: &[u64]) -> Cursor {
        Cursor::of(plan.epoch(next.0), next.1, beyond)
    }

    /// From a batch of an order on.
    pub(crate) fn of(order: EpochOrder, next: u64, beyond: &[u64]) -> Cursor {
        let epoch = order.epoch();
        Cursor { order, next: (epoch, next), given: Given::new(epoch, beyond) }
    }

    /// The batch after the next one is next; false if there is no such number.
    fn step(&mut self) -> bool {
        let next = self.next.1.checked_add(1);
        self.next.1 = next.unwrap_or(u64::MAX);
        next.is_some()
    }

    /// The next batch. If it can't be planned: why, and whether there may be others behind it. Samplers of
    /// the user run here.
    fn planned(&self) -> Result<Option<PlannedBatch>, (Source, bool)> {
        let number = self.next.1;
        let more = || self.batches().is_some_and(|all| number < all.saturating_sub(1));
        match CallFailure::catch(|| self.order.batch(number)) {
            Ok(Ok(planned)) => Ok(planned),
            Ok(Err(error)) => {
                let goes_on = matches!(error, PlanError::IndexOutOfRange { .. });
                Err((Box::new(error), goes_on && more()))
            }
            Err(panic) => Err((raised(*panic), more())),
        }
    }

    /// Returns the number of batches in the epoch, if that is known. A sampler of the user's that panics says
    /// so at the batch that it is asked for.
    pub(crate) fn batches(&self) -> Option<u64> {
        catch_panic(|| self.order.batches()).flatten()
    }

    /// No epoch has a batch, so that there is no end to looking for one.
    fn is_always_empty(&self) -> bool {
        self.order.is_the_same_length() && self.order.batches() == Some(0)
    }
}

/// Most empty epochs in a row, as a sampler of the user's may report them.
const MOST_EMPTY: u32 = 1000;

/// The samples of a batch, and how many of them count.
#[derive(Default)]
pub(crate) struct Part {
    items: Vec<Item>,
    valid: usize,
    window: Option<WindowStart>,
}

/// The first batch that was not given, and those behind it that were; and in which window of the order it is,
/// where that matters.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) next: (u64, u64),
    pub(crate) beyond: Vec<u64>,
    pub(crate) window: Option<WindowStart>,
}

impl<D: Dataset> Kind for Indexed<D> {
    type Dataset = D;
    type Batch = D::Batch;
    type Plan = Plan;
    type Sent = ();
    type Worker = Worker<D>;
    type Task = Task;
    type After = ();
    type Cursor = Cursor;
    type Part = Part;
    type Place = Place;

    fn begin(orders: Orders<D, ()>) -> AnyResult<Worker<D>> {
        Worker::begin(orders)
    }

    fn sent(plan: &Plan) -> (u64, ()) {
        (plan.seed(), ())
    }

    fn plan(plan: &Plan, cursor: &mut Cursor, _: &VecDeque<Slot<Self>>, last: u64) -> Planned<Part> {
        let mut empty = 0;
        loop {
            let (epoch, number) = cursor.next;
            if cursor.given.has(cursor.next) {
                if !cursor.step() {
                    return Planned::Over;
                }
                continue;
            }
            let (source, goes_on) = match cursor.planned() {
                Ok(Some(PlannedBatch { number, items, valid })) => {
                    cursor.step();
                    let part = Part { items, valid, window: cursor.order.window(number) };
                    return Planned::Batch { epoch, turn: 0, number, part, waits: false };
                }
                Ok(None) if epoch < last && (number > 0 || !cursor.is_always_empty()) => {
                    empty += u32::from(number == 0);
                    if empty == MOST_EMPTY {
                        let source =
                            format!("{MOST_EMPTY} epochs in a row have no batch: the sampler draws nothing");
                        let (part, source) = (Part::default(), source.into());
                        return Planned::Broken { epoch, number, part, source, goes_on: false };
                    }
                    cursor.next = (epoch + 1, 0);
                    cursor.order = plan.epoch(epoch + 1);
                    continue;
                }
                Ok(None) => return Planned::Over,
                Err(why) => why,
            };
            let goes_on = cursor.step() && goes_on;
            return Planned::Broken { epoch, number, part: Part::default(), source, goes_on };
        }
    }

    fn task(_: &Cursor, slot: &Slot<Self>) -> Task {
        Task::new(slot.epoch, slot.threads, None, &slot.part.items)
    }

    fn lane(_: &Part) -> Option<u64> {
        None
    }

    fn arrived(_: &mut Cursor, _: &mut Part, _: &mut Made<D::Batch, ()>) -> bool {
        true
    }

    fn fill_in(part: &mut Part, info: &mut BatchInfo) {
        info.items = std::mem::take(&mut part.items);
        info.valid = part.valid;
    }

    fn failed(part: &Part, note: u64) -> Option<Failed> {
        let nth = usize::try_from(note).ok()?.checked_sub(1)?;
        let item = *part.items.get(nth)?;
        Some(Failed { item, shard: None, reading: false })
    }

    fn describe(dataset: &D, failed: &Failed) -> Option<String> {
        dataset.describe(failed.item.index)
    }

    fn without(_: &Plan, _: &mut Cursor, part: &mut Part, failed: &Failed) -> Without {
        let Some(nth) = part.items.iter().position(|item| *item == failed.item) else {
            return Without::Impossible;
        };
        part.items.remove(nth);
        part.valid -= usize::from(nth < part.valid);
        if part.items.is_empty() { Without::Empty } else { Without::Again }
    }

    fn lost(_: &Plan, _: &mut Cursor, _: &mut Part, _: Option<&Failed>) {}

    fn given(cursor: &mut Cursor, slot: &mut Slot<Self>, front: Option<&Slot<Self>>) {
        let first = front.map_or(cursor.next, |slot| (slot.epoch, slot.number));
        let next = cursor.given.add((slot.epoch, slot.number), first);
        if front.is_none() {
            // What was given before it is forgotten: it must not be planned again.
            cursor.next = next;
        }
    }

    fn begins_a_turn(cursor: &Cursor) -> bool {
        cursor.next.1 == 0 && cursor.given.beyond(cursor.next).is_empty()
    }

    fn next(cursor: &Cursor) -> (u64, u64) {
        cursor.next
    }

    fn place(cursor: &Cursor, front: Option<&Slot<Self>>) -> Place {
        let window = front.map_or_else(|| cursor.order.window(cursor.next.1), |slot| slot.part.window);
        let front = front.map(|slot| (slot.epoch, slot.number));
        let next = cursor.given.first_from(front.unwrap_or(cursor.next));
        Place { next, beyond: cursor.given.beyond(next), window }
    }

    fn is_far(cursor: &Cursor, first: &Slot<Self>) -> bool {
        first.epoch == cursor.next.0 && cursor.next.1.saturating_sub(first.number) >= AHEAD
    }

    fn take_back(part: &mut Part, info: &mut BatchInfo) -> bool {
        part.items = std::mem::take(&mut info.items);
        true
    }

    fn left(_: &Plan, cursor: &Cursor, window: &VecDeque<Slot<Self>>, last: u64) -> Option<usize> {
        let all = cursor.batches().filter(|_| cursor.next.0 >= last)?;
        usize::try_from(all.saturating_sub(cursor.next.1)).ok()?.checked_add(window.len())
    }
}
