//! State shared by the pool's handle, its calls and its thread.
//!
//! A task is counted before any other thread can see it, and settled once, so the count reaches zero when no
//! tasks are left.

use std::any::TypeId;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use mp_core::message::IntoOutcome;
use mp_core::mutex::{Condvar, Mutex};
use mp_core::sync::Ordering;
use mp_core::sync::shared::{AtomicU64, AtomicUsize};
use mp_core::user_code::{UserValue, drop_caught};
use mp_core::waits::{Call, On, Subject, wait_at};
use mp_queue::Queue;
use mp_reduce::Message;
use mp_spawn::{CapturesNothing, Closure, StateClosure};

use crate::calls::chunk::Ready;
use crate::calls::job::{About, Code, Functions, Job, Lost};
use crate::calls::outcomes::Run;
use crate::dispatch::room::RoomLine;
use crate::dispatch::settings::{AtStart, Settings};
use crate::dispatch::settled::{Failed, Settled};
use crate::error::{Broken, PoolError, TaskError};
use crate::maker::Maker;
use crate::message::{Reply, Task};
use crate::metrics::meter::{Ends, Meter};
use crate::run::runner::Runner;
use crate::workers::later::Later;
use crate::workers::state::{Phase, State, next_chunk};

/// Maximum wait of a cancellation for workers that have taken a chunk and not begun it (mostly microseconds).
const TAKING: Duration = Duration::from_millis(100);
/// Delay that replaces a back-off too long for the clock.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Event: the process of a worker has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exited {
    pub(crate) worker: usize,
    pub(crate) pid: u32,
}

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    /// Dropped when the pool is over. Otherwise, captured queues would seem to be in use for as long as the
    /// pool's handle exists.
    at_start: Mutex<AtStart>,
    /// Process that created the pool. A fork of it locks nothing here: other threads may have held the locks
    /// at the fork.
    maker: Maker,
    /// Wanted number of workers, copied from the state for readers without the lock.
    pub(crate) wanted: AtomicUsize,
    pub(crate) replies: Queue<Reply>,
    /// Any queue of tasks. Messages for all of them are packed alike.
    pub(crate) form: Queue<Task>,
    pub(crate) state: Mutex<State>,
    /// Notified when tasks have been settled, or the pool is over.
    pub(crate) changed: Condvar,
    /// Statistics. Their lock is taken before the lock of the state or of a call.
    pub(crate) meter: Mutex<Meter>,
    /// Futures that wait for room.
    pub(crate) room: RoomLine,
    pub(crate) events: Mutex<Vec<Exited>>,
    /// Notified of events, for a thread that can't wait for replies because no worker exists.
    pub(crate) rang: Condvar,
    functions: Mutex<HashMap<TypeId, Arc<Code>>>,
    /// Functions without users.
    unused: Mutex<Vec<u64>>,
    ids: AtomicU64,
    /// Id of the pool's thread, once it runs.
    pub(crate) thread: OnceLock<ThreadId>,
}

impl Shared {
    pub(crate) fn new(
        mut settings: Settings,
        replies: Queue<Reply>,
        form: Queue<Task>,
        state: State,
    ) -> Self {
        let at_start = Mutex::new(std::mem::take(&mut settings.at_start));
        Shared {
            settings,
            at_start,
            maker: Maker::this(),
            wanted: AtomicUsize::new(state.wanted),
            replies,
            form,
            state: Mutex::new(state),
            changed: Condvar::new(),
            meter: Mutex::default(),
            room: RoomLine::default(),
            events: Mutex::new(Vec::new()),
            rang: Condvar::new(),
            functions: Mutex::new(HashMap::new()),
            unused: Mutex::new(Vec::new()),
            ids: AtomicU64::new(1),
            thread: OnceLock::new(),
        }
    }

    pub(crate) fn at_start(&self) -> AtStart {
        self.at_start.lock().clone()
    }

    /// Drops the functions with which workers are started. No more will be.
    pub(crate) fn release_at_start(&self) {
        let at_start = std::mem::take(&mut *self.at_start.lock());
        drop_caught(at_start);
    }

