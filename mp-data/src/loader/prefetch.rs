//! Batches in flight, and the order of their delivery.
//!
//! A batch is a [`BatchSlot`] of the window from its planning to its delivery. The documentation of
//! [`BatchSlot`] has a table of its states. The window is in the order of the plan. The saved state of an
//! iterator consists of the first slot and of the batches that were delivered after it, so the state has no
//! prefetched batches.
//!
//! `outcomes.rs` handles the results of batches that were sent.

use std::collections::VecDeque;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::Wait;
use mp_core::waits::{self, Place, SlicedWait};
use mp_pool::TaskStream;

use crate::error::failure::BatchFailure;
use crate::error::text::FORKED;
use crate::loader::shared::{LoaderShared, Workers};
use crate::loader::source::{
    BatchOf, BatchSlot, BatchSlotState, BatchSource, HISTORY, PlanStep, ReplyOf, TaskOf,
};
use crate::settings::OnError;
use crate::{Batch, LoadError, LoadedBatch, NotReadyError};

/// Item of an iterator of batches: a batch, an error in its place, or the end.
pub type NextBatch<B> = Option<Result<LoadedBatch<B>, LoadError>>;

/// Iterator over the batches of one or several epochs.
pub(crate) struct Prefetch<K: BatchSource> {
    pub(crate) inner: Arc<LoaderShared<K>>,
    /// Stream of tasks for the workers. `None` in a loader without workers.
    pub(crate) stream: Option<TaskStream<TaskOf<K>, ReplyOf<K>>>,
    pub(crate) source: K,
    /// Last epoch of the iterator.
    pub(crate) last: u64,
    /// `true` if all batches are planned.
    pub(crate) planning_ended: bool,
    pub(crate) slots: VecDeque<BatchSlot<K>>,
    /// Numbers of the last delivered batches, each with the iterator's position after the batch.
    history: VecDeque<(u64, K::Position)>,
    pub(crate) skipped_batches: Vec<LoadError>,
    pub(crate) break_state: BreakState,
    turn: CurrentTurn,
    /// Number of skipped batches since the last delivery.
    pub(crate) skipped_since: u64,
    /// Time of the previous delivery. The metrics count iteration up to this time. `None` before the first
    /// call.
    counted: Option<Instant>,
    /// Total time of the calls since the previous delivery, which have all returned without a batch.
    fruitless_wait: Duration,
    /// Schedule of the reports of a wait, after a call without a batch. All calls between two deliveries
    /// count as one wait.
    unanswered: Option<ReportSchedule>,
}

/// Turn whose batches are being delivered. A turn is an epoch, or one pass over the shards if an epoch has
/// several.
///
/// If all batches of a turn were skipped and another turn follows, the iterator ends with an error. Otherwise
/// an endless loader could search for a batch forever.
struct CurrentTurn {
    /// Epoch and pass of this turn. `None` before the first batch.
    of: Option<(u64, u64)>,
    /// `true` if a batch of the turn was delivered, by this iterator or before the saved state from which the
    /// iterator began.
    delivered: bool,
}

/// State of a loader that may be unable to make batches.
pub(crate) enum BreakState {
    Working,
    /// The loader can't make batches, and the error was not returned yet.
    Failed(Box<LoadError>),
    /// The loader can't make batches, and the error was returned.
    Reported,
}

