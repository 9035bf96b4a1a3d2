//! The trainer's side: which batches are on their way, and in which order they are given.
//!
//! A batch is a [`Slot`] of the window from its planning until it is given. The window is in the order of the plan.
//!
//! | the slot is | it becomes | when |
//! |---|---|---|
//! | planned | `Sent` | at once |
//! | `Sent` | `Ready` | the worker has made it, or it can't be made |
//! | | `Sent` | it is made again without a sample, or by one thread |
//! | | `Held` | there was no memory, and others are on their way or wait to be given |
//! | | `LeftOut` | it can't be made, and is to be left out |
//! | `Held` | `Sent` | another one was given or made |
//! | `Ready`, `LeftOut` | gone | it is given; in order, or as soon as it is ready |
//!
//! The state of a trainer is the first slot, and what was given behind it. So what is prefetched is no part of it.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use mp_pool::{Stream, TaskError};
use mp_spawn::{ProcessName, Raise, SpawnError};

use crate::inner::{Inner, Workers};
use crate::plan::EpochOrder;
use crate::settings::OnError;
use crate::state::{FORMAT, LoaderState};
use crate::worker::{Made, Task, Worker};
use crate::{Batch, Dataset, Info, Item, LoadError, Loaded, NotReady, Skipped};

/// What an iterator of batches gives: a batch, an error in its place, or the end.
pub type Next<B> = Option<Result<Loaded<B>, LoadError>>;

/// Of how many batches that were given [`Batches::state_after`] knows the state.
const HISTORY: usize = 1024;

/// The batches of an epoch, or of several: an iterator of [`Loaded`] batches. Made by [`DataLoader::epoch`](crate::DataLoader::epoch).
///
/// Dropped before its end, it cancels what has not begun, and what runs is not waited for.
pub struct Batches<D: Dataset> {
    inner: Arc<Inner<D>>,
    /// `None` without workers.
    stream: Option<Stream<Task, Made<D::Batch>>>,
    order: EpochOrder,
    /// Epoch and number of the batch that is planned next.
    cursor: (u64, u64),
    /// The first epoch that is not planned.
    end: u64,
    /// Nothing more is planned.
    over: bool,
    window: VecDeque<Slot<D::Batch>>,
    /// What was given, of the batches from the next one on.
    given: BTreeSet<(u64, u64)>,
    history: VecDeque<Given>,
    left_out: Vec<LoadError>,
}

/// A batch that was given, and the state after that.
struct Given {
    number: u64,
    next: (u64, u64),
    beyond: Vec<u64>,
}

/// A batch on its way.
struct Slot<B> {
    epoch: u64,
    number: u64,
    items: Vec<Item>,
    valid: usize,
    skipped: Vec<Skipped>,
    threads: usize,
    /// How often it was begun before it was sent last.
    attempts: usize,
    /// There was no memory for it when no other was on its way.
    alone: bool,
    at: At<B>,
}

enum At<B> {
    Sent(usize),
    Held,
    Ready(Box<Result<Loaded<B>, LoadError>>),
    LeftOut,
}

impl<B> At<B> {
    fn is_sent(&self) -> bool {
        matches!(self, At::Sent(_))
    }
}

/// Why a batch was not made.
struct Failure {
    /// At which of its items, from 1.
    place: Option<u64>,
    worker: Option<usize>,
    attempts: usize,
    /// Its worker died, or took too long: with several threads, the place is that of any of them.
    lost: bool,
    /// No other batch will be made either.
    fatal: bool,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl From<TaskError> for Failure {
    fn from(error: TaskError) -> Self {
        let (place, worker, lost, fatal) = match &error {
            TaskError::Raised(raised) => (raised.note, raised.who.rank, false, false),
            TaskError::WorkerLost(lost) => (lost.note, Some(lost.worker), true, false),
            TaskError::TimedOut { note, worker, .. } => (*note, Some(*worker), true, false),
            TaskError::Arguments { .. } | TaskError::Value { .. } => (None, None, false, false),
            _ => (None, None, false, true),
        };
        let attempts = error.attempts().count();
        Failure { place, worker, attempts, lost, fatal, source: Box::new(error) }
    }
}

impl<D: Dataset> fmt::Debug for Batches<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (epoch, number) = self.next_place();
        write!(f, "Batches(next is {number} of epoch {epoch}, {} on their way)", self.window.len())
    }
}

impl<D: Dataset> Batches<D> {
    pub(crate) fn new(inner: Arc<Inner<D>>, cursor: (u64, u64), end: u64, beyond: Vec<u64>) -> Self {
        let stream = match &inner.workers {
            Workers::Pool { call, .. } => Some(call.stream()),
            Workers::Here(_) => None,
        };
        let mut batches = Batches {
            stream,
            order: inner.plan.epoch(cursor.0),
            cursor,
            end,
            over: cursor.0 >= end,
            window: VecDeque::new(),
            given: beyond.into_iter().map(|number| (cursor.0, number)).collect(),
            history: VecDeque::new(),
            left_out: Vec::new(),
            inner,
        };
        batches.fill();
        batches
    }

