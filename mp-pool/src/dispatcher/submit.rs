//! Submission of tasks, and their functions, which are sent to each worker once.

use std::any::TypeId;
use std::marker::PhantomData;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use mp_core::message::IntoOutcome;
use mp_core::user_code::{UserValue, drop_caught};
use mp_reduce::Message;
use mp_spawn::{CapturesNothing, Closure, StateClosure};

use crate::child::runner::Runner;
use crate::dispatcher::settlements::Settlements;
use crate::dispatcher::shared::PoolShared;
use crate::error::TaskError;
use crate::slots::state::PoolPhase;
use crate::tasks::call_state::{CallState, TaskFunction};
use crate::tasks::outcome_run::OutcomeRun;

impl PoolShared {
    /// Accepts `tasks` more tasks of a call. `store` stores them after they are counted and before any thread
    /// reads them. Returns `false` if the pool accepts no tasks. Then the tasks fail, and `store` is dropped.
    /// The values in `store` are [`UserValues`](mp_core::user_code::UserValues), whose drop catches the
    /// panics of each value.
    pub(crate) fn submit(&self, job: &Arc<CallState>, tasks: usize, store: impl FnOnce()) -> bool {
        let first = job.expect(tasks);
        self.submit_expected(job, first..first + tasks, store)
    }

    /// Like [`submit`](Self::submit), for tasks whose outcomes are already expected.
    pub(crate) fn submit_expected(
        &self,
        job: &Arc<CallState>,
        tasks: Range<usize>,
        store: impl FnOnce(),
    ) -> bool {
        if let Err(error) = self.count(tasks.len()) {
            // Only these tasks fail: a closed pool still runs the earlier tasks of the call.
            let mut settled = Settlements::new(self);
            if !tasks.is_empty() {
                settled.add_run(job, OutcomeRun::failed(tasks, error));
            }
            settled.deliver();
            drop_caught(store);
            return false;
        }
        store();
        let error = {
            let mut state = self.state.lock();
            let error = state.phase.error();
            if error.is_none() {
                state.tasks.enlist(job);
            }
            error
        };
        if let Some(error) = error {
            let mut settled = Settlements::new(self);
            settled.add_rest(job, &error);
            return false;
        }
        self.feed();
        true
    }

    /// Counts tasks that will be submitted. Returns an error if the pool accepts none. The tasks are counted
    /// even then, because they are settled with the error. In a forked process, nothing is counted.
    fn count(&self, tasks: usize) -> Result<(), TaskError> {
        if self.check_owner().is_err() {
            return Err(self.closed());
        }
        let mut state = self.state.lock();
        state.unsettled += tasks;
        state.publish();
        match &state.phase {
            PoolPhase::Open if self.is_interrupted() => Err(TaskError::Interrupted),
            PoolPhase::Open => Ok(()),
            PoolPhase::Closed | PoolPhase::Terminating => Err(self.closed()),
            PoolPhase::Broken(why) => Err(TaskError::Broken(Arc::clone(why))),
        }
    }

    /// Returns the error of a task that is submitted too late.
    fn closed(&self) -> TaskError {
        TaskError::Closed { pool: self.settings.name.clone() }
    }
}

/// Future that is ready when there is room for a task, or the pool accepts none.
pub(crate) struct RoomFuture {
    shared: Arc<PoolShared>,
    /// Position where the future waits, or has waited.
    position: Option<u64>,
}

impl RoomFuture {
    pub(crate) fn new(shared: &Arc<PoolShared>) -> RoomFuture {
        RoomFuture { shared: Arc::clone(shared), position: None }
    }
}

impl Future for RoomFuture {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.shared.is_full() {
            // Cloning a waker is user code, so it happens without the lock.
            let waker = UserValue::new(context.waker().clone());
            self.position = Some(self.shared.room.wait(self.position, waker));
            // Tasks that were settled before the waker was stored have woken other futures.
            if self.shared.is_full() {
                return Poll::Pending;
            }
        }
        // In a fork of the process that created the pool, nothing is locked.
        if let Some(position) = self.position.take()
            && self.shared.check_owner().is_ok()
        {
            self.shared.room.leave(position);
        }
        Poll::Ready(())
    }
}

impl Drop for RoomFuture {
    fn drop(&mut self) {
        if let Some(position) = self.position
            && self.shared.check_owner().is_ok()
            && !self.shared.room.leave(position)
        {
            self.shared.wake_waiting();
        }
    }
}

impl PoolShared {
    pub(crate) fn code(self: &Arc<Self>, runner: Closure<(), Runner>) -> Arc<TaskFunction> {
        let pool: Weak<Self> = Arc::downgrade(self);
        Arc::new(TaskFunction { number: self.next_id(), runner: UserValue::new(runner), pool })
    }