impl<K: BatchSource> Prefetch<K> {
    /// Iterates from the position of the source to the end of epoch `last`. If `last` is `None`, the iterator
    /// is empty.
    pub(crate) fn new(inner: Arc<LoaderShared<K>>, source: K, last: Option<u64>) -> Self {
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
            turn: CurrentTurn { of: None, delivered: !source.begins_turn() },
            skipped_since: 0,
            counted: None,
            fruitless_wait: Duration::ZERO,
            unanswered: None,
            source,
            inner,
        };
        if !window.inner.is_forked() {
            window.fill();
        }
        window
    }

    /// Returns the next item in a forked copy of the process: first one error, and then the end.
    fn next_in_fork(&mut self) -> NextBatch<BatchOf<K>> {
        if matches!(std::mem::replace(&mut self.break_state, BreakState::Reported), BreakState::Reported) {
            return None;
        }
        self.planning_ended = true;
        let (epoch, batch) = match self.slots.front() {
            Some(slot) => (slot.epoch, slot.number),
            None => self.source.next(),
        };
        Some(Err(LoadError::new(epoch, batch, 0, FORKED.into())))
    }

    pub(crate) fn place(&self) -> K::Position {
        self.source.position(self.slots.front())
    }

    pub(crate) fn place_after(&self, number: u64) -> Option<&K::Position> {
        self.history.iter().rev().find(|given| given.0 == number).map(|given| &given.1)
    }

    #[track_caller]
    pub(crate) fn next_timeout(&mut self, timeout: Duration) -> Result<NextBatch<BatchOf<K>>, NotReadyError> {
        self.next_until(Instant::now().checked_add(timeout))
    }

    #[track_caller]
    pub(crate) fn next(&mut self) -> NextBatch<BatchOf<K>> {
        // Without a deadline the call never times out.
        self.next_until(None).ok().flatten()
    }

    pub(crate) fn size_hint(&self) -> (usize, Option<usize>) {
        if matches!(self.break_state, BreakState::Reported) {
            return (0, Some(0));
        }
        let left = || self.source.remaining(self.slots.len(), self.last);
        (0, if self.planning_ended { Some(self.slots.len()) } else { left() })
    }

    #[track_caller]
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
        let caller = Location::caller();
        // Readers of the program's state see one wait, although this thread wakes for each report and each
        // outcome.
        let mut shown: Option<SlicedWait> = None;
        loop {
            if matches!(self.break_state, BreakState::Reported) {
                return Ok(None);
            }
            self.fill();
            if let Some(batch) = self.deliver() {
                let ready = self.slots.iter().filter(|slot| slot.is_done()).count();
                let mut meter = self.inner.meter();
                meter.counts.waited += std::mem::take(&mut self.fruitless_wait);
                meter.record_delivery((since, Instant::now()), &mut counted, (ready, self.slots.len()));
                drop(meter);
                self.counted = Some(counted);
                return Ok(Some(batch));
            }
            if let BreakState::Failed(error) = std::mem::replace(&mut self.break_state, BreakState::Working) {
                self.break_state = BreakState::Reported;
                self.inner.meter().counts.failed += 1;
                return Ok(Some(Err(*error)));
            }
            if self.slots.is_empty() {
                if self.planning_ended {
                    return Ok(None);
                }
                // The last batch was skipped.
                continue;
            }
            if !self.slots.iter().any(BatchSlot::is_sent) {
                // Shared memory was exhausted for all batches in flight.
                self.send_out_of_memory();
                continue;
            }
            if late {
                self.fruitless_wait += since.elapsed();
                self.unanswered = Some(reports);
                return Err(self.not_ready());
            }
            let shown = shown.get_or_insert_with(|| {
                SlicedWait::new(since, until.map_or(Wait::Forever, Wait::Until), Place::of(caller))
            });
            self.wait(until, &reports, shown);
            // Skipped batches must not delay the call beyond its deadline.
            late = until.is_some_and(|until| until <= Instant::now());
            reports.if_due(|waited| self.report(waited));
        }
    }

    /// Waits for the outcome of a task, at most until `until` or the next report of the wait. Without
    /// workers, makes the batch in this thread.
    fn wait(&mut self, until: Option<Instant>, reports: &ReportSchedule, shown: &mut SlicedWait) {
        let Some(stream) = &self.stream else {
            self.make_in_process();
            return;
        };
        let soon = [until, reports.until()].into_iter().flatten().min();
        let outcome = match soon {
            None => shown.run(|| stream.next()),
            Some(soon) => {
                match shown.run(|| stream.next_timeout(soon.saturating_duration_since(Instant::now()))) {
                    Ok(outcome) => outcome,
                    Err(_) => return,
                }
            }
        };
        match outcome {
            Some((ticket, result)) => self.receive_reply(ticket.number(), result.map_err(BatchFailure::from)),
            None => self.fail_all(BatchFailure::fatal(FORKED)),
        }
    }

    /// Receives all outcomes that have arrived, without waiting.
    fn receive_ready(&mut self) {
        while let Some(Ok(Some((ticket, result)))) = self.stream.as_ref().map(TaskStream::try_next) {
            self.receive_reply(ticket.number(), result.map_err(BatchFailure::from));
        }
    }

    /// Makes the next batch in this thread, in a loader without workers.
    fn make_in_process(&mut self) {
        let Workers::InProcess(worker) = &self.inner.workers else { return };
        let Some(slot) = self.slots.iter().find(|slot| slot.is_sent()) else { return };
        let task = self.source.task(slot);
        let made = worker.make(|| self.inner.worker_init(), &task);
        self.receive_reply(0, made);
    }

    /// Delivers the next batch, if one is ready.
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
            self.source.record_delivery(&mut slot, self.slots.front());
            self.send_out_of_memory();
            self.fill();
            let BatchSlotState::Ready(result) = slot.state else {
                {
                    let counts = &mut self.inner.meter().counts;
                    counts.skipped_batches += 1;
                    counts.skipped_samples += slot.skipped.len() as u64;
                }
                self.skipped_since += 1;
                if K::IS_ENDLESS && self.skipped_since == HISTORY as u64 {
                    let mut reason = format!("{HISTORY} batches in a row were left out");
                    if let Some(last) = self.skipped_batches.last() {
                        reason += &format!("; the last one: {last}");
                    }
                    self.fail_all(BatchFailure::new(reason));
                    return None;
                }
                continue;
            };
            (self.turn.delivered, self.skipped_since) = (true, 0);
            if self.history.len() >= HISTORY {
                self.history.pop_front();
            }
            self.history.push_back((slot.number, self.place()));
            let counts = &mut self.inner.meter().counts;
            match &*result {
                Ok(batch) => {
                    counts.batches += 1;
                    counts.samples += batch.info.items.len() as u64;
                    counts.skipped_samples += batch.info.skipped.len() as u64;
                    counts.bytes += batch.bytes() as u64;
                }
                Err(_) => counts.failed += 1,
            }
            return Some(*result);
        }
    }
}

