//! State of a call of the pool: tasks to be sent, and outcomes that have arrived.

use std::collections::HashMap;
use std::io::{PipeReader, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use mp_core::mutex::{Condvar, Mutex, MutexGuard};
use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU64;
use mp_core::user_code::{UserValue, catch_panic};
use mp_core::waits::{Call, On, Subject, wait_at};
use mp_spawn::Closure;

use crate::calls::brought::Brought;
use crate::calls::chunk::Kept;
use crate::calls::hand::Hand;
use crate::calls::lanes::Takes;
use crate::calls::outcomes::Run;
use crate::calls::runs::Runs;
use crate::calls::slots::{Order, PARTS, Progress, Refused, Slots, Waiters};
use crate::calls::source::{Piece, Rubbish, Source};
use crate::error::TaskError;
use crate::maker::Maker;
use crate::retry::Retry;
use crate::run::runner::Runner;
use crate::steps::chunk::MOST_ITEMS;

/// Target duration of a chunk: much longer than sending it, and short enough for workers to finish at about
/// the same time.
pub(crate) const CHUNK_NANOS: u64 = 500_000;
/// Target duration of the items of a stream that are taken before their results are requested, for each
/// worker.
const STREAM_NANOS: u64 = 4 * CHUNK_NANOS;
/// Maximum number of items of a chunk if the pool chooses the size.
const LARGEST: usize = 1 << 14;

/// Owner of functions, which is notified when they are unused.
pub(crate) trait Functions: Send + Sync {
    /// Reports that a function has no users left. May be called while the state's lock is held.
    fn is_unused(&self, code: u64);

    /// Describes the pool for a report of a wait for this call, or for any call.
    fn about(&self, job: Option<&Job>) -> About;
}

/// Description of a pool in a report.
#[derive(Default)]
pub(crate) struct About {
    pub(crate) pool: String,
    /// Process ids of the live workers.
    pub(crate) pids: Vec<u32>,
    /// Running tasks, each preceded by `; `.
    pub(crate) running: String,
}

/// Function with the number that workers know it by.
pub(crate) struct Code {
    pub(crate) number: u64,
    /// Closure of the user, with its captures.
    pub(crate) runner: UserValue<Closure<(), Runner>>,
    /// Pool that is notified when the last user is dropped.
    pub(crate) pool: Weak<dyn Functions>,
}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.is_unused(self.number);
        }
    }
}

/// Options of the tasks of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    /// Number of tasks in a chunk; 0 if the pool chooses.
    pub(crate) chunk: usize,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Retry,
}

/// Failed task that is to be retried.
pub(crate) struct Lost {
    pub(crate) index: usize,
    pub(crate) tries: u32,
    pub(crate) kept: Kept,
}

/// Tasks that were not sent: those to be retried, the indices of the others, and their arguments.
pub(crate) type Left = (Vec<Lost>, Vec<Range<usize>>, Rubbish);

/// State of one call.
pub(crate) struct Job {
    /// Process that made the call. A fork of it locks nothing here: other threads may have held the locks at
    /// the fork, and no thread settles its tasks.
    maker: Maker,
    pub(crate) code: Arc<Code>,
    pub(crate) terms: Terms,
    source: Arc<dyn Source>,
    /// Duration of a task in nanoseconds; 0 if unknown.
    pace: AtomicU64,
    lost: Mutex<Vec<Lost>>,
    pub(crate) hand: Hand,
    slots: Mutex<Slots>,
    changed: Condvar,
    done_pipe: OnceLock<Option<PipeReader>>,
}

impl Job {
    pub(crate) fn new(code: Arc<Code>, terms: Terms, source: Arc<dyn Source>, order: Order) -> Arc<Job> {
        let progress = Progress { done: 0, failed: 0, total: 0 };
        let slots = Slots {
            order,
            base: 0,
            runs: Runs::default(),
            progress,
            brought: Brought::default(),
            wakers: Vec::new(),
            on_done: None,
            done_pipe: None,
            waiters: Waiters::default(),
            failed: HashMap::new(),
            tickets: None,
        };
        let (maker, lost) = (Maker::this(), Mutex::new(Vec::new()));
        let (pace, slots) = (AtomicU64::new(0), Mutex::new(slots));
        let (hand, changed) = (Hand::default(), Condvar::new());
        let done_pipe = OnceLock::new();
        Arc::new(Job { maker, code, terms, source, pace, lost, hand, slots, changed, done_pipe })
    }

    /// Returns `true` if this process made the call.
    pub(crate) fn is_ours(&self) -> bool {
        self.maker.is_this()
    }

    /// Expects outcomes of `tasks` more tasks. Returns the index of the first.
    pub(crate) fn expect(&self, tasks: usize) -> usize {
        self.slots.lock().expect(tasks)
    }