    /// Returns the stored [`TaskFunction`] of a function. Each worker is sent the function once.
    pub(crate) fn function<F, A, R>(self: &Arc<Self>, function: F) -> Arc<TaskFunction>
    where
        F: Fn(A) -> R + CapturesNothing,
        A: Message,
        R: IntoOutcome,
    {
        let key = TypeId::of::<PhantomData<fn(F, A) -> R>>();
        self.function_code(key, || Closure::from_parts((), move |(): &(), (): ()| Runner::new(function)))
    }

    /// Returns the stored [`TaskFunction`] of a function that receives the worker's state.
    pub(crate) fn function_with_state<S, F, A, R>(self: &Arc<Self>, function: F) -> Arc<TaskFunction>
    where
        S: 'static,
        F: Fn(&mut S, A) -> R + CapturesNothing,
        A: Message,
        R: IntoOutcome,
    {
        let key = TypeId::of::<PhantomData<fn(F, PhantomData<S>, A) -> R>>();
        self.function_code(key, || {
            Closure::from_parts((), move |(): &(), (): ()| Runner::with_state(function))
        })
    }

    fn function_code(
        self: &Arc<Self>,
        key: TypeId,
        runner: impl FnOnce() -> Closure<(), Runner>,
    ) -> Arc<TaskFunction> {
        let code = || self.code(runner());
        if self.check_owner().is_err() {
            return code();
        }
        let mut functions = self.functions.lock();
        let code = functions.entry(key).or_insert_with(code);
        Arc::clone(code)
    }

    /// Creates a [`TaskFunction`] of a closure. Workers forget the closure when its tasks are done.
    pub(crate) fn closure<A: Message, R: IntoOutcome>(
        self: &Arc<Self>,
        closure: Closure<A, R>,
    ) -> Arc<TaskFunction> {
        self.code(Closure::from_parts((closure, ()), |(closure, ()): &(Closure<A, R>, ()), (): ()| {
            let closure = closure.clone();
            Runner::new(move |args| closure.call(args))
        }))
    }

    /// Creates a [`TaskFunction`] of a closure that receives the worker's state.
    pub(crate) fn closure_with_state<S, A, R>(
        self: &Arc<Self>,
        closure: StateClosure<S, A, R>,
    ) -> Arc<TaskFunction>
    where
        S: 'static,
        A: Message,
        R: IntoOutcome,
    {
        self.code(Closure::from_parts(
            (closure, ()),
            |(closure, ()): &(StateClosure<S, A, R>, ()), (): ()| Runner::with_state_closure(closure.clone()),
        ))
    }

    /// Takes the functions without users.
    pub(crate) fn take_unused(&self) -> Vec<u64> {
        std::mem::take(&mut *self.unused.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Weak;
    use std::time::Duration;

    use super::*;
    use crate::dispatcher::shared::tests::{is_awake, shared};
    use crate::tasks::call_state::CallOptions;
    use crate::tasks::call_state::tests::{RecordingOwner, job, job_from};
    use crate::tasks::source::ItemSource;

    /// Returns a call with one task.
    fn one_task(options: CallOptions) -> Arc<CallState> {
        let source = ItemSource::new(false);
        source.push(std::iter::once(7).collect::<VecDeque<u64>>().into());
        job_from(source, Weak::<RecordingOwner>::new(), options)
    }

    /// The pool's thread may have read the interrupt just before the program acknowledged it.
    #[test]
    fn acknowledged_interrupt_ends_no_later_task() {
        let (shared, job) = (shared(), one_task(CallOptions::default()));
        assert!(shared.submit(&job, 1, || ()));
        shared.interrupt();
        assert_eq!(job.source.remaining(), 1);
    }

    #[test]
    fn assigned_task_with_timeout_wakes_the_pool_thread() {
        for (timeout, rings) in [(None, false), (Some(Duration::from_millis(1)), true)] {
            let shared = shared();
            shared.state.lock().workers[0].ready = true;
            let options = CallOptions { timeout, ..CallOptions::default() };
            let job = one_task(options);
            assert!(shared.submit(&job, 1, || ()));
            assert_eq!(shared.state.lock().workers[0].outstanding, 1);
            assert_eq!(is_awake(&shared), rings, "{timeout:?}");
        }
    }

    /// Earlier tasks of the call are run by the workers, or get another outcome.
    #[test]
    fn refused_task_keeps_earlier_tasks_of_its_call() {
        let shared = shared();
        let job = job(0, CallOptions::default());
        assert!(shared.submit(&job, 2, || ()));
        shared.state.lock().phase = PoolPhase::Closed;
        assert!(!shared.submit(&job, 1, || panic!("the task is refused")));
        let progress = job.outcomes().progress;
        assert_eq!((progress.done, progress.failed, progress.total), (1, 1, 3));
        assert!(!job.is_cancelled());
        assert_eq!(shared.state.lock().unsettled, 2);
    }
}
