//! Submission of tasks.

use std::ops::Range;
use std::sync::Arc;

use mp_core::user_code::drop_caught;

use crate::dispatcher::settlements::Settlements;
use crate::dispatcher::shared::PoolShared;
use crate::error::TaskError;
use crate::tasks::call_state::CallState;
use crate::tasks::outcome_run::OutcomeRun;
use crate::workers::state::PoolPhase;

impl PoolShared {
    /// Accepts `tasks` more tasks of a call. `store` stores them after they are counted and before any thread
    /// reads them. Returns `false` if the pool accepts none: then the tasks fail, and `store` is dropped,
    /// which catches panics of each of several values ([`UserValues`](mp_core::user_code::UserValues)).
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
        if let Some(error) = self.enlist(job) {
            let mut settled = Settlements::new(self);
            settled.add_rest(job, &error);
            return false;
        }
        self.feed();
        if job.options.timeout.is_some() {
            self.wake_thread();
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

    /// Schedules the tasks of a call. Returns an error if the pool is ending.
    fn enlist(&self, job: &Arc<CallState>) -> Option<TaskError> {
        let mut state = self.state.lock();
        let error = state.phase.error();
        if error.is_none() {
            state.enlist(job);
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::dispatcher::shared::tests::{is_awake, shared};
    use crate::tasks::call_state::CallOptions;
    use crate::tasks::call_state::tests::job;

    #[test]
    fn submit_with_timeout_wakes_the_thread() {
        let shared = shared();
        for (timeout, rings) in [(Some(Duration::from_millis(1)), true), (None, false)] {
            let job = job(0, CallOptions { timeout, ..CallOptions::default() });
            assert!(shared.submit(&job, 1, || ()));
            assert_eq!(is_awake(&shared), rings, "{timeout:?}");
        }
    }

    /// Tasks that were submitted before are run by the workers, or get another outcome.
    #[test]
    fn refused_task_leaves_earlier_tasks_of_its_call() {
        let shared = shared();
        let job = job(0, CallOptions::default());
        assert!(shared.submit(&job, 2, || ()));
        shared.state.lock().phase = PoolPhase::Closed;
        assert!(!shared.submit(&job, 1, || panic!("it is not brought")));
        let progress = job.outcomes().progress();
        assert_eq!((progress.done, progress.failed, progress.total), (1, 1, 3));
        assert!(!job.is_cancelled());
        assert_eq!(shared.state.lock().unsettled, 2);
    }
}