    pub(crate) fn check_owner(&self) -> Result<(), PoolError> {
        if self.maker.is_this() { Ok(()) } else { Err(PoolError::OtherProcess { owner: self.maker.pid() }) }
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn code(self: &Arc<Self>, runner: Closure<(), Runner>) -> Arc<Code> {
        let pool: Weak<Self> = Arc::downgrade(self);
        Arc::new(Code { number: self.next_id(), runner: UserValue::new(runner), pool })
    }

    /// Returns the code of a function, which is sent to each worker once.
    pub(crate) fn function<F, A, R>(self: &Arc<Self>, function: F) -> Arc<Code>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Message,
        R: IntoOutcome,
    {
        let key = TypeId::of::<PhantomData<fn(F, A) -> R>>();
        self.known(key, || Closure::from_parts((), move |(): &(), (): ()| Runner::new(function)))
    }

    /// Returns the code of a function that receives the worker's state.
    pub(crate) fn function_with_state<S, F, A, R>(self: &Arc<Self>, function: F) -> Arc<Code>
    where
        S: 'static,
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message,
        R: IntoOutcome,
    {
        let key = TypeId::of::<PhantomData<fn(F, PhantomData<S>, A) -> R>>();
        self.known(key, || Closure::from_parts((), move |(): &(), (): ()| Runner::with_state(function)))
    }

    fn known(self: &Arc<Self>, key: TypeId, runner: impl FnOnce() -> Closure<(), Runner>) -> Arc<Code> {
        let code = || self.code(runner());
        if self.check_owner().is_err() {
            return code();
        }
        let mut functions = self.functions.lock();
        let code = functions.entry(key).or_insert_with(code);
        Arc::clone(code)
    }

    /// Creates the code of a closure. Workers forget it when its tasks are done.
    pub(crate) fn closure<A: Message, R: IntoOutcome>(self: &Arc<Self>, closure: Closure<A, R>) -> Arc<Code> {
        self.code(Closure::from_parts((closure, ()), |(closure, ()): &(Closure<A, R>, ()), (): ()| {
            let closure = closure.clone();
            Runner::new(move |args| closure.call(args))
        }))
    }

    /// Creates the code of a closure that receives the worker's state.
    pub(crate) fn closure_with_state<S, A, R>(self: &Arc<Self>, closure: StateClosure<S, A, R>) -> Arc<Code>
    where
        S: 'static,
        A: Message,
        R: IntoOutcome,
    {
        self.code(Closure::from_parts(
            (closure, ()),
            |(closure, ()): &(StateClosure<S, A, R>, ()), (): ()| {
                Runner::with_borrowed_state(closure.clone())
            },
        ))
    }

    /// Wakes the pool's thread to check events and deadlines.
    pub(crate) fn ring(&self) {
        // If the queue is full, the thread is awake.
        _ = self.replies.try_put(Reply::Wake);
        drop(self.events.lock());
        self.rang.notify_all();
    }

    /// Reports that the process of a worker has ended.
    pub(crate) fn exited(&self, exited: Exited) {
        self.events.lock().push(exited);
        self.ring();
    }

    /// Accepts `tasks` more tasks of a call. `bring` stores them after they are counted and before any thread
    /// reads them. Returns `false` if the pool accepts none: then the tasks fail, and `bring` is dropped,
    /// which catches panics of each of several values ([`Each`](mp_core::user_code::Each)).
    pub(crate) fn submit(&self, job: &Arc<Job>, tasks: usize, bring: impl FnOnce()) -> bool {
        let first = job.expect(tasks);
        self.submit_expected(job, first..first + tasks, bring)
    }

    /// Like [`submit`](Self::submit), for tasks whose outcomes are already expected.
    pub(crate) fn submit_expected(&self, job: &Arc<Job>, tasks: Range<usize>, bring: impl FnOnce()) -> bool {
        if let Err(error) = self.count(tasks.len()) {
            // Only these tasks fail: a closed pool still runs the earlier tasks of the call.
            let mut settled = Settled::new(self);
            if !tasks.is_empty() {
                settled.add_run(job, Run::failed(tasks, error));
            }
            settled.tell();
            drop_caught(bring);
            return false;
        }
        bring();
        if let Some(error) = self.enlist(job) {
            let mut settled = Settled::new(self);
            settled.add_rest(job, &error);
            return false;
        }
        self.feed();
        if job.terms.timeout.is_some() {
            self.ring();
        }
        true
    }

    /// Counts tasks that will be submitted. They are counted even if an error is returned, except in a forked
    /// process.
    fn count(&self, tasks: usize) -> Result<(), TaskError> {
        if self.check_owner().is_err() {
            return Err(self.closed());
        }
        let mut state = self.state.lock();
        state.unsettled += tasks;
        match &state.phase {
            Phase::Open if self.is_interrupted() => Err(TaskError::Interrupted),
            Phase::Open => Ok(()),
            Phase::Closed | Phase::Terminating => Err(self.closed()),
            Phase::Broken(why) => Err(TaskError::Broken(Arc::clone(why))),
        }
    }

    /// Returns the error of a task that is submitted too late.
    fn closed(&self) -> TaskError {
        TaskError::Closed { pool: self.settings.name.clone() }
    }

    /// Schedules the tasks of a call. Returns an error if the pool is ending.
    fn enlist(&self, job: &Arc<Job>) -> Option<TaskError> {
        let mut state = self.state.lock();
        let error = state.phase.error();
        if error.is_none() {
            state.enlist(job);
        }
        error
    }

    /// Schedules a failed task again, or returns it if it has its final outcome. No lock may be held.
    pub(crate) fn try_again(&self, mut failed: Failed) -> Option<Failed> {
        let Failed { job, index, tries, kept, error, .. } = &mut failed;
        let (tries, index) = (*tries + 1, *index);
        let attempts = error.after(job.slots().failed.remove(&index));
        let Some(delay) = kept.as_ref().and_then(|_| job.terms.retry.wait(tries, error)) else {
            return Some(failed);
        };
        let mut state = self.state.lock();
        if state.phase.error().is_some() || job.is_cancelled() || self.is_interrupted() {
            drop(state);
            return Some(failed);
        }
        let Some(kept) = failed.kept.take() else { return Some(failed) };
        state.retried += 1;
        let lost = Lost { index, tries, kept };
        let job = failed.job;
        job.slots().failed.insert(index, attempts);
        if delay.is_zero() {
            job.again(lost);
            state.enlist(&job);
        } else {
            // A delay beyond the range of the clock is effectively infinite.
            let at = Instant::now().checked_add(delay).unwrap_or_else(|| Instant::now() + NEVER);
            state.try_later(at, Later { job, lost });
        }
        None
    }

    /// Returns `true` if the maximum number of tasks wait.
    pub(crate) fn is_full(&self) -> bool {
        if self.check_owner().is_err() {
            return false;
        }
        let state = self.state.lock();
        state.is_open() && state.unsettled >= self.settings.max_waiting
    }

    /// Wakes as many waiting futures as there is room for. No lock may be held.
    pub(crate) fn wake_waiting(&self) {
        let most = self.settings.max_waiting;
        if most == usize::MAX {
            return;
        }
        let room = {
            let state = self.state.lock();
            if state.is_open() { most.saturating_sub(state.unsettled) } else { usize::MAX }
        };
        self.room.wake(room);
    }

    /// Wakes callers that wait for room to push into a stream that was closed.
    pub(crate) fn stream_is_closed(&self) {
        if self.settings.max_waiting == usize::MAX {
            return;
        }
        // Any thread that has checked before sleeps by now, and is woken.
        drop(self.state.lock());
        self.changed.notify_all();
        self.room.wake_all();
    }

    /// Waits until the pool is not full, or `closed` returns `true`. Returns `false` at the time limit.
    /// Returns `true` at once in the pool's thread, which runs callbacks and would wait for itself.
    pub(crate) fn wait_for_room(&self, until: Option<Instant>, closed: impl Fn() -> bool) -> bool {
        let here = std::thread::current().id();
        let is_here = self.thread.get() == Some(&here);
        if self.settings.max_waiting == usize::MAX || self.check_owner().is_err() || is_here {
            return true;
        }
        let most = self.settings.max_waiting;
        let subject = || {
            let About { pool, pids, running } = self.about(None);
            let state = format!("{pool}, for room for one more task: {most} wait{running}");
            Subject::other(Call::Pool, On::Processes(pids), state)
        };
        let has_room = |state: &State| !state.is_open() || state.unsettled < most || closed();
        wait_at(&self.changed, &mut self.state.lock(), until, has_room, subject)
    }

    /// Cancels the tasks of a call that have not begun, including tasks that a worker is taking and is about
    /// to begin. Returns their number.
    pub(crate) fn cancel_all(&self, job: &Arc<Job>) -> usize {
        // A forked process has neither the workers nor their memory.
        if self.check_owner().is_err() {
            return 0;
        }
        let mut count = self.cancel(job);
        let until = Instant::now() + TAKING;
        // The pool's thread would wait for replies that only it receives.
        while self.thread.get() != Some(&std::thread::current().id())
            && self.state.lock().workers.iter_mut().any(|worker| worker.is_taking(Some(job)))
            && Instant::now() < until
        {
            std::thread::sleep(TAKING / 1000);
            count += self.cancel(job);
        }
        // Cancels tasks that came back from a worker since then, among the returned ones or in the hand of a
        // thread.
        count += self.cancel(job);
        count + job.hand.take_late()
    }

    /// Cancels the tasks of a call that have not begun, and returns their number.
    pub(crate) fn cancel(&self, job: &Arc<Job>) -> usize {
        if self.check_owner().is_err() {
            return 0;
        }
        let mut settled = Settled::new(self);
        let in_hand = {
            let mut state = self.state.lock();
            if state.phase.error().is_some() {
                // The end of the pool settles them, with its own error.
                return 0;
            }
            // Under the state's lock, tasks in the hand of a thread are neither with a worker nor returned.
            let in_hand = settled.add_rest(job, &TaskError::Cancelled);
            let State { workers, returned, jobs, later, emptied, .. } = &mut *state;
            jobs.retain(|listed| !Arc::ptr_eq(listed, job));
            // Tasks that were to be retried are cancelled. From now on, no task is retried.
            settled.add_lost(job, &TaskError::Cancelled);
            let is_its = |later: &Later| Arc::ptr_eq(&later.job, job);
            if later.values().any(is_its) {
                let (its, others) = std::mem::take(later).into_iter().partition(|(_, later)| is_its(later));
                *later = others;
                settled.add_later(its, &TaskError::Cancelled);
            }
            for worker in workers.iter_mut() {
                if worker.has_more_of(job) {
                    returned.extend(worker.recall_all(false));
                }
                let (rest, nothing) = worker.cut_all_of(job, next_chunk());
                returned.extend(rest.map(Ready::rest));
                emptied.extend(nothing);
            }
            for ready in std::mem::take(returned) {
                if Arc::ptr_eq(&ready.chunk.job, job) {
                    settled.add(ready.chunk, TaskError::Cancelled);
                } else {
                    returned.push_back(ready);
                }
            }
            in_hand
        };
        let count = settled.len() + in_hand;
        settled.tell();
        self.feed();
        count
    }

    /// Delivers outcomes to their calls. All are settled before user code runs: callbacks, wakers, and drops
    /// of kept values. No lock may be held.
    pub(crate) fn hand_out(&self, outcomes: Vec<(Arc<Job>, Vec<Run>)>) {
        if outcomes.is_empty() {
            return;
        }
        let now = Instant::now();
        // Locked until outcomes are settled and counted, so a caller that has a result finds it counted.
        let mut meter = self.check_owner().is_ok().then(|| self.meter.lock());
        let mut count = 0;
        let mut told: Vec<Arc<Job>> = Vec::new();
        for (job, runs) in outcomes {
            let look = |run: &Run| (run.count, run.ran, Ends::of(run.error(), run.count as u64));
            job.settle(runs, look, |(tasks, ran, ends), brought| {
                count += tasks;
                let tasks = tasks as u64;
                if let Some(meter) = meter.as_mut() {
                    meter.ends.add(ends);
                    if let Some(ran) = ran {
                        // The rest of the time since submission was waiting time.
                        meter.waiting.add(now.saturating_duration_since(brought).saturating_sub(ran), tasks);
                        meter.running.add(ran, tasks);
                    }
                }
            });
            if told.last().is_none_or(|last| !Arc::ptr_eq(last, &job)) {
                told.push(job);
            }
        }
        let last = (count > 0 && meter.is_some()).then(|| {
            let mut state = self.state.lock();
            debug_assert!(state.unsettled >= count, "{count} more settled of {}", state.unsettled);
            state.unsettled = state.unsettled.saturating_sub(count);
            state.unsettled == 0 && !state.is_open()
        });
        drop(meter);
        if let Some(last) = last {
            self.changed.notify_all();
            self.wake_waiting();
            if last {
                // The workers may end now.
                self.ring();
            }
        }
        told.iter().for_each(|job| job.notify());
    }

    /// Stops accepting tasks, and ends the workers. `phase` contains the reason.
    pub(crate) fn stop(&self, phase: Phase) {
        let Some(error) = phase.error() else { return };
        let (jobs, returned, later) = {
            let mut state = self.state.lock();
            if state.phase.error().is_some() {
                return;
            }
            state.phase = phase;
            self.changed.notify_all();
            let (jobs, returned) = (std::mem::take(&mut state.jobs), std::mem::take(&mut state.returned));
            (jobs, returned, std::mem::take(&mut state.later))
        };
        let mut settled = Settled::new(self);
        settled.add_later(later, &error);
        jobs.iter().for_each(|job| _ = settled.add_rest(job, &error));
        returned.into_iter().for_each(|ready| settled.add(ready.chunk, error.clone()));
        settled.tell();
        self.wake_waiting();
        self.ring();
    }

    /// Breaks the pool: no worker is alive, and none can be started.
    pub(crate) fn break_off(&self, broken: Broken) {
        self.stop(Phase::Broken(Arc::new(broken)));
    }

    /// Breaks the pool with only a description.
    pub(crate) fn break_off_saying(&self, why: impl Into<String>) {
        self.break_off(Broken::said(self.settings.name.clone(), why));
    }

    /// Stops accepting tasks. The workers end when the remaining tasks are done.
    pub(crate) fn close(&self) {
        {
            let mut state = self.state.lock();
            if state.is_open() {
                state.phase = Phase::Closed;
            }
        }
        self.changed.notify_all();
        self.wake_waiting();
        self.ring();
    }

    /// Takes the functions without users.
    pub(crate) fn take_unused(&self) -> Vec<u64> {
        std::mem::take(&mut *self.unused.lock())
    }
}

impl Functions for Shared {
    fn is_unused(&self, code: u64) {
        if self.check_owner().is_err() {
            return;
        }
        self.unused.lock().push(code);
        self.ring();
    }

