//! One call of the pool: the tasks that are still to be sent, and the outcomes that have come back.

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
use mp_core::user_code::{Apart, caught};
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

/// How long a chunk should take: much longer than it takes to send it, and short enough for the workers to end together.
pub(crate) const CHUNK_NANOS: u64 = 500_000;
/// How far ahead of their results items of a stream are taken, for each worker.
const STREAM_NANOS: u64 = 4 * CHUNK_NANOS;
/// The most items of a chunk whose size is chosen here.
const LARGEST: usize = 1 << 14;

/// Who has to know which functions are used.
pub(crate) trait Functions: Send + Sync {
    /// This function has no user any more. May be called with the lock of the state.
    fn is_unused(&self, code: u64);

    /// For a report of a wait for this call, or for any.
    fn about(&self, job: Option<&Job>) -> About;
}

/// What a report says of a pool.
#[derive(Default)]
pub(crate) struct About {
    pub(crate) pool: String,
    /// Of the workers that live.
    pub(crate) pids: Vec<u32>,
    /// What workers are at, each with `; ` before it.
    pub(crate) running: String,
}

/// A function, as the workers know it.
pub(crate) struct Code {
    pub(crate) number: u64,
    /// It holds what the user's closure captures.
    pub(crate) runner: Apart<Closure<(), Runner>>,
    /// The pool that is notified when its last user is gone.
    pub(crate) pool: Weak<dyn Functions>,
}

impl Drop for Code {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.is_unused(self.number);
        }
    }
}

/// How the tasks of a call are treated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    /// How many are given to a worker at once; 0: as it turns out to be best.
    pub(crate) chunk: usize,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: Retry,
}

/// A task that has failed and is to be tried again.
pub(crate) struct Lost {
    pub(crate) index: usize,
    pub(crate) tries: u32,
    pub(crate) kept: Kept,
}

/// Tasks that were not sent: those to be tried again, the indices of the others, and their arguments.
pub(crate) type Left = (Vec<Lost>, Vec<Range<usize>>, Rubbish);

/// One call.
pub(crate) struct Job {
    /// The process that made it. In a copy of that, nothing here is locked: other threads may have held the locks when it
    /// was copied, and no thread settles its tasks.
    maker: Maker,
    pub(crate) code: Arc<Code>,
    pub(crate) terms: Terms,
    source: Arc<dyn Source>,
    /// How long a task takes, in nanoseconds; 0 if that is not known.
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

    /// Whether this process made it.
    pub(crate) fn is_ours(&self) -> bool {
        self.maker.is_this()
    }

    /// Expects outcomes of `tasks` more tasks; the index of the first.
    pub(crate) fn expect(&self, tasks: usize) -> usize {
        self.slots.lock().expect(tasks)
    }

    /// Of a stream: expects the outcome of one more task, if there is room for it; its index.
    pub(crate) fn expect_one(&self) -> Result<usize, Refused> {
        let mut slots = self.slots.lock();
        slots.has_room()?;
        Ok(slots.expect(1))
    }

