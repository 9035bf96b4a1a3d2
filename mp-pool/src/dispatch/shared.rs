//! What the pool's handle, its calls and its thread have in common: giving tasks to workers, and outcomes to calls.
//!
//! A task is counted before any other thread can see it, and settled once; so the count says when there is
//! nothing left.

use std::any::TypeId;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

use mp_core::message::IntoOutcome;
use mp_core::mutex::{Condvar, Mutex};
use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU64;
use mp_core::user_code::Apart;
use mp_queue::Queue;
use mp_reduce::Message;
use mp_spawn::Closure;
use mp_tensor::SharedTensor;

use crate::dispatch::job::{Code, Job, Lost, Outcome, Rubbish};
use crate::dispatch::settings::Settings;
use crate::dispatch::state::{Phase, State, Taken};
use crate::error::{PoolError, TaskError};
use crate::message::{Reply, Runner, Task};

/// The process of a worker has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exited {
    pub(crate) worker: usize,
    pub(crate) pid: u32,
}

/// Outcomes that are to be reported once no lock is held: when this is dropped, also by a panic. So it is
/// made before a lock is taken, and goes after it.
pub(crate) struct Settled<'a> {
    shared: &'a Shared,
    outcomes: Vec<(Taken, Outcome)>,
    /// Dropped when all have been reported.
    rubbish: Vec<Rubbish>,
}

impl<'a> Settled<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        Settled { shared, outcomes: Vec::new(), rubbish: Vec::new() }
    }

    pub(crate) fn add(&mut self, taken: Taken, outcome: Outcome) {
        self.outcomes.push((taken, outcome));
    }

    pub(crate) fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// Of tasks that never left their call.
    fn add_rest(&mut self, job: &Arc<Job>, error: &TaskError) {
        let (lost, rest, rubbish) = job.cancel();
        self.rubbish.push(rubbish);
        self.add_all(job, lost, error);
        for index in rest {
            let taken = Taken { id: 0, job: Arc::clone(job), index, tries: 0, kept: None };
            self.add(taken, Err(error.clone()));
        }
    }

    /// Of tasks that were to be tried again.
    fn add_lost(&mut self, job: &Arc<Job>, error: &TaskError) {
        self.add_all(job, job.dead_letter(), error);
    }

    fn add_all(&mut self, job: &Arc<Job>, lost: Vec<Lost>, error: &TaskError) {
        for Lost { index, tries, kept } in lost {
            let taken = Taken { id: 0, job: Arc::clone(job), index, tries, kept: Some(kept) };
            self.add(taken, Err(error.clone()));
        }
    }

    /// Hands the outcomes to their calls. No lock may be held.
    pub(crate) fn tell(self) {
        drop(self);
    }
}

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        self.shared.hand_out(std::mem::take(&mut self.outcomes));
        // Each lets no panic out.
        self.rubbish.clear();
    }
}

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    /// The process that made the pool. In a copy of it, nothing here is locked: other threads may have held the locks when
    /// it was copied.
    owner: u32,
    /// How many workers it has.
    pub(crate) workers: usize,
    pub(crate) replies: Queue<Reply>,
    /// Any of the queues of tasks: messages for all of them are packed alike.
    pub(crate) form: Queue<Task>,
    pub(crate) watch: SharedTensor<u64>,
    pub(crate) state: Mutex<State>,
    /// Tasks have been settled, or the pool is over.
    pub(crate) changed: Condvar,
    pub(crate) events: Mutex<Vec<Exited>>,
    /// There is an event, for a thread that can't wait for replies because no worker is there.
    pub(crate) rang: Condvar,
    functions: Mutex<HashMap<TypeId, Arc<Code>>>,
    /// Functions that have no user any more.
    unused: Mutex<Vec<u64>>,
    ids: AtomicU64,
    /// The pool's thread, once it runs.
    pub(crate) thread: OnceLock<ThreadId>,
}

impl Shared {
    pub(crate) fn new(
        settings: Settings,
        replies: Queue<Reply>,
        form: Queue<Task>,
        watch: SharedTensor<u64>,
        state: State,
    ) -> Self {
        Shared {
            settings,
            owner: std::process::id(),
            workers: state.workers.len(),
            replies,
            form,
            watch,
            state: Mutex::new(state),
            changed: Condvar::new(),
            events: Mutex::new(Vec::new()),
            rang: Condvar::new(),
            functions: Mutex::new(HashMap::new()),
            unused: Mutex::new(Vec::new()),
            ids: AtomicU64::new(1),
            thread: OnceLock::new(),
        }
    }