    fn about(&self, job: Option<&Job>) -> About {
        let pool = self.settings.pool_name();
        if self.check_owner().is_err() {
            return About { pool, ..About::default() };
        }
        let state = self.state.lock();
        let living = state.workers.iter().filter(|worker| worker.process.is_some());
        let pids = living.map(|worker| worker.pid).collect();
        let running = state.running_of(job).iter().map(|task| format!("; {task}")).collect();
        About { pool, pids, running }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::job::Terms;
    use crate::calls::job::tests::job;
    use crate::watch::Watch;
    use crate::workers::state::Worker;

    /// Returns the state of a pool without a thread, whose only worker has not begun.
    fn shared() -> Shared {
        let form = Queue::bounded(4).unwrap();
        let state = State::new(vec![Worker::new(form.clone(), Watch::new().unwrap())]);
        Shared::new(Settings::default(), Queue::bounded(4).unwrap(), form, state)
    }

    /// Returns `true` if the pool's thread would be awake now.
    fn rang(shared: &Shared) -> bool {
        matches!(shared.replies.try_get(), Ok(Some(Reply::Wake)))
    }

    /// Otherwise the thread would notice the death at its next periodic check, after a second.
    #[test]
    fn a_death_wakes_the_thread_of_the_pool() {
        let shared = shared();
        shared.exited(Exited { worker: 0, pid: 1 });
        assert!(rang(&shared));
        assert!(!rang(&shared), "once");
    }

    #[test]
    fn the_time_of_a_task_is_told_to_the_thread_of_the_pool() {
        let shared = shared();
        for (timeout, rings) in [(Some(Duration::from_millis(1)), true), (None, false)] {
            let job = job(0, Terms { timeout, ..Terms::default() });
            assert!(shared.submit(&job, 1, || ()));
            assert_eq!(rang(&shared), rings, "{timeout:?}");
        }
    }

    /// Tasks that were submitted before are run by the workers, or get another outcome.
    #[test]
    fn what_is_refused_takes_nothing_else_of_its_call_along() {
        let shared = shared();
        let job = job(0, Terms::default());
        assert!(shared.submit(&job, 2, || ()));
        shared.state.lock().phase = Phase::Closed;
        assert!(!shared.submit(&job, 1, || panic!("it is not brought")));
        let progress = job.slots().progress();
        assert_eq!((progress.done, progress.failed, progress.total), (1, 1, 3));
        assert!(!job.is_cancelled());
        assert_eq!(shared.state.lock().unsettled, 2);
    }

    #[test]
    fn the_end_of_the_last_task_wakes_the_thread_of_a_closed_pool() {
        let shared = shared();
        let job = job(2, Terms::default());
        *shared.state.lock() = State { phase: Phase::Closed, unsettled: 2, ..State::new(Vec::new()) };
        for (index, rings) in [(0, false), (1, true)] {
            let mut settled = Settled::new(&shared);
            settled.add_run(&job, Run::failed(index..index + 1, TaskError::Cancelled));
            settled.tell();
            assert_eq!(rang(&shared), rings, "after task {index}");
        }
    }
}
