//! The trainer's side: which batches are on their way, and in which order they are given.
//!
//! A batch is a [`BatchSlot`] of the window from its planning until it is given; its states are in a table
//! there. The window is in the order of the plan. The state of a trainer is the first slot, and what was
//! given behind it. So what is prefetched is no contents of it.
//!
//! What comes of the batches that were sent: `outcomes.rs`. What is sent, and when: `dispatch.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_pool::TaskStream;

use crate::error::failure::BatchFailure;
use crate::error::text::FORKED;
use crate::loader::report_schedule::ReportSchedule;
use crate::loader::shared::{LoaderShared, Workers};
use crate::loader::source::{BatchOf, BatchSlot, BatchSlotState, BatchSource, HISTORY, ReplyOf, TaskOf};
use crate::{Batch, LoadError, LoadedBatch, NotReadyError};

/// Item of an iterator of batches: a batch, an error in its place, or the end.
pub type NextBatch<B> = Option<Result<LoadedBatch<B>, LoadError>>;

/// The batches of an epoch, or of several.
pub(crate) struct Prefetch<K: BatchSource> {
    pub(crate) inner: Arc<LoaderShared<K>>,
    /// `None` without workers.
    pub(crate) stream: Option<TaskStream<TaskOf<K>, ReplyOf<K>>>,
    pub(crate) cursor: K::Cursor,
    /// The last epoch that is planned.
    pub(crate) last: u64,
    /// Nothing more is planned.
    pub(crate) planning_ended: bool,
    pub(crate) slots: VecDeque<BatchSlot<K>>,
    /// The batches that were given, and where the trainer was after that.
    history: VecDeque<(u64, K::Position)>,
    pub(crate) skipped_batches: Vec<LoadError>,
    pub(crate) break_state: BreakState,
    turn: CurrentTurn,
    /// Number of batches that were left out since the last one that was given.
    pub(crate) skipped_since: u64,
    /// Up to when the trainer's time is counted; `None` before it has asked for a batch.
    counted: Option<Instant>,
    /// Time for which it has waited since then without a batch.
    fruitless_wait: Duration,
    /// When its wait is reported, if the calls since it was given one have not been answered: they are one
    /// wait.
    unanswered: Option<ReportSchedule>,
}

/// Turn (epoch, or pass of an epoch) whose batches are given, and whether it may end without one.
///
/// With errors that are left out, a loader without an end could otherwise look for a batch for ever.
struct CurrentTurn {
    /// `None` before the first slot.
    of: Option<(u64, u64)>,
    /// `true` if the trainer was given something of it, now or before its state was saved.
    delivered: bool,
}

/// State of a loader that may be unable to make batches.
pub(crate) enum BreakState {
    Working,
    /// No; and why was not given yet.
    Failed(Box<LoadError>),
    /// No.
    Reported,
}

impl<K: BatchSource> Prefetch<K> {
    /// From the cursor on to the end of epoch `last`; none if that is `None`.
    pub(crate) fn new(inner: Arc<LoaderShared<K>>, cursor: K::Cursor, last: Option<u64>) -> Self {
        let stream = match &inner.workers {
            Workers::Pool { call, .. } if !inner.is_forked() => Some(call.stream()),
            _ => None,
        };
        let mut window = Prefetch {
            stream,
            last: last.unwrap_or(0),
            planning_ended: last.is_none(),
            slots: VecDeque::new(),
            history: VecDeque::new(),
            skipped_batches: Vec::new(),
            break_state: BreakState::Working,
            turn: CurrentTurn { of: None, delivered: !K::begins_turn(&cursor) },
            skipped_since: 0,
            counted: None,
            fruitless_wait: Duration::ZERO,
            unanswered: None,
            cursor,
            inner,
        };
        if !window.inner.is_forked() {
            window.fill();
        }
        window
    }

    /// In a copy of the process: one error, and the end.
    fn next_in_fork(&mut self) -> NextBatch<BatchOf<K>> {
        if matches!(std::mem::replace(&mut self.break_state, BreakState::Reported), BreakState::Reported) {
            return None;
        }
        self.planning_ended = true;
        let (epoch, batch) = match self.slots.front() {
            Some(slot) => (slot.epoch, slot.number),
            None => K::next(&self.cursor),
        };
        let (item, shard, description, worker) = (None, None, None, None);
        Some(Err(LoadError {
            epoch,
            batch,
            item,
            shard,
            description,
            worker,
            attempts: 0,
            source: FORKED.into(),
        }))
    }

    pub(crate) fn inner(&self) -> &LoaderShared<K> {
        &self.inner
    }