    /// The first batch that was not given.
    fn next_place(&self) -> (u64, u64) {
        let first = self.window.front().map(|slot| (slot.epoch, slot.number));
        let first = first.filter(|_| !mp_core::mutant!("loader.state.counts-prefetched"));
        let mut place = first.unwrap_or(self.cursor);
        while self.given.contains(&place) {
            place.1 += 1;
        }
        place
    }

    fn beyond(&self, (epoch, next): (u64, u64)) -> Vec<u64> {
        self.given.range((epoch, next)..=(epoch, u64::MAX)).map(|given| given.1).collect()
    }

    fn make_state(&self, (epoch, next): (u64, u64), beyond: Vec<u64>) -> LoaderState {
        LoaderState { format: FORMAT, plan: self.inner.plan.state(epoch, next), beyond }
    }

    /// Where the trainer is: which batches it was given, whatever is prefetched. An error in the place of a batch counts as given.
    #[must_use]
    #[doc(alias = "state_dict")]
    pub fn state(&self) -> LoaderState {
        let place = self.next_place();
        self.make_state(place, self.beyond(place))
    }

    /// The state as it was when this batch was given: for a trainer that keeps batches in a queue of its own. `None` if that was more
    /// than 1024 batches ago. Of several epochs, the last batch of this number.
    #[must_use]
    pub fn state_after(&self, number: u64) -> Option<LoaderState> {
        let given = self.history.iter().rev().find(|given| given.number == number)?;
        Some(self.make_state(given.next, given.beyond.clone()))
    }

    /// The errors of batches that were [left out](OnError::SkipBatch), the last 1024.
    #[must_use]
    pub fn left_out(&self) -> &[LoadError] {
        &self.left_out
    }

    /// The next batch, but waits no longer than this.
    ///
    /// # Errors
    /// It is not there yet. Without workers, it always is: the caller makes it, however long that takes.
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Next<D::Batch>, NotReady> {
        self.next_until(Instant::now().checked_add(timeout))
    }

    fn next_until(&mut self, until: Option<Instant>) -> Result<Next<D::Batch>, NotReady> {
        let since = Instant::now();
        self.inner.meter().asked(since);
        self.take_all();
        loop {
            self.fill();
            if let Some(batch) = self.give() {
                self.inner.meter().got(since);
                return Ok(Some(batch));
            }
            if self.window.is_empty() {
                if self.over {
                    return Ok(None);
                }
                // The last one was left out.
                continue;
            }
            if !self.window.iter().any(|slot| slot.at.is_sent()) {
                // There was no memory for any of them.
                self.send_held();
                continue;
            }
            if !self.wait(until) {
                return Err(self.not_ready());
            }
        }
    }

    fn not_ready(&self) -> NotReady {
        let batch = self.window.front().map(|slot| (slot.epoch, slot.number));
        let running = match &self.inner.workers {
            Workers::Pool { pool, .. } => pool.pool().running(),
            Workers::Here(_) => Vec::new(),
        };
        NotReady { batch, running: running.iter().map(ToString::to_string).collect() }
    }