/// Schedule of the reports of a wait.
pub(crate) struct ReportSchedule {
    since: Instant,
    until: Option<Instant>,
}

impl ReportSchedule {
    pub(crate) fn from(since: Instant) -> ReportSchedule {
        ReportSchedule { since, until: waits::reported_after().and_then(|after| since.checked_add(after)) }
    }

    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Reports the wait if a report is due. The next report is due when the wait is twice as long.
    pub(crate) fn if_due(&mut self, report: impl FnOnce(Duration)) {
        let now = Instant::now();
        if self.until.is_some_and(|until| until <= now) {
            let waited = now.saturating_duration_since(self.since);
            report(waited);
            self.until = now.checked_add(waited);
        }
    }
}

impl<K: BatchSource> Prefetch<K> {
    /// Plans and sends batches until the maximum number of batches is in flight.
    pub(crate) fn fill(&mut self) {
        let threads = self.inner.settings.threads;
        while !self.planning_ended && self.has_room() {
            match self.source.plan(&self.slots, self.last) {
                PlanStep::Batch { epoch, turn, number, contents, waits } => {
                    let mut slot = BatchSlot::new(epoch, turn, number, contents, threads);
                    if waits {
                        slot.state = BatchSlotState::Waiting;
                    }
                    self.slots.push_back(slot);
                    if !waits {
                        self.send(self.slots.len() - 1);
                    }
                }
                PlanStep::Blocked => return,
                PlanStep::End => self.planning_ended = true,
                PlanStep::NoBatch { epoch, number, contents } => {
                    self.planning_ended = true;
                    let mut slot = BatchSlot::new(epoch, 0, number, contents, threads);
                    let error = self.no_batch_error(&slot, None);
                    slot.state = BatchSlotState::Ready(Box::new(Err(error)));
                    self.slots.push_back(slot);
                }
                PlanStep::Failed { epoch, number, contents, source, continues } => {
                    self.planning_ended |= !continues;
                    let mut slot = BatchSlot::new(epoch, 0, number, contents, threads);
                    let failure = BatchFailure { attempts: 0, ..BatchFailure::new(source) };
                    let error = self.error(&slot, None, failure);
                    slot.state = BatchSlotState::Ready(Box::new(Err(error)));
                    self.slots.push_back(slot);
                    if self.inner.settings.on_error == OnError::SkipBatch {
                        self.skip_batch(self.slots.len() - 1);
                    }
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        let settings = &self.inner.settings;
        let in_flight = self.slots.len();
        let Some(first) = self.slots.front() else { return true };
        let of_a_worker = settings.prefetch.unwrap_or_else(|| self.inner.meter().prefetch());
        if in_flight >= self.inner.workers().saturating_mul(of_a_worker)
            || self.slots.iter().any(BatchSlot::is_out_of_memory)
        {
            return false;
        }
        if !settings.in_order && self.source.is_too_far_ahead(first) {
            return false;
        }
        let Some(budget) = settings.budget else { return true };
        // The size of batches is unknown before the first one has arrived.
        let most = self.inner.meter().most_bytes;
        most.is_some_and(|most| most.saturating_mul(in_flight + 1) <= budget)
    }

    pub(crate) fn send_out_of_memory(&mut self) {
        if let Some(i) = self.slots.iter().position(BatchSlot::is_out_of_memory) {
            self.send(i);
        }
    }

    pub(crate) fn send(&mut self, i: usize) {
        let slot = &mut self.slots[i];
        let Some(stream) = &self.stream else {
            slot.state = BatchSlotState::Sent(0);
            return;
        };
        let task = self.source.task(slot);
        let pushed = match K::lane(&slot.contents) {
            Some(lane) => stream.push_to(lane, task),
            None => stream.push(task),
        };
        match pushed {
            Ok(ticket) => slot.state = BatchSlotState::Sent(ticket.number()),
            Err(error) => self.fail_all(BatchFailure::fatal(error.to_string())),
        }
    }
}