    /// Returns the number of batches that are planned and not given.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn place(&self) -> K::Position {
        K::position(&self.cursor, self.slots.front())
    }

    pub(crate) fn place_after(&self, number: u64) -> Option<&K::Position> {
        self.history.iter().rev().find(|given| given.0 == number).map(|given| &given.1)
    }

    pub(crate) fn skipped_batches(&self) -> &[LoadError] {
        &self.skipped_batches
    }

    pub(crate) fn next_timeout(&mut self, timeout: Duration) -> Result<NextBatch<BatchOf<K>>, NotReadyError> {
        self.next_until(Instant::now().checked_add(timeout))
    }

    pub(crate) fn next(&mut self) -> NextBatch<BatchOf<K>> {
        // Without a time it is never late.
        self.next_until(None).ok().flatten()
    }

    pub(crate) fn size_hint(&self) -> (usize, Option<usize>) {
        if matches!(self.break_state, BreakState::Reported) {
            return (0, Some(0));
        }
        let left = || K::remaining(&self.inner.plan, &self.cursor, &self.slots, self.last);
        (0, if self.planning_ended { Some(self.slots.len()) } else { left() })
    }

    fn next_until(&mut self, until: Option<Instant>) -> Result<NextBatch<BatchOf<K>>, NotReadyError> {
        if self.inner.is_forked() {
            return Ok(self.next_in_fork());
        }
        let since = Instant::now();
        let before = self.unanswered.take();
        let mut reports = before.unwrap_or_else(|| ReportSchedule::from(since));
        let mut counted = *self.counted.get_or_insert(since);
        self.receive_ready();
        let mut late = false;
        loop {
            if matches!(self.break_state, BreakState::Reported) {
                return Ok(None);
            }
            self.fill();
            if let Some(batch) = self.deliver() {
                let ready = self.slots.iter().filter(|slot| slot.is_done()).count();
                let mut meter = self.inner.meter();
                meter.waited += std::mem::take(&mut self.fruitless_wait);
                meter.record_delivery((since, Instant::now()), &mut counted, (ready, self.slots.len()));
                drop(meter);
                self.counted = Some(counted);
                return Ok(Some(batch));
            }
            if let BreakState::Failed(error) = std::mem::replace(&mut self.break_state, BreakState::Working) {
                self.break_state = BreakState::Reported;
                self.inner.meter().failed += 1;
                return Ok(Some(Err(*error)));
            }
            if self.slots.is_empty() {
                if self.planning_ended {
                    return Ok(None);
                }
                // The last one was left out.
                continue;
            }
            if !self.slots.iter().any(BatchSlot::is_sent) {
                // There was no memory for any of them.
                self.send_out_of_memory();
                continue;
            }
            if late {
                self.fruitless_wait += since.elapsed();
                self.unanswered = Some(reports);
                return Err(self.not_ready());
            }
            self.wait(until, &reports);
            // Batches that are left out must not keep the call beyond its time.
            late = until.is_some_and(|until| until <= Instant::now());
            reports.if_due(|waited| self.report(waited));
        }
    }

    /// Waits for an outcome, until the wait is over or has to be reported.
    fn wait(&mut self, until: Option<Instant>, reports: &ReportSchedule) {
        let Some(stream) = &self.stream else {
            self.make_in_process();
            return;
        };
        let soon = [until, reports.until()].into_iter().flatten().min();
        let outcome = match soon {
            None => stream.next(),
            Some(soon) => match stream.next_timeout(soon.saturating_duration_since(Instant::now())) {
                Ok(outcome) => outcome,
                Err(_) => return,
            },
        };
        match outcome {
            Some((ticket, result)) => self.receive_reply(ticket.number(), result.map_err(BatchFailure::from)),
            None => self.fail_all(BatchFailure::fatal(FORKED)),
        }
    }

    /// Takes what is there.
    fn receive_ready(&mut self) {
        while let Some(Ok(Some((ticket, result)))) = self.stream.as_ref().map(TaskStream::try_next) {
            self.receive_reply(ticket.number(), result.map_err(BatchFailure::from));
        }
    }

    /// Makes the batch that was sent, in this thread.
    fn make_in_process(&mut self) {
        let Workers::InProcess(worker) = &self.inner.workers else { return };
        let Some(slot) = self.slots.iter().find(|slot| slot.is_sent()) else { return };
        let task = K::task(&self.cursor, slot);
        let made = worker.make(|| self.inner.worker_init(), &task);
        self.receive_reply(0, made);
    }

    /// The next batch that may be given, if there is one.
    fn deliver(&mut self) -> NextBatch<BatchOf<K>> {
        loop {
            let turn = self.slots.front().map(|slot| (slot.epoch, slot.turn))?;
            if self.turn.of != Some(turn) {
                if let (Some(ended), false) = (self.turn.of, self.turn.delivered) {
                    let error = self.no_batch_error(self.slots.front()?, Some(ended));
                    (self.planning_ended, self.break_state) = (true, BreakState::Failed(Box::new(error)));
                    return None;
                }
                let delivered = self.turn.of.is_none() && self.turn.delivered;
                self.turn = CurrentTurn { of: Some(turn), delivered };
            }
            let settings = &self.inner.settings;
            let may = |slot: &BatchSlot<K>| {
                let of_it = (slot.epoch, slot.turn) == turn;
                of_it && slot.is_done()
            };
            let ahead = if settings.in_order { 1 } else { self.slots.len() };
            let i = self.slots.iter().take(ahead).position(may)?;
            let mut slot = self.slots.remove(i)?;
            K::record_delivery(&mut self.cursor, &mut slot, self.slots.front());
            self.send_out_of_memory();
            self.fill();
            let BatchSlotState::Ready(result) = slot.state else {
                let mut meter = self.inner.meter();
                meter.skipped_batches += 1;
                meter.skipped_samples += slot.skipped.len() as u64;
                drop(meter);
                self.skipped_since += 1;
                continue;
            };
            (self.turn.delivered, self.skipped_since) = (true, 0);
            if self.history.len() >= HISTORY {
                self.history.pop_front();
            }
            self.history.push_back((slot.number, self.place()));
            let mut meter = self.inner.meter();
            match &*result {
                Ok(batch) => {
                    meter.batches += 1;
                    meter.samples += batch.info.items.len() as u64;
                    meter.skipped_samples += batch.info.skipped.len() as u64;
                    meter.bytes += batch.bytes() as u64;
                }
                Err(_) => meter.failed += 1,
            }
            drop(meter);
            return Some(*result);
        }
    }
}