    /// Waits for an outcome; false if that takes too long.
    fn wait(&mut self, until: Option<Instant>) -> bool {
        let Some(stream) = &self.stream else {
            self.make_here();
            return true;
        };
        let outcome = match until {
            None => stream.next(),
            Some(until) => match stream.next_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(outcome) => outcome,
                Err(_) => return false,
            },
        };
        // A stream that is closed gives nothing, and then no slot waits for it.
        if let Some((ticket, result)) = outcome {
            self.came(ticket.number(), result.map_err(Failure::from));
        }
        true
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
        let Some(slot) = self.window.iter().find(|slot| slot.at.is_sent()) else { return };
        let task = Task::new(slot.epoch, slot.threads, None, &slot.items);
        let made = {
            let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
            made_here(&mut worker, &self.inner, &task)
        };
        self.came(0, made);
    }

    fn came(&mut self, ticket: usize, made: Result<Made<D::Batch>, Failure>) {
        let Some(i) = self.window.iter().position(|slot| matches!(slot.at, At::Sent(sent) if sent == ticket))
        else {
            return;
        };
        match made {
            Ok(Made { batch: Some(batch), worker, pid, nanos, .. }) => {
                let took = Duration::from_nanos(nanos);
                self.inner.meter().made(took, batch.bytes());
                let slot = &mut self.window[i];
                let info = Info {
                    epoch: slot.epoch,
                    number: slot.number,
                    items: std::mem::take(&mut slot.items),
                    valid: slot.valid,
                    skipped: std::mem::take(&mut slot.skipped),
                    worker,
                    pid,
                    took,
                };
                slot.at = At::Ready(Box::new(Ok(Loaded::new(info, batch))));
                self.send_held();
            }
            Ok(Made { no_memory, worker, .. }) => self.no_memory(i, no_memory.unwrap_or_default(), worker),
            Err(failure) => {
                self.failed(i, failure);
                self.send_held();
            }
        }
    }

    /// There was no memory for a batch: it waits for what others have, if there are others.
    fn no_memory(&mut self, i: usize, why: String, worker: Option<usize>) {
        self.window[i].at = At::Held;
        let others = |at: &At<_>| matches!(at, At::Sent(_) | At::Ready(_));
        let front_is_ready = matches!(self.window.front(), Some(Slot { at: At::Ready(_), .. }));
        let sent = self.window.iter().any(|slot| slot.at.is_sent());
        let can_wait = sent
            || front_is_ready
            || (!self.inner.settings.in_order && self.window.iter().any(|slot| others(&slot.at)));
        let gives_up = mp_core::mutant!("loader.memory.not-tried-again");
        if can_wait && !gives_up {
            return;
        }
        if !self.window[i].alone && !gives_up {
            self.window[i].alone = true;
            self.send(i);
            return;
        }
        let source = why.into();
        let failure = Failure { place: None, worker, attempts: 2, lost: false, fatal: false, source };
        self.failed(i, failure);
    }

    fn send_held(&mut self) {
        if let Some(i) = self.window.iter().position(|slot| matches!(slot.at, At::Held)) {
            self.send(i);
        }
    }

    fn failed(&mut self, i: usize, failure: Failure) {
        let Inner { settings, dataset, .. } = &*self.inner;
        let slot = &mut self.window[i];
        slot.attempts += failure.attempts;
        let skips_sample = settings.on_error == OnError::SkipSample && !failure.fatal;
        let again = slot.attempts <= settings.retries as usize || (slot.threads > 1 && skips_sample);
        if failure.lost && settings.threads > 1 && again {
            // By one thread, so that the sample is known. (Where there is only one, the pool has tried again.)
            slot.threads = 1;
            self.send(i);
            return;
        }
        let exact = !(failure.lost && slot.threads > 1);
        let place = failure.place.filter(|place| *place > 0 && exact).map(|place| place as usize - 1);
        let item = place.and_then(|place| slot.items.get(place)).copied();
        let error = LoadError {
            epoch: slot.epoch,
            batch: slot.number,
            item,
            what: item.and_then(|item| dataset.describe(item.index)),
            worker: failure.worker,
            attempt: slot.attempts.max(1),
            source: failure.source,
        };
        if failure.fatal {
            // Nothing else will come.
            self.over = true;
            slot.at = At::Ready(Box::new(Err(error)));
            self.window.retain(|slot| matches!(slot.at, At::Ready(_)));
            return;
        }
        match (settings.on_error, item, place) {
            (OnError::SkipSample, Some(item), Some(place)) => {
                slot.items.remove(place);
                slot.valid -= usize::from(place < slot.valid);
                slot.skipped.push(Skipped { item, why: error.to_string() });
                slot.attempts = 0;
                slot.threads = settings.threads;
                self.inner.meter().skipped_samples += 1;
                if self.window[i].items.is_empty() {
                    self.leave_out(i, error);
                } else {
                    self.send(i);
                }
            }
            (OnError::SkipBatch, ..) => self.leave_out(i, error),
            _ => {
                self.inner.meter().failed += 1;
                self.window[i].at = At::Ready(Box::new(Err(error)));
            }
        }
    }

    fn leave_out(&mut self, i: usize, error: LoadError) {
        self.inner.meter().skipped_batches += 1;
        self.window[i].at = At::LeftOut;
        if self.left_out.len() == HISTORY {
            self.left_out.remove(0);
        }
        self.left_out.push(error);
    }

    fn send(&mut self, i: usize) {
        let slot = &mut self.window[i];
        let Some(stream) = &self.stream else {
            slot.at = At::Sent(0);
            return;
        };
        let task = Task::new(slot.epoch, slot.threads, None, &slot.items);
        match stream.push(task) {
            Ok(ticket) => slot.at = At::Sent(ticket.number()),
            Err(error) => {
                let source = error.to_string().into();
                let failure =
                    Failure { place: None, worker: None, attempts: 0, lost: false, fatal: true, source };
                self.failed(i, failure);
            }
        }
    }

    /// Plans and sends as many batches as may be on their way.
    fn fill(&mut self) {
        while !self.over && self.has_room() {
            let at = (self.cursor.0, self.cursor.1);
            if self.given.contains(&at) {
                self.cursor.1 += 1;
                continue;
            }
            match self.order.batch(at.1) {
                Ok(Some(planned)) => {
                    self.cursor.1 += 1;
                    self.window.push_back(Slot {
                        epoch: at.0,
                        number: planned.number,
                        items: planned.items,
                        valid: planned.valid,
                        skipped: Vec::new(),
                        threads: self.inner.settings.threads,
                        attempts: 0,
                        alone: false,
                        at: At::Held,
                    });
                    self.send(self.window.len() - 1);
                }
                Ok(None) if at.0 + 1 < self.end => {
                    self.cursor = (at.0 + 1, 0);
                    self.order = self.inner.plan.epoch(at.0 + 1);
                }
                Ok(None) => self.over = true,
                Err(error) => {
                    self.over = true;
                    self.window.push_back(Slot {
                        epoch: at.0,
                        number: at.1,
                        items: Vec::new(),
                        valid: 0,
                        skipped: Vec::new(),
                        threads: 1,
                        attempts: 0,
                        alone: false,
                        at: At::Ready(Box::new(Err(LoadError {
                            epoch: at.0,
                            batch: at.1,
                            item: None,
                            what: None,
                            worker: None,
                            attempt: 0,
                            source: Box::new(error),
                        }))),
                    });
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        let settings = &self.inner.settings;
        let under_way = self.window.len();
        if under_way == 0 {
            return true;
        }
        if under_way >= settings.num_workers.saturating_mul(settings.prefetch)
            || self.window.iter().any(|slot| matches!(slot.at, At::Held))
        {
            return false;
        }
        let Some(budget) = settings.budget else { return true };
        // Before the first is there, nothing is known of their size.
        let most = self.inner.meter().most_bytes;
        most > 0 && most.saturating_mul(under_way + 1) <= budget
    }

    /// The next batch that may be given, if there is one.
    fn give(&mut self) -> Next<D::Batch> {
        loop {
            let epoch = self.window.front()?.epoch;
            let in_order = self.inner.settings.in_order;
            let may = |slot: &Slot<_>| slot.epoch == epoch && matches!(slot.at, At::Ready(_) | At::LeftOut);
            let ahead = if in_order { 1 } else { self.window.len() };
            let i = self.window.iter().take(ahead).position(may)?;
            let Slot { epoch, number, at, .. } = self.window.remove(i)?;
            self.given.insert((epoch, number));
            let next = self.next_place();
            self.given = self.given.split_off(&next);
            let At::Ready(result) = at else { continue };
            if self.history.len() == HISTORY {
                self.history.pop_front();
            }
            let beyond = self.beyond(next);
            self.history.push_back(Given { number, next, beyond });
            if let Ok(batch) = &*result {
                let mut meter = self.inner.meter();
                meter.batches += 1;
                meter.samples += batch.info.items.len() as u64;
                meter.bytes += batch.bytes() as u64;
            }
            self.send_held();
            self.fill();
            return Some(*result);
        }
    }
}

/// Makes a batch in the trainer, with the dataset as a worker would receive it.
fn made_here<D: Dataset>(
    worker: &mut Option<Worker<D>>,
    inner: &Inner<D>,
    task: &Task,
) -> Result<Made<D::Batch>, Failure> {
    let failure =
        |place, fatal, source| Failure { place, worker: None, attempts: 1, lost: false, fatal, source };
    let raised = |panic: Raise| -> Box<dyn std::error::Error + Send + Sync> {
        let name = ProcessName::new(None, "the trainer".into(), std::process::id());
        Box::new(SpawnError::ProcessRaised(Box::new(panic.of(name))))
    };
    let mut mine = match worker.take() {
        Some(mine) => mine,
        None => match Raise::catch(|| Worker::begin(inner.orders())) {
            Ok(Ok(mine)) => mine,
            Ok(Err(error)) => return Err(failure(None, true, error)),
            Err(panic) => return Err(failure(None, true, raised(*panic))),
        },
    };
    let mut cx = mine.context(task);
    let made = Raise::catch(|| mine.make(task, &mut cx));
    let place = Some(cx.place());
    match made {
        Ok(made) => {
            *worker = Some(mine);
            made.map_err(|error| failure(place, false, error))
        }
        // What the panic left of the dataset is not used again.
        Err(panic) => Err(failure(place, false, raised(*panic))),
    }
}

impl<D: Dataset> Iterator for Batches<D> {
    type Item = Result<Loaded<D::Batch>, LoadError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Without a time it is never late.
        self.next_until(None).ok().flatten()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let known = self.order.batches().filter(|_| self.cursor.0 + 1 >= self.end);
        let left = known.map(|all| all.saturating_sub(self.cursor.1) as usize);
        let left = if self.over { Some(0) } else { left };
        (0, left.map(|left| left + self.window.len()))
    }
}