    pub(crate) fn check_owner(&self) -> Result<(), PoolError> {
        if self.owner == std::process::id() {
            Ok(())
        } else {
            Err(PoolError::OtherProcess { owner: self.owner })
        }
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn code(self: &Arc<Self>, runner: Closure<(), Runner>) -> Arc<Code> {
        Arc::new(Code { number: self.next_id(), runner: Apart::new(runner), pool: Arc::downgrade(self) })
    }

    /// The code of a function, which is sent to each worker once.
    pub(crate) fn function<F, A, R>(self: &Arc<Self>, function: F) -> Arc<Code>
    where
        F: Fn(A) -> R + Copy + Send + 'static,
        A: Message,
        R: IntoOutcome,
    {
        let key = TypeId::of::<PhantomData<fn(F, A) -> R>>();
        let code = || self.code(Closure::from_parts((), move |(): &(), (): ()| Runner::new(function)));
        if self.check_owner().is_err() {
            return code();
        }
        let mut functions = self.functions.lock();
        let code = functions.entry(key).or_insert_with(code);
        Arc::clone(code)
    }

    /// The code of a closure; workers forget it when its tasks are done.
    pub(crate) fn closure<A: Message, R: IntoOutcome>(self: &Arc<Self>, closure: Closure<A, R>) -> Arc<Code> {
        self.code(Closure::from_parts((closure, ()), |(closure, ()): &(Closure<A, R>, ()), (): ()| {
            let closure = closure.clone();
            Runner::new(move |args| closure.call(args))
        }))
    }

    /// Lets the pool's thread look at events and deadlines.
    pub(crate) fn ring(&self) {
        // When it is full, the thread is awake.
        _ = self.replies.try_put(Reply::Wake);
        drop(self.events.lock());
        self.rang.notify_all();
    }

    /// The process of a worker has ended.
    pub(crate) fn exited(&self, exited: Exited) {
        self.events.lock().push(exited);
        if !mp_core::mutant!("pool.death-not-rung") {
            self.ring();
        }
    }

    /// Takes over `tasks` more tasks of a call; `bring` puts them into it, once they are counted and before
    /// any thread looks for them. False if the pool takes none: then they have an error.
    pub(crate) fn submit(&self, job: &Arc<Job>, tasks: usize, bring: impl FnOnce()) -> bool {
        job.expect(tasks);
        let refused = self.count(tasks).err();
        bring();
        if let Some(error) = refused.or_else(|| self.enlist(job)) {
            let mut settled = Settled::new(self);
            settled.add_rest(job, &error);
            return false;
        }
        self.feed();
        if job.terms.timeout.is_some() && !mp_core::mutant!("pool.timeout-not-told") {
            self.ring();
        }
        true
    }

    /// Counts tasks that will come. They are counted also if there is an error, but for a forked process.
    fn count(&self, tasks: usize) -> Result<(), TaskError> {
        if self.check_owner().is_err() {
            return Err(TaskError::Closed);
        }
        let mut state = self.state.lock();
        state.unsettled += tasks;
        match &state.phase {
            Phase::Open => Ok(()),
            Phase::Closed | Phase::Terminating => Err(TaskError::Closed),
            Phase::Broken(why) => Err(TaskError::Broken(Arc::clone(why))),
        }
    }

    /// Has the tasks of a call sent; why not, if the pool is being ended.
    fn enlist(&self, job: &Arc<Job>) -> Option<TaskError> {
        let mut state = self.state.lock();
        let error = state.phase.error();
        if error.is_none() {
            state.enlist(job);
        }
        error
    }

    /// Whether as many tasks wait as may.
    pub(crate) fn is_full(&self) -> bool {
        if self.check_owner().is_err() {
            return false;
        }
        let state = self.state.lock();
        state.is_open() && state.unsettled >= self.settings.max_waiting
    }

    /// Waits until not too many tasks wait. The pool's thread, which a callback runs in, would wait for itself.
    pub(crate) fn wait_for_room(&self) {
        let here = Some(&std::thread::current().id());
        if self.settings.max_waiting == usize::MAX || self.check_owner().is_err() || self.thread.get() == here
        {
            return;
        }
        let mut state = self.state.lock();
        while state.is_open() && state.unsettled >= self.settings.max_waiting {
            self.changed.wait(&mut state);
        }
    }

    /// Takes back the tasks of a call that have not begun; how many.
    pub(crate) fn cancel(&self, job: &Arc<Job>) -> usize {
        if self.check_owner().is_err() {
            return 0;
        }
        let mut settled = Settled::new(self);
        settled.add_rest(job, &TaskError::Cancelled);
        {
            let mut state = self.state.lock();
            let State { workers, returned, jobs, .. } = &mut *state;
            jobs.retain(|listed| !Arc::ptr_eq(listed, job));
            // What was to be tried again just before; from now on, nothing is.
            settled.add_lost(job, &TaskError::Cancelled);
            for worker in workers.iter_mut().filter(|worker| worker.has_more_of(job)) {
                returned.extend(worker.recall_all(false));
            }
            for ready in std::mem::take(returned) {
                if Arc::ptr_eq(&ready.taken.job, job) {
                    settled.add(ready.taken, Err(TaskError::Cancelled));
                } else {
                    returned.push_back(ready);
                }
            }
        }
        let count = settled.len();
        settled.tell();
        self.feed();
        count
    }

    /// Hands outcomes to their calls. All are settled before code of the user runs: callbacks, wakers, and the drop of what was
    /// kept. No lock may be held.
    fn hand_out(&self, outcomes: Vec<(Taken, Outcome)>) {
        let mut count = 0;
        let mut told: Vec<Arc<Job>> = Vec::new();
        let mut kept = Vec::new();
        for (taken, outcome) in outcomes {
            let Taken { job, index, kept: copy, .. } = taken;
            count += usize::from(job.settle(index, outcome));
            kept.extend(copy);
            if told.last().is_none_or(|last| !Arc::ptr_eq(last, &job)) {
                told.push(job);
            }
        }
        if count > 0 && self.check_owner().is_ok() {
            let last = {
                let mut state = self.state.lock();
                debug_assert!(state.unsettled >= count, "{count} more settled of {}", state.unsettled);
                state.unsettled = state.unsettled.saturating_sub(count);
                state.unsettled == 0 && !state.is_open()
            };
            self.changed.notify_all();
            if last {
                // The workers may end now.
                if !mp_core::mutant!("pool.end-not-rung") {
                    self.ring();
                }
            }
        }
        told.iter().for_each(|job| job.notify());
        // Each lets no panic out.
        drop(kept);
    }

    /// Takes no more tasks, and ends the workers: `phase` says why.
    pub(crate) fn stop(&self, phase: Phase) {
        let Some(error) = phase.error() else { return };
        let (jobs, returned) = {
            let mut state = self.state.lock();
            if state.phase.error().is_some() {
                return;
            }
            state.phase = phase;
            self.changed.notify_all();
            if mp_core::mutant!("pool.stop.jobs-kept") {
                return;
            }
            (std::mem::take(&mut state.jobs), std::mem::take(&mut state.returned))
        };
        let mut settled = Settled::new(self);
        jobs.iter().for_each(|job| settled.add_rest(job, &error));
        returned.into_iter().for_each(|ready| settled.add(ready.taken, Err(error.clone())));
        settled.tell();
        self.ring();
    }

    /// No worker lives, and none can be started.
    pub(crate) fn break_off(&self, why: &str) {
        self.stop(Phase::Broken(why.into()));
    }

    /// Takes no more tasks; the workers end when those that there are are done.
    pub(crate) fn close(&self) {
        {
            let mut state = self.state.lock();
            if state.is_open() {
                state.phase = Phase::Closed;
            }
        }
        self.ring();
    }

    /// This function has no user any more. May be called with the lock of the state.
    pub(crate) fn is_unused(&self, code: u64) {
        if self.check_owner().is_err() {
            return;
        }
        self.unused.lock().push(code);
        self.ring();
    }

    /// The functions that have no user any more.
    pub(crate) fn take_unused(&self) -> Vec<u64> {
        std::mem::take(&mut *self.unused.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mp_tensor::Tensor;

    use super::*;
    use crate::dispatch::job::Terms;
    use crate::dispatch::job::tests::job;
    use crate::dispatch::state::Worker;

    /// Of a pool without a thread, whose one worker has not begun.
    fn shared() -> Shared {
        let form = Queue::bounded(4).unwrap();
        let state = State::new(vec![Worker::new(form.clone())]);
        let watch = Tensor::zeros(&[2]).unwrap().share();
        Shared::new(Settings::default(), Queue::bounded(4).unwrap(), form, watch, state)
    }

    /// Whether the pool's thread would be awake now.
    fn rang(shared: &Shared) -> bool {
        matches!(shared.replies.try_get(), Ok(Some(Reply::Wake)))
    }

    /// Else it would be noticed when the thread looks by itself the next time, after a second.
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

    #[test]
    fn the_end_of_the_last_task_wakes_the_thread_of_a_closed_pool() {
        let shared = shared();
        let job = job(2, Terms::default());
        *shared.state.lock() = State { phase: Phase::Closed, unsettled: 2, ..State::new(Vec::new()) };
        for (index, rings) in [(0, false), (1, true)] {
            let taken = Taken { id: 0, job: Arc::clone(&job), index, tries: 0, kept: None };
            let mut settled = Settled::new(&shared);
            settled.add(taken, Err(TaskError::Cancelled));
            settled.tell();
            assert_eq!(rang(&shared), rings, "after task {index}");
        }
    }
}
