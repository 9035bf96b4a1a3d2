//! State of a call of the pool: tasks to be sent, and outcomes that have arrived.

use std::collections::HashMap;
use std::io::{PipeReader, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use mp_core::mutex::{Condvar, Mutex, MutexGuard};
use mp_core::quantity;
use mp_core::sync::Ordering;
use mp_core::sync::shared::{AtomicBool, AtomicU64};
use mp_core::user_code::{UserValue, catch_panic};
use mp_core::waits::{BlockingCall, Subject, WaitObject, wait_at};
use mp_spawn::Closure;

use crate::child::runner::Runner;
use crate::error::TaskError;
use crate::steps::chunk::MOST_ITEMS;
use crate::tasks::call_outcomes::{CallOutcomes, OutcomeWaiters, PARTS, Progress, PushRefusal, ResultOrder};
use crate::tasks::outcome_run::{OutcomeRun, OutcomeRuns};
use crate::tasks::owner_process::OwnerProcess;
use crate::tasks::retry_policy::RetryPolicy;
use crate::tasks::source::{TaskSource, UnneededValues};
use crate::tasks::submission_times::SubmissionTimes;
use crate::tasks::transit::TransitCounter;

/// Target duration of a chunk: much longer than sending it, and short enough for workers to finish at about
/// the same time.
pub(crate) const CHUNK_NANOS: u64 = 500_000;
/// Target duration of the items that `imap` keeps in flight for each worker.
const STREAM_NANOS: u64 = 4 * CHUNK_NANOS;
/// Maximum number of items of a chunk if the pool chooses the size.
const LARGEST: usize = 1 << 14;

/// Owner of functions, which is notified when they are unused.
pub(crate) trait FunctionOwner: Send + Sync {
    /// Reports that a function has no users left. May be called while the state's lock is held.
    fn function_unused(&self, code: u64);

    /// Returns the text of a report about a thread that waits for this call, or for any call. The text
    /// contains the pool's name, `what`, and the running tasks.
    fn describe(&self, job: Option<&CallState>, what: &str) -> Subject;
}

/// Function of tasks, with the number that identifies it in messages to workers.
pub(crate) struct TaskFunction {
    pub(crate) number: u64,
    /// Closure of the user, with its captures.
    pub(crate) runner: UserValue<Closure<(), Runner>>,
    /// Pool that is notified when the last user is dropped.
    pub(crate) pool: Weak<dyn FunctionOwner>,
}

impl Drop for TaskFunction {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.function_unused(self.number);
        }
    }
}

/// Options of the tasks of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallOptions {
    /// Number of tasks in a chunk; 0 if the pool chooses.
    pub(crate) chunk: usize,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry: RetryPolicy,
}

/// State of one call.
pub(crate) struct CallState {
    /// Process that made the call. A fork of this process locks nothing here: other threads may have held the
    /// locks at the fork, and no thread settles its tasks.
    owner: OwnerProcess,
    pub(crate) code: Arc<TaskFunction>,
    pub(crate) options: CallOptions,
    pub(crate) source: Arc<dyn TaskSource>,
    /// `true` while the call is among the pool's calls with tasks to be sent. Changed under the lock of the
    /// pool's state.
    pub(crate) is_listed: AtomicBool,
    /// Duration of a task in nanoseconds; 0 if unknown.
    pace: AtomicU64,
    pub(crate) transit: TransitCounter,
    outcomes: Mutex<CallOutcomes>,
    changed: Condvar,
    done_pipe: OnceLock<Option<PipeReader>>,
}

impl CallState {
    pub(crate) fn new(
        code: Arc<TaskFunction>,
        options: CallOptions,
        source: Arc<dyn TaskSource>,
        order: ResultOrder,
    ) -> Arc<CallState> {
        let progress = Progress { done: 0, failed: 0, total: 0 };
        let outcomes = CallOutcomes {
            order,
            base: 0,
            runs: OutcomeRuns::default(),
            progress,
            submitted: SubmissionTimes::default(),
            wakers: Vec::new(),
            on_done: None,
            done_pipe: None,
            waiters: OutcomeWaiters::default(),
            failed: HashMap::new(),
            tickets: None,
        };
        Arc::new(CallState {
            owner: OwnerProcess::this(),
            code,
            options,
            source,
            is_listed: AtomicBool::new(false),
            pace: AtomicU64::new(0),
            transit: TransitCounter::default(),
            outcomes: Mutex::new(outcomes),
            changed: Condvar::new(),
            done_pipe: OnceLock::new(),
        })
    }

    /// Returns `true` if this process made the call.
    pub(crate) fn is_ours(&self) -> bool {
        self.owner.is_this()
    }

