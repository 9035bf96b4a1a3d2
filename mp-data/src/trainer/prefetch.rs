//! The trainer's side: which batches are on their way, and in which order they are given.
//!
//! A batch is a [`Slot`] of the window from its planning until it is given; its states are in a table there.
//! The window is in the order of the plan. The state of a trainer is the first slot, and what was given
//! behind it. So what is prefetched is no part of it.
//!
//! What comes of the batches that were sent: `outcomes.rs`. What is sent, and when: `dispatch.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_pool::Stream;

use crate::error::failure::Failure;
use crate::error::text::FORKED;
use crate::trainer::inner::{Inner, Workers};
use crate::trainer::kind::{At, HISTORY, Kind, MadeOf, Slot};
use crate::trainer::slow_batch_report::ReportTimes;
use crate::{Batch, LoadError, Loaded, NotReady};

/// Item of an iterator of batches: a batch, an error in its place, or the end.
pub type Next<B> = Option<Result<Loaded<B>, LoadError>>;

/// The batches of an epoch, or of several.
pub(crate) struct Prefetch<K: Kind> {
    pub(crate) inner: Arc<Inner<K>>,
    /// `None` without workers.
    pub(crate) stream: Option<Stream<K::Task, MadeOf<K>>>,
    pub(crate) cursor: K::Cursor,
    /// The last epoch that is planned.
    pub(crate) last: u64,
    /// Nothing more is planned.
    pub(crate) over: bool,
    pub(crate) slots: VecDeque<Slot<K>>,
    /// The batches that were given, and where the trainer was after that.
    history: VecDeque<(u64, K::Place)>,
    pub(crate) left_out: Vec<LoadError>,
    pub(crate) broken: Broken,
    turn: Turn,
    /// Number of batches that were left out since the last one that was given.
    pub(crate) left_out_since: u64,
    /// Up to when the trainer's time is counted; `None` before it has asked for a batch.
    counted: Option<Instant>,
    /// Time for which it has waited since then without a batch.
    in_vain: Duration,
    /// When its wait is reported, if the calls since it was given one have not been answered: they are one
    /// wait.
    unanswered: Option<ReportTimes>,
}

/// Turn (epoch, or pass of an epoch) whose batches are given, and whether it may end without one.
///
/// With errors that are left out, a loader without an end could otherwise look for a batch for ever.
struct Turn {
    /// `None` before the first slot.
    of: Option<(u64, u64)>,
    /// `true` if the trainer was given something of it, now or before its state was saved.
    delivered: bool,
}

/// State of a loader that may be unable to make batches.
pub(crate) enum Broken {
    Not,
    /// No; and why was not given yet.
    Because(Box<LoadError>),
    /// No.
    Told,
}

impl<K: Kind> Prefetch<K> {
    /// From the cursor on to the end of epoch `last`; none if that is `None`.
    pub(crate) fn new(inner: Arc<Inner<K>>, cursor: K::Cursor, last: Option<u64>) -> Self {
        let stream = match &inner.workers {
            Workers::Pool { call, .. } if !inner.is_copy() => Some(call.stream()),
            _ => None,
        };
        let mut window = Prefetch {
            stream,
            last: last.unwrap_or(0),
            over: last.is_none(),
            slots: VecDeque::new(),
            history: VecDeque::new(),
            left_out: Vec::new(),
            broken: Broken::Not,
            turn: Turn { of: None, delivered: !K::begins_a_turn(&cursor) },
            left_out_since: 0,
            counted: None,
            in_vain: Duration::ZERO,
            unanswered: None,
            cursor,
            inner,
        };
        if !window.inner.is_copy() {
            window.fill();
        }
        window
    }

    /// In a copy of the process: one error, and the end.
    fn of_a_copy(&mut self) -> Next<K::Batch> {
        if matches!(std::mem::replace(&mut self.broken, Broken::Told), Broken::Told) {
            return None;
        }
        self.over = true;
        let (epoch, batch) = match self.slots.front() {
            Some(slot) => (slot.epoch, slot.number),
            None => K::next(&self.cursor),
        };
        let (item, shard, what, worker) = (None, None, None, None);
        Some(Err(LoadError { epoch, batch, item, shard, what, worker, attempts: 0, source: FORKED.into() }))
    }

    pub(crate) fn inner(&self) -> &Inner<K> {
        &self.inner
    }