    /// Of a stream: whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.slots.lock().has_room() == Err(Refused::Closed)
    }

    /// Whether it matters which worker takes its tasks.
    pub(crate) fn has_lanes(&self) -> bool {
        self.source.has_lanes()
    }

    /// Whether there is a task for this worker.
    pub(crate) fn has_for(&self, takes: &Takes) -> bool {
        !self.lost.lock().is_empty() || self.source.has_for(takes)
    }

    /// A worker is given tasks, from `first` on.
    pub(crate) fn goes_to(&self, tasks: Range<usize>, worker: usize) {
        if self.source.has_lanes() {
            tasks.for_each(|index| self.source.goes_to(index, worker));
        }
    }

    /// Takes tasks that are to be sent, by `takes` if it matters which worker does.
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

    /// How many tasks a chunk should have, for this number of workers.
    pub(crate) fn size(&self, workers: usize) -> usize {
        if self.terms.chunk > 0 {
            return self.terms.chunk.min(MOST_ITEMS);
        }
        let wanted = match self.pace.load(Ordering::Relaxed) {
            0 => 1,
            pace => (CHUNK_NANOS / pace).clamp(1, LARGEST as u64) as usize,
        };
        // The last chunks are small, so that the workers end together.
        wanted.min(self.source.left() / (2 * workers)).max(1)
    }

    /// Tasks have taken so long.
    pub(crate) fn took(&self, nanos: u64, tasks: usize) {
        let took = (nanos / tasks.max(1) as u64).max(1);
        // Quick to see that they are faster: the first ones are slow for other reasons.
        let pace = match self.pace.load(Ordering::Relaxed) {
            0 => took,
            pace if took < pace => took.max(pace / 8),
            pace => (pace + took) / 2,
        };
        // Two threads may do so at once: either is right.
        self.pace.store(pace, Ordering::Relaxed);
    }

    /// How long tasks will take, in nanoseconds; long if that is not known.
    pub(crate) fn takes(&self, tasks: usize) -> u64 {
        match self.pace.load(Ordering::Relaxed) {
            0 => (tasks as u64).saturating_mul(CHUNK_NANOS),
            pace => (tasks as u64).saturating_sub(1).saturating_mul(pace),
        }
    }

    /// How many items of a stream should be on their way, for this number of workers; at least `least`.
    pub(crate) fn ahead(&self, workers: usize, least: usize) -> usize {
        match self.pace.load(Ordering::Relaxed) {
            0 => least,
            pace => workers.saturating_mul((STREAM_NANOS / pace).min(LARGEST as u64) as usize).max(least),
        }
    }

    /// How many tasks are to be sent.
    pub(crate) fn left(&self) -> usize {
        self.lost.lock().len() + self.source.left()
    }

    /// This task is to be sent once more.
    pub(crate) fn again(&self, lost: Lost) {
        self.lost.lock().push(lost);
    }

    /// Takes the tasks that were not sent, for the caller to settle with `fate`, which is the outcome of the tasks in hand, too; and
    /// returns the number of these.
    pub(crate) fn cancel(&self, fate: &TaskError) -> (Left, usize) {
        let rest = self.take_rest();
        // Afterwards: a task that another thread has taken just before is in its hand.
        (rest, self.hand.seal(fate.clone()))
    }

    /// Takes the tasks that were not sent, and what they were to be sent with.
    pub(crate) fn take_rest(&self) -> Left {
        let lost = self.dead_letter();
        let (rest, rubbish) = self.source.clear();
        (lost, rest, rubbish)
    }

    /// Takes those that were to be tried again.
    pub(crate) fn dead_letter(&self) -> Vec<Lost> {
        std::mem::take(&mut *self.lost.lock())
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.hand.is_sealed()
    }

    /// Notes what came of tasks. Of runs of tasks that had no outcome yet, `seen` gets what `look` has seen of them, and when the first
    /// was brought. [`notify`](Self::notify) wakes waiters.
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

    /// Tells waiters that outcomes have come.
    pub(crate) fn notify(&self) {
        let (wakers, on_done, awaited, _done_pipe) = {
            let mut slots = self.slots.lock();
            let wakers = std::mem::take(&mut slots.wakers);
            let done = slots.all_done();
            let pipe = if done { slots.done_pipe.take() } else { None };
            // A copy of this process may have the writing end, too: without a byte its readers would not see the end.
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
        // The panic hook has shown what panics in them; the pool goes on.
        for waker in wakers {
            caught(|| waker.into_inner().map(Waker::wake));
        }
        if let Some(on_done) = on_done {
            caught(|| on_done.into_inner().map(|call| call()));
        }
    }

    /// Descriptor that is readable when all is done. `None` if no pipe could be made, and in a copy of the process, which locks nothing
    /// here.
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

    /// Calls this when all is done: at once if it is.
    pub(crate) fn on_done(&self, call: Box<dyn FnOnce() + Send>) {
        self.slots.lock().on_done = Some(Apart::new(call));
        self.notify();
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }

    /// Of a stream: takes an outcome, the next one or that of a task.
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

    /// Of a stream: nothing more is pushed.
    pub(crate) fn close(&self) {
        if let Some(tickets) = &mut self.slots.lock().tickets {
            tickets.closed = true;
        }
        self.notify();
    }

    /// Has this waker woken when something changes; false if it is so.
    pub(crate) fn wake(&self, waker: &Waker, so: impl Fn(&Slots) -> bool) -> bool {
        {
            let slots = self.slots.lock();
            if so(&slots) || slots.will_wake(waker) {
                return !so(&slots);
            }
        }
        // Without the lock: cloning is code of the user, and so is dropping it.
        let waker = Apart::new(waker.clone());
        let mut slots = self.slots.lock();
        let waits = !so(&slots);
        if waits {
            slots.wakers.push(waker);
            return true;
        }
        drop(slots);
        false
    }

    /// Waits until something is so; false when the time is over.
    pub(crate) fn wait(&self, until: Option<Instant>, so: impl Fn(&Slots) -> bool) -> bool {
        let slots = &mut self.slots.lock();
        slots.waiters.all += 1;
        let is_so = self.wait_locked(slots, until, so);
        slots.waiters.all -= 1;
        is_so
    }

    /// Waits until a good part of the tasks is done that were not when `done` of them were, or all are.
    pub(crate) fn wait_for_more(&self, done: usize) {
        let slots = &mut self.slots.lock();
        let Progress { total, .. } = slots.progress;
        let wanted = total.min(done + (total / PARTS).max(1));
        // Else another thread waits so, and this one looks at each change.
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
        let code = Code { number: 1, runner: Apart::new(runner), pool: Weak::<NoPool>::new() };
        let source = Arc::new(Items::<u64>::new(false));
        let job = Job::new(Arc::new(code), terms, source, Order::AsGiven);
        job.expect(tasks);
        job
    }

    /// Whether they had no outcome yet.
    fn settle(job: &Job, tasks: Range<usize>) -> bool {
        let mut settled = false;
        job.settle(vec![Run::failed(tasks, TaskError::Terminated)], |_| (), |(), _| settled = true);
        settled
    }

    /// A worker that is ended for its task may have answered it just before.
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

    /// Else a thread that takes results in their order would look for them again and again.
    #[test]
    fn many_results_behind_one_that_is_missing_are_no_reason_to_wake_a_thread() {
        let job = job(1000, Terms::default());
        (1..=MANY_RUNS).for_each(|first| assert!(settle(&job, first..first + 1)));
        assert!(!job.slots().has(MANY_RUNS + 1));
        settle(&job, 0..1);
        assert!(job.slots().has(900), "there is much to be taken");
    }

    /// Else its call would wait for it for ever.
    #[test]
    fn a_task_that_is_to_be_tried_again_ends_with_its_call() {
        let job = job(1, Terms::default());
        let kept: Box<dyn Keep> = Box::new(Original(7_u64));
        job.again(Lost { index: 0, tries: 1, kept: Kept::Original(Apart::new(kept)) });
        let ((lost, ..), _) = job.cancel(&TaskError::Terminated);
        assert_eq!(lost.iter().map(|lost| lost.index).collect::<Vec<_>>(), [0]);
    }
}