    /// Expects outcomes of `tasks` more tasks. Returns the index of the first.
    pub(crate) fn expect(&self, tasks: usize) -> usize {
        self.outcomes.lock().expect(tasks)
    }

    /// For a stream: expects the outcome of one more task, if there is room for the task. Returns the task's
    /// index.
    pub(crate) fn expect_one(&self) -> Result<usize, PushRefusal> {
        let mut outcomes = self.outcomes.lock();
        outcomes.check_room()?;
        Ok(outcomes.expect(1))
    }

    /// For a stream: returns `true` if the stream was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.outcomes.lock().check_room() == Err(PushRefusal::Closed)
    }

    /// Records that a worker receives these tasks.
    pub(crate) fn record_worker(&self, tasks: Range<usize>, worker: usize) {
        if self.source.has_lanes() {
            tasks.for_each(|index| self.source.record_worker(index, worker));
        }
    }

    /// Returns the number of tasks that a chunk should have, for this number of workers.
    pub(crate) fn chunk_size(&self, workers: usize) -> usize {
        if self.options.chunk > 0 {
            return self.options.chunk.min(MOST_ITEMS);
        }
        let wanted = match self.pace.load(Ordering::Relaxed) {
            0 => 1,
            pace => (CHUNK_NANOS / pace).clamp(1, LARGEST as u64) as usize,
        };
        // The last chunks are small, so that workers finish at about the same time.
        wanted.min(self.source.remaining() / (2 * workers)).max(1)
    }

    /// Records the duration of tasks.
    pub(crate) fn record_duration(&self, nanos: u64, tasks: usize) {
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

    /// Returns the expected duration of a new chunk of `tasks` in nanoseconds, or 0 if it is unknown. Also
    /// returns 0 if the user chose chunks of one task: the replies of each worker are then a better measure.
    pub(crate) fn chunk_nanos(&self, tasks: usize) -> u64 {
        if self.options.chunk == 1 { 0 } else { self.known_nanos(tasks) }
    }

    /// Returns the expected duration of `tasks` tasks in nanoseconds, or 0 if it is unknown.
    pub(crate) fn known_nanos(&self, tasks: usize) -> u64 {
        self.pace.load(Ordering::Relaxed).saturating_mul(tasks as u64)
    }

    /// Returns the expected remaining duration of `tasks` unfinished tasks in nanoseconds. One of the tasks
    /// is not counted, because it may be running and almost finished. If the duration of a task is unknown,
    /// assumes [`CHUNK_NANOS`] for each task.
    pub(crate) fn expected_nanos(&self, tasks: usize) -> u64 {
        match self.pace.load(Ordering::Relaxed) {
            0 => (tasks as u64).saturating_mul(CHUNK_NANOS),
            pace => (tasks as u64).saturating_sub(1).saturating_mul(pace),
        }
    }

    /// Returns the number of items of an `imap` that should be in flight for this number of workers, at least
    /// `least`.
    pub(crate) fn target_in_flight(&self, workers: usize, least: usize) -> usize {
        match self.pace.load(Ordering::Relaxed) {
            0 => least,
            pace => workers.saturating_mul((STREAM_NANOS / pace).min(LARGEST as u64) as usize).max(least),
        }
    }

    /// Cancels the call: removes the tasks that were not sent, and returns them and the number of tasks in
    /// transit. The caller settles the removed tasks with `final_error`. Tasks in transit get the same error
    /// later.
    pub(crate) fn cancel(&self, final_error: &TaskError) -> ((Vec<Range<usize>>, UnneededValues), usize) {
        let rest = self.source.clear();
        // Sealed after taking the rest: a task that another thread has taken before is in transit.
        (rest, self.transit.seal(final_error.clone()))
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.transit.is_sealed()
    }

    /// Stores runs of outcomes. `look` computes a value from each run. If the tasks of a run had no outcome
    /// before, `seen` is called with this value and the submission time of the first task. Waiters are woken
    /// by [`notify`](Self::notify).
    pub(crate) fn settle<S>(
        &self,
        runs: Vec<OutcomeRun>,
        look: impl Fn(&OutcomeRun) -> S,
        mut seen: impl FnMut(S, Instant),
    ) {
        let outcomes = &mut *self.outcomes.lock();
        for run in runs {
            let data = look(&run);
            if let Some(submitted) = outcomes.settle(run) {
                seen(data, submitted);
            }
        }
    }

    /// Wakes waiters after outcomes have arrived.
    pub(crate) fn notify(&self) {
        let (wakers, on_done, awaited, _done_pipe) = {
            let mut outcomes = self.outcomes.lock();
            let wakers = std::mem::take(&mut outcomes.wakers);
            let done = outcomes.all_done();
            let pipe = if done { outcomes.done_pipe.take() } else { None };
            // A fork of this process may have the writing end, too, so readers see the end only through a
            // byte.
            if let Some(mut pipe) = pipe.as_ref() {
                _ = pipe.write_all(&[0]);
            }
            let enough = |some| outcomes.has(some);
            let awaited = outcomes.waiters.all > 0 || outcomes.waiters.some.is_some_and(enough);
            (wakers, if done { outcomes.on_done.take() } else { None }, awaited, pipe)
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
    /// created, or in a forked process, which must not take the locks.
    pub(crate) fn done_pipe(&self) -> Option<BorrowedFd<'_>> {
        if !self.is_ours() {
            return None;
        }
        let made = self.done_pipe.get_or_init(|| {
            let (reader, writer) = std::io::pipe().ok()?;
            let mut outcomes = self.outcomes.lock();
            if !outcomes.all_done() {
                outcomes.done_pipe = Some(writer);
            }
            Some(reader)
        });
        made.as_ref().map(AsFd::as_fd)
    }

    /// Calls `call` when all tasks are done, or at once if they already are.
    pub(crate) fn on_done(&self, call: Box<dyn FnOnce() + Send>) {
        self.outcomes.lock().on_done = Some(UserValue::new(call));
        self.notify();
    }

    pub(crate) fn outcomes(&self) -> MutexGuard<'_, CallOutcomes> {
        self.outcomes.lock()
    }

    /// For a stream: takes an outcome, the next one or the outcome of the task `index`.
    pub(crate) fn take_outcome(&self, index: Option<usize>) -> Option<OutcomeRun> {
        let (run, waited_for) = {
            let outcomes = &mut *self.outcomes.lock();
            let tickets = outcomes.tickets.as_mut()?;
            let run = tickets.take(index.or_else(|| tickets.next())?)?;
            let bounded = tickets.most != usize::MAX;
            (run, bounded || !outcomes.wakers.is_empty() || outcomes.is_over())
        };
        if waited_for {
            self.notify();
        }
        Some(run)
    }

    /// For a stream: ends the input.
    pub(crate) fn close(&self) {
        if let Some(tickets) = &mut self.outcomes.lock().tickets {
            tickets.closed = true;
        }
        self.notify();
    }

    /// Registers a waker for the next change, and returns `true`; returns `false` if `condition` holds
    /// already.
    pub(crate) fn register_waker(&self, waker: &Waker, condition: impl Fn(&CallOutcomes) -> bool) -> bool {
        {
            let outcomes = self.outcomes.lock();
            if condition(&outcomes) || outcomes.will_wake(waker) {
                return !condition(&outcomes);
            }
        }
        // Cloning and dropping a waker are user code, so they run without the lock.
        let waker = UserValue::new(waker.clone());
        let mut outcomes = self.outcomes.lock();
        let waits = !condition(&outcomes);
        if waits {
            outcomes.wakers.push(waker);
            return true;
        }
        drop(outcomes);
        false
    }

    /// Waits until `condition` holds. Returns `false` at the time limit.
    #[track_caller]
    pub(crate) fn wait(&self, until: Option<Instant>, condition: impl Fn(&CallOutcomes) -> bool) -> bool {
        let outcomes = &mut self.outcomes.lock();
        outcomes.waiters.all += 1;
        let holds = self.wait_locked(outcomes, until, condition);
        outcomes.waiters.all -= 1;
        holds
    }

    /// Waits until a further 32nd of the call's tasks is done in addition to `done` tasks, or until all are
    /// done. Returns earlier if many runs of outcomes can be taken.
    #[track_caller]
    pub(crate) fn wait_for_more(&self, done: usize) {
        let outcomes = &mut self.outcomes.lock();
        let Progress { total, .. } = outcomes.progress;
        let wanted = total.min(done + (total / PARTS).max(1));
        // If another thread already waits this way, this thread checks at each change.
        let is_first = outcomes.waiters.some.is_none();
        if is_first {
            outcomes.waiters.some = Some(wanted);
        } else {
            outcomes.waiters.all += 1;
        }
        self.wait_locked(outcomes, None, |outcomes| outcomes.has(wanted));
        if is_first {
            outcomes.waiters.some = None;
        } else {
            outcomes.waiters.all -= 1;
        }
    }

    #[track_caller]
    fn wait_locked(
        &self,
        outcomes: &mut MutexGuard<'_, CallOutcomes>,
        until: Option<Instant>,
        condition: impl Fn(&CallOutcomes) -> bool,
    ) -> bool {
        let subject = || {
            let what = {
                let outcomes = self.outcomes();
                let Progress { done, total, .. } = outcomes.progress;
                let stream = outcomes.tickets.as_ref().map(|tickets| done - tickets.count_taken());
                let taken = stream
                    .map_or_else(String::new, |left| format!(", {} not taken", quantity(left, "result")));
                format!(": {}, {done} of them done{taken}", quantity(total, "task"))
            };
            let unknown =
                || Subject::other(BlockingCall::Pool, WaitObject::Processes(Vec::new()), what.clone());
            self.code.pool.upgrade().map_or_else(unknown, |pool| pool.describe(Some(self), &what))
        };
        wait_at(&self.changed, outcomes, until, condition, subject)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::thread::ThreadId;

    use mp_spawn::Closure;

    use super::*;
    use crate::tasks::call_outcomes::MANY_RUNS;
    use crate::tasks::source::ItemSource;

    #[derive(Default)]
    pub(crate) struct RecordingOwner {
        /// Thread that has dropped the function.
        pub(crate) dropped_by: OnceLock<ThreadId>,
    }

    impl FunctionOwner for RecordingOwner {
        fn function_unused(&self, _: u64) {
            _ = self.dropped_by.set(std::thread::current().id());
        }

        fn describe(&self, _: Option<&CallState>, what: &str) -> Subject {
            Subject::other(BlockingCall::Pool, WaitObject::Processes(Vec::new()), what.to_owned())
        }
    }

    pub(crate) fn job(tasks: usize, options: CallOptions) -> Arc<CallState> {
        job_of(Weak::<RecordingOwner>::new(), tasks, options)
    }

    pub(crate) fn job_of(
        pool: Weak<dyn FunctionOwner>,
        tasks: usize,
        options: CallOptions,
    ) -> Arc<CallState> {
        let job = job_from(ItemSource::new(false), pool, options);
        job.expect(tasks);
        job
    }

    /// Returns a call whose arguments are in `source`.
    pub(crate) fn job_from(
        source: ItemSource<u64>,
        pool: Weak<dyn FunctionOwner>,
        options: CallOptions,
    ) -> Arc<CallState> {
        let function = |_: u64| 0_u64;
        let runner = Closure::from_parts((), move |(): &(), (): ()| Runner::new(function));
        let code = TaskFunction { number: 1, runner: UserValue::new(runner), pool };
        CallState::new(Arc::new(code), options, Arc::new(source), ResultOrder::Submission)
    }

    /// Returns `true` if the tasks had no outcome yet.
    fn settle(job: &CallState, tasks: Range<usize>) -> bool {
        let mut settled = false;
        job.settle(vec![OutcomeRun::failed(tasks, TaskError::Terminated)], |_| (), |(), _| settled = true);
        settled
    }

    /// If a worker is killed for its task, the reply of the task may arrive nevertheless.
    #[test]
    fn settled_task_keeps_its_first_outcome() {
        let job = job(10, CallOptions::default());
        assert!(settle(&job, 0..1));
        assert!(!settle(&job, 0..1));
        assert!(settle(&job, 4..7));
        for overlap in [3..5, 6..7, 6..8, 3..8, 5..6, 9..11, 4..4] {
            assert!(!settle(&job, overlap.clone()), "{overlap:?}");
        }
        assert_eq!(job.outcomes.lock().progress.done, 4);
    }

    #[test]
    fn task_outcomes_are_delivered_in_order() {
        let job = job(10, CallOptions::default());
        let next = || job.outcomes.lock().next().map(|run| run.first..run.end());
        for (come, first) in
            [(7..8, None), (3..7, None), (0..1, Some(0..1)), (8..10, None), (1..3, Some(1..3))]
        {
            settle(&job, come);
            assert_eq!(next(), first);
        }
        assert_eq!([next(), next(), next(), next()], [Some(3..7), Some(7..8), Some(8..10), None]);
        assert!(!settle(&job, 7..8), "the outcome was taken");
        assert!(job.outcomes.lock().is_empty());
    }

    /// A thread that takes results in order can't take any while an earlier result is missing, so waking it
    /// would be useless.
    #[test]
    fn missing_task_result_keeps_waiter_asleep() {
        let job = job(1000, CallOptions::default());
        (1..=MANY_RUNS).for_each(|first| assert!(settle(&job, first..first + 1)));
        assert!(!job.outcomes().has(MANY_RUNS + 1));
        settle(&job, 0..1);
        assert!(job.outcomes().has(900), "enough results are available");
    }
}