    /// Returns the number of batches that are planned and not given.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn place(&self) -> K::Place {
        K::place(&self.cursor, self.slots.front())
    }

    pub(crate) fn place_after(&self, number: u64) -> Option<&K::Place> {
        self.history.iter().rev().find(|given| given.0 == number).map(|given| &given.1)
    }

    pub(crate) fn left_out(&self) -> &[LoadError] {
        &self.left_out
    }

    pub(crate) fn next_timeout(&mut self, timeout: Duration) -> Result<Next<K::Batch>, NotReady> {
        self.next_until(Instant::now().checked_add(timeout))
    }

    pub(crate) fn next(&mut self) -> Next<K::Batch> {
        // Without a time it is never late.
        self.next_until(None).ok().flatten()
    }

    pub(crate) fn size_hint(&self) -> (usize, Option<usize>) {
        if matches!(self.broken, Broken::Told) {
            return (0, Some(0));
        }
        let left = || K::left(&self.inner.plan, &self.cursor, &self.slots, self.last);
        (0, if self.over { Some(self.slots.len()) } else { left() })
    }

    fn next_until(&mut self, until: Option<Instant>) -> Result<Next<K::Batch>, NotReady> {
        if self.inner.is_copy() {
            return Ok(self.of_a_copy());
        }
        let since = Instant::now();
        let before = self.unanswered.take();
        let mut reports = before.unwrap_or_else(|| ReportTimes::from(since));
        let mut counted = *self.counted.get_or_insert(since);
        self.take_all();
        let mut late = false;
        loop {
            if matches!(self.broken, Broken::Told) {
                return Ok(None);
            }
            self.fill();
            if let Some(batch) = self.give() {
                let ready = self.slots.iter().filter(|slot| slot.is_done()).count();
                let mut meter = self.inner.meter();
                meter.waited += std::mem::take(&mut self.in_vain);
                meter.got((since, Instant::now()), &mut counted, (ready, self.slots.len()));
                drop(meter);
                self.counted = Some(counted);
                return Ok(Some(batch));
            }
            if let Broken::Because(error) = std::mem::replace(&mut self.broken, Broken::Not) {
                self.broken = Broken::Told;
                self.inner.meter().failed += 1;
                return Ok(Some(Err(*error)));
            }
            if self.slots.is_empty() {
                if self.over {
                    return Ok(None);
                }
                // The last one was left out.
                continue;
            }
            if !self.slots.iter().any(Slot::is_sent) {
                // There was no memory for any of them.
                self.send_held();
                continue;
            }
            if late {
                self.in_vain += since.elapsed();
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
    fn wait(&mut self, until: Option<Instant>, reports: &ReportTimes) {
        let Some(stream) = &self.stream else {
            self.make_here();
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
            Some((ticket, result)) => self.came(ticket.number(), result.map_err(Failure::from)),
            None => self.breaks(Failure::fatal(FORKED)),
        }
    }

    /// Takes what is there.
    fn take_all(&mut self) {
        while let Some(Ok(Some((ticket, result)))) = self.stream.as_ref().map(Stream::try_next) {
            self.came(ticket.number(), result.map_err(Failure::from));
        }
    }

    /// Makes the batch that was sent, in this thread.
    fn make_here(&mut self) {
        let Workers::Here(worker) = &self.inner.workers else { return };
        let Some(slot) = self.slots.iter().find(|slot| slot.is_sent()) else { return };
        let task = K::task(&self.cursor, slot);
        let made = worker.make(|| K::begin(self.inner.orders()), &task);
        self.came(0, made);
    }

    /// The next batch that may be given, if there is one.
    fn give(&mut self) -> Next<K::Batch> {
        loop {
            let turn = self.slots.front().map(|slot| (slot.epoch, slot.turn))?;
            if self.turn.of != Some(turn) {
                if let (Some(ended), false) = (self.turn.of, self.turn.delivered) {
                    let error = self.nothing_delivered(self.slots.front()?, Some(ended));
                    (self.over, self.broken) = (true, Broken::Because(Box::new(error)));
                    return None;
                }
                let delivered = self.turn.of.is_none() && self.turn.delivered;
                self.turn = Turn { of: Some(turn), delivered };
            }
            let settings = &self.inner.settings;
            let may = |slot: &Slot<K>| {
                let of_it = (slot.epoch, slot.turn) == turn;
                of_it && slot.is_done()
            };
            let ahead = if settings.in_order { 1 } else { self.slots.len() };
            let i = self.slots.iter().take(ahead).position(may)?;
            let mut slot = self.slots.remove(i)?;
            K::given(&mut self.cursor, &mut slot, self.slots.front());
            self.send_held();
            self.fill();
            let At::Ready(result) = slot.at else {
                let mut meter = self.inner.meter();
                meter.skipped_batches += 1;
                meter.skipped_samples += slot.skipped.len() as u64;
                drop(meter);
                self.left_out_since += 1;
                continue;
            };
            (self.turn.delivered, self.left_out_since) = (true, 0);
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