    /// For a stream: expects the outcome of one more task, if there is room for it. Returns its index.
    pub(crate) fn expect_one(&self) -> Result<usize, Refused> {
        let mut slots = self.slots.lock();
        slots.has_room()?;
        Ok(slots.expect(1))
    }

    /// For a stream: returns `true` if it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.slots.lock().has_room() == Err(Refused::Closed)
    }

    /// Returns `true` if tasks prefer certain workers.
    pub(crate) fn has_lanes(&self) -> bool {
        self.source.has_lanes()
    }

    /// Returns `true` if there is a task for this worker.
    pub(crate) fn has_for(&self, takes: &Takes) -> bool {
        !self.lost.lock().is_empty() || self.source.has_for(takes)
    }

    /// Records that a worker receives these tasks.
    pub(crate) fn goes_to(&self, tasks: Range<usize>, worker: usize) {
        if self.source.has_lanes() {
            tasks.for_each(|index| self.source.goes_to(index, worker));
        }
    }

    /// Takes up to `most` tasks to be sent, for the worker `takes` if workers matter.
    pub(crate) fn take(&self, most: usize, takes: Option<&Takes>) -> Vec<Piece> {
        let lost = {
            let mut lost = self.lost.lock();
            let count = most.min(lost.len());
            self.hand.take(count);
            lost.drain(..count).collect::<Vec<_>>()
        };
        let again = |Lost { index, tries, kept }| Piece::again(index, tries, kept);
        let mut pieces: Vec<Piece> = lost.into_iter().map(again).collect();
        if pieces.len() < most {
            self.source.take(most - pieces.len(), takes, &self.hand, &mut pieces);
        }
        pieces
    }

    /// Returns the number of tasks that a chunk should have, for this number of workers.
    pub(crate) fn size(&self, workers: usize) -> usize {
        if self.terms.chunk > 0 {
            return self.terms.chunk.min(MOST_ITEMS);
        }
        let wanted = match self.pace.load(Ordering::Relaxed) {
            0 => 1,
            pace => (CHUNK_NANOS / pace).clamp(1, LARGEST as u64) as usize,
        };
        // The last chunks are small, so that workers finish at about the same time.
        wanted.min(self.source.left() / (2 * workers)).max(1)
    }

    /// Records the duration of tasks.
    pub(crate) fn took(&self, nanos: u64, tasks: usize) {
        let took = (nanos / tasks.max(1) as u64).max(1);
        // Adapts quickly to faster tasks: the first ones are slow for other reasons.
        let pace = match self.pace.load(Ordering::Relaxed) {
            0 => took,
            pace if took < pace => took.max(pace / 8),
            pace => (pace + took) / 2,
        };
        // Two threads may store at the same time: either value is usable.
        self.pace.store(pace, Ordering::Relaxed);
    }

    /// Returns the expected duration of tasks in nanoseconds. The value is large if unknown.
    pub(crate) fn takes(&self, tasks: usize) -> u64 {
        match self.pace.load(Ordering::Relaxed) {
            0 => (tasks as u64).saturating_mul(CHUNK_NANOS),
            pace => (tasks as u64).saturating_sub(1).saturating_mul(pace),
        }
    }

    /// Returns the number of items of a stream that should be in flight, for this number of workers; at least
    /// `least`.
    pub(crate) fn ahead(&self, workers: usize, least: usize) -> usize {
        match self.pace.load(Ordering::Relaxed) {
            0 => least,
            pace => workers.saturating_mul((STREAM_NANOS / pace).min(LARGEST as u64) as usize).max(least),
        }
    }

    /// Returns the number of tasks to be sent.
    pub(crate) fn left(&self) -> usize {
        self.lost.lock().len() + self.source.left()
    }

    /// Adds a task that is to be sent again.
    pub(crate) fn again(&self, lost: Lost) {
        self.lost.lock().push(lost);
    }

    /// Takes the tasks that were not sent, for the caller to settle with `fate`, which also becomes the
    /// outcome of the tasks in hand. Returns the number of tasks in hand, too.
    pub(crate) fn cancel(&self, fate: &TaskError) -> (Left, usize) {
        let rest = self.take_rest();
        // Sealed after taking the rest: a task that another thread has taken before is in its hand.
        (rest, self.hand.seal(fate.clone()))
    }

    /// Takes the tasks that were not sent, with their arguments.
    pub(crate) fn take_rest(&self) -> Left {
        let lost = self.dead_letter();
        let (rest, rubbish) = self.source.clear();
        (lost, rest, rubbish)
    }

    /// Takes the tasks that were to be retried.
    pub(crate) fn dead_letter(&self) -> Vec<Lost> {
        std::mem::take(&mut *self.lost.lock())
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.hand.is_sealed()
    }

    /// Stores outcomes. For each run of tasks that had no outcome yet, calls `seen` with the value of `look`
    /// and the submission time of the first task. [`notify`](Self::notify) wakes waiters.
    pub(crate) fn settle<S>(
        &self,
        runs: Vec<Run>,
        look: impl Fn(&Run) -> S,
        mut seen: impl FnMut(S, Instant),
    ) {
        let slots = &mut *self.slots.lock();
        for run in runs {
            let what = look(&run);
            if let Some(brought) = slots.settle(run) {
                seen(what, brought);
            }
        }
    }

    /// Wakes waiters after outcomes have arrived.
    pub(crate) fn notify(&self) {
        let (wakers, on_done, awaited, _done_pipe) = {
            let mut slots = self.slots.lock();
            let wakers = std::mem::take(&mut slots.wakers);
            let done = slots.all_done();
            let pipe = if done { slots.done_pipe.take() } else { None };
            // A fork of this process may have the writing end, too, so readers see the end only through a
            // byte.
            if let Some(mut pipe) = pipe.as_ref() {
                _ = pipe.write_all(&[0]);
            }
            let enough = |some| slots.has(some);
            let awaited = slots.waiters.all > 0 || slots.waiters.some.is_some_and(enough);
            (wakers, if done { slots.on_done.take() } else { None }, awaited, pipe)
        };
        if awaited {
            self.changed.notify_all();
        }
        // Panics in user code have reached the panic hook. The pool continues.
        for waker in wakers {
            catch_panic(|| waker.into_inner().map(Waker::wake));
        }
        if let Some(on_done) = on_done {
            catch_panic(|| on_done.into_inner().map(|call| call()));
        }
    }

    /// Returns a descriptor that is readable when all tasks are done. Returns `None` if no pipe could be
    /// created, and in a fork of the process, which locks nothing here.
    pub(crate) fn done_pipe(&self) -> Option<BorrowedFd<'_>> {
        if !self.is_ours() {
            return None;
        }
        let made = self.done_pipe.get_or_init(|| {
            let (reader, writer) = std::io::pipe().ok()?;
            let mut slots = self.slots.lock();
            if !slots.all_done() {
                slots.done_pipe = Some(writer);
            }
            Some(reader)
        });
        made.as_ref().map(AsFd::as_fd)
    }

    /// Calls `call` when all tasks are done, immediately if they are.
    pub(crate) fn on_done(&self, call: Box<dyn FnOnce() + Send>) {
        self.slots.lock().on_done = Some(UserValue::new(call));
        self.notify();
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }

    /// For a stream: takes an outcome, the next one or the outcome of the task `index`.
    pub(crate) fn take_outcome(&self, index: Option<usize>) -> Option<Run> {
        let (run, waited_for) = {
            let slots = &mut *self.slots.lock();
            let tickets = slots.tickets.as_mut()?;
            let run = tickets.take(index.or_else(|| tickets.next())?)?;
            let bounded = tickets.most != usize::MAX;
            (run, bounded || !slots.wakers.is_empty() || slots.is_over())
        };
        if waited_for {
            self.notify();
        }
        Some(run)
    }

    /// For a stream: ends the input.
    pub(crate) fn close(&self) {
        if let Some(tickets) = &mut self.slots.lock().tickets {
            tickets.closed = true;
        }
        self.notify();
    }

    /// Registers a waker for the next change, and returns `true`; returns `false` if `so` holds already.
    pub(crate) fn wake(&self, waker: &Waker, so: impl Fn(&Slots) -> bool) -> bool {
        {
            let slots = self.slots.lock();
            if so(&slots) || slots.will_wake(waker) {
                return !so(&slots);
            }
        }
        // Cloning and dropping a waker are user code, so they run without the lock.
        let waker = UserValue::new(waker.clone());
        let mut slots = self.slots.lock();
        let waits = !so(&slots);
        if waits {
            slots.wakers.push(waker);
            return true;
        }
        drop(slots);
        false
    }

    /// Waits until `so` holds. Returns `false` at the time limit.
    pub(crate) fn wait(&self, until: Option<Instant>, so: impl Fn(&Slots) -> bool) -> bool {
        let slots = &mut self.slots.lock();
        slots.waiters.all += 1;
        let is_so = self.wait_locked(slots, until, so);
        slots.waiters.all -= 1;
        is_so
    }

    /// Waits until a sizeable part of the tasks is done in addition to the first `done`, or all are.
    pub(crate) fn wait_for_more(&self, done: usize) {
        let slots = &mut self.slots.lock();
        let Progress { total, .. } = slots.progress;
        let wanted = total.min(done + (total / PARTS).max(1));
        // If another thread already waits this way, this one checks at each change.
        let is_first = slots.waiters.some.is_none();
        if is_first {
            slots.waiters.some = Some(wanted);
        } else {
            slots.waiters.all += 1;
        }
        self.wait_locked(slots, None, |slots| slots.has(wanted));
        if is_first {
            slots.waiters.some = None;
        } else {
            slots.waiters.all -= 1;
        }
    }

    fn wait_locked(
        &self,
        slots: &mut MutexGuard<'_, Slots>,
        until: Option<Instant>,
        so: impl Fn(&Slots) -> bool,
    ) -> bool {
        let subject = || {
            let About { pool, pids, running } =
                self.code.pool.upgrade().map_or_else(About::default, |pool| pool.about(Some(self)));
            let slots = self.slots();
            let Progress { done, total, .. } = slots.progress();
            let stream = slots.tickets.as_ref().map(|tickets| done - tickets.count_taken());
            let taken = stream.map_or_else(String::new, |left| format!(", {left} results not taken"));
            let state = format!("{pool}: {total} tasks, {done} of them done{taken}{running}");
            Subject::other(Call::Pool, On::Processes(pids), state)
        };
        wait_at(&self.changed, slots, until, so, subject)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use mp_spawn::Closure;

    use super::*;
    use crate::calls::slots::MANY_RUNS;
    use crate::calls::source::{Items, Keep, Original};

    struct NoPool;

    impl Functions for NoPool {
        fn is_unused(&self, _: u64) {}

        fn about(&self, _: Option<&Job>) -> About {
            About::default()
        }
    }

    pub(crate) fn job(tasks: usize, terms: Terms) -> Arc<Job> {
        let function = |_: u64| 0_u64;
        let runner = Closure::from_parts((), move |(): &(), (): ()| Runner::new(function));
        let code = Code { number: 1, runner: UserValue::new(runner), pool: Weak::<NoPool>::new() };
        let source = Arc::new(Items::<u64>::new(false));
        let job = Job::new(Arc::new(code), terms, source, Order::AsGiven);
        job.expect(tasks);
        job
    }

    /// Returns `true` if the tasks had no outcome yet.
    fn settle(job: &Job, tasks: Range<usize>) -> bool {
        let mut settled = false;
        job.settle(vec![Run::failed(tasks, TaskError::Terminated)], |_| (), |(), _| settled = true);
        settled
    }

    /// A worker that is killed because of its task may have answered it just before.
    #[test]
    fn a_task_has_one_outcome() {
        let job = job(10, Terms::default());
        assert!(settle(&job, 0..1));
        assert!(!settle(&job, 0..1));
        assert!(settle(&job, 4..7));
        for overlap in [3..5, 6..7, 6..8, 3..8, 5..6, 9..11, 4..4] {
            assert!(!settle(&job, overlap.clone()), "{overlap:?}");
        }
        assert_eq!(job.slots.lock().progress().done, 4);
    }

    #[test]
    fn outcomes_are_handed_out_in_order_however_they_come() {
        let job = job(10, Terms::default());
        let next = || job.slots.lock().next().map(|run| run.first..run.end());
        for (come, first) in
            [(7..8, None), (3..7, None), (0..1, Some(0..1)), (8..10, None), (1..3, Some(1..3))]
        {
            settle(&job, come);
            assert_eq!(next(), first);
        }
        assert_eq!([next(), next(), next(), next()], [Some(3..7), Some(7..8), Some(8..10), None]);
        assert!(!settle(&job, 7..8), "it was handed out");
        assert!(job.slots.lock().is_empty());
    }

    /// Otherwise a thread that takes results in order would be woken again and again in vain.
    #[test]
    fn many_results_behind_one_that_is_missing_are_no_reason_to_wake_a_thread() {
        let job = job(1000, Terms::default());
        (1..=MANY_RUNS).for_each(|first| assert!(settle(&job, first..first + 1)));
        assert!(!job.slots().has(MANY_RUNS + 1));
        settle(&job, 0..1);
        assert!(job.slots().has(900), "there is much to be taken");
    }

    /// Otherwise its call would wait for it forever.
    #[test]
    fn a_task_that_is_to_be_tried_again_ends_with_its_call() {
        let job = job(1, Terms::default());
        let kept: Box<dyn Keep> = Box::new(Original(7_u64));
        job.again(Lost { index: 0, tries: 1, kept: Kept::Original(UserValue::new(kept)) });
        let ((lost, ..), _) = job.cancel(&TaskError::Terminated);
        assert_eq!(lost.iter().map(|lost| lost.index).collect::<Vec<_>>(), [0]);
    }
}
