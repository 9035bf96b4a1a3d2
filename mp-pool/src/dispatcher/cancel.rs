//! Cancellation of calls, the end of all tasks, and SIGINT (Ctrl-C) and SIGTERM for pools that are notified
//! of them: [`PoolBuilder::interrupt`](crate::PoolBuilder::interrupt).
//!
//! The kernel sends the signal to all processes of the program. The order does not matter:
//!
//! | process | action | tasks left to other processes |
//! |---|---|---|
//! | a worker | ends after its running task, or at once if it waits for a task; begins no task after the signal | the tasks in the worker's queue and chunk, which the pool handles as after any end of a worker |
//! | this process, in the pool's thread | withdraws the tasks that no worker has begun, and settles them as interrupted. Asks served pools of other members to cancel the tasks that they have not begun, which settles these tasks as interrupted. Until the program has acknowledged the interrupt, each thread that would assign a task settles the task as interrupted instead | tasks that workers have begun |
//!
//! If a worker ends before this process receives the signal, it is replaced by a worker without an interrupt:
//! its tasks are withdrawn from the replacement, too. If a worker is killed at any point, the effect is the
//! same as without an interrupt.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_spawn::Interrupt;

use crate::dispatcher::settlements::Settlements;
use crate::dispatcher::shared::PoolShared;
use crate::error::{BrokenPool, TaskError};
use crate::slots::state::{PoolPhase, PoolState};
use crate::tasks::call_state::CallState;

/// Maximum wait of a cancellation for workers that have taken a chunk and not begun it (mostly microseconds).
const CHUNK_START_TIMEOUT: Duration = Duration::from_millis(100);

impl PoolShared {
    /// Cancels the tasks of a call that have not begun, including tasks that a worker is taking and is about
    /// to begin. Returns their number.
    pub(crate) fn cancel_all(&self, job: &Arc<CallState>) -> usize {
        // A forked process has neither the workers nor their memory.
        if self.check_owner().is_err() {
            return 0;
        }
        let mut count = self.cancel(job);
        let until = Instant::now() + CHUNK_START_TIMEOUT;
        // The pool's thread must not wait here: only this thread receives the replies.
        while self.thread.get() != Some(&std::thread::current().id())
            && self.state.lock().workers.iter_mut().any(|worker| worker.is_taking(Some(job)))
            && Instant::now() < until
        {
            std::thread::sleep(CHUNK_START_TIMEOUT / 1000);
            count += self.cancel(job);
        }
        // Cancels tasks that came back from a worker since then, and are now returned or in transit.
        count += self.cancel(job);
        count + job.transit.take_returned()
    }

    /// Cancels the tasks of a call that have not begun, and returns their number.
    pub(crate) fn cancel(&self, job: &Arc<CallState>) -> usize {
        if self.check_owner().is_err() {
            return 0;
        }
        let mut settled = Settlements::new(self);
        #[cfg(feature = "net")]
        let mut forwarded = Vec::new();
        let in_hand = {
            let mut state = self.state.lock();
            if state.phase.error().is_some() {
                // The end of the pool settles the tasks, with its own error.
                return 0;
            }
            // Under the state's lock, tasks in transit are neither with a worker nor ready. From now on, no
            // task of the call is retried.
            let in_hand = settled.add_rest(job, &TaskError::Cancelled);
            let PoolState { workers, tasks, .. } = &mut *state;
            for worker in workers {
                if worker.has_more_of(job) {
                    tasks.ready.extend(worker.recall_all(false));
                }
                tasks.add_cut(worker.cut_all_of(job));
                #[cfg(feature = "net")]
                worker.find_forwarded(Some(job), &mut forwarded);
            }
            settled.add_chunks(tasks.take_of(job), &TaskError::Cancelled);
            in_hand
        };
        #[cfg(feature = "net")]
        crate::forward::places::cancel(forwarded);
        let count = settled.len() + in_hand;
        settled.deliver();
        self.feed();
        count
    }

    /// Stops accepting tasks, and ends the workers. `phase` contains the reason.
    pub(crate) fn stop(&self, phase: PoolPhase) {
        let Some(error) = phase.error() else { return };
        let (calls, chunks) = {
            let mut state = self.state.lock();
            if state.phase.error().is_some() {
                return;
            }
            state.phase = phase;
            self.changed.notify_all();
            state.tasks.take_all()
        };
        let mut settled = Settlements::new(self);
        calls.iter().for_each(|job| _ = settled.add_rest(job, &error));
        settled.add_chunks(chunks, &error);
        settled.deliver();
        self.wake_waiting();
        self.wake_thread();
    }

    /// Breaks the pool: no worker is alive, and none can be started.
    pub(crate) fn break_pool(&self, broken: BrokenPool) {
        self.stop(PoolPhase::Broken(Arc::new(broken)));
    }

    /// Breaks the pool with only a description.
    pub(crate) fn break_with_reason(&self, why: impl Into<String>) {
        let (pool, why) = (self.settings.name.clone(), why.into());
        self.break_pool(BrokenPool { pool, why, starts: 0, cause: None });
    }

    /// Stops accepting tasks. The workers end when the remaining tasks are done.
    pub(crate) fn close(&self) {
        {
            let mut state = self.state.lock();
            if state.is_open() {
                state.phase = PoolPhase::Closed;
            }
        }
        self.changed.notify_all();
        self.wake_waiting();
        self.wake_thread();
    }
}

impl PoolShared {
    /// Returns `true` if this process is notified of interrupts.
    pub(crate) fn handles_interrupts(&self) -> bool {
        self.settings.interrupt == Interrupt::Graceful
    }

    /// Returns `true` if this process was interrupted and has not acknowledged the interrupt.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.handles_interrupts() && mp_core::interrupted()
    }

    /// Withdraws the tasks that no worker has begun, and settles them.
    pub(crate) fn interrupt(&self) {
        let error = &TaskError::Interrupted;
        let mut settled = Settlements::new(self);
        #[cfg(feature = "net")]
        let mut forwarded = Vec::new();
        let (calls, chunks) = {
            let PoolState { workers, tasks, .. } = &mut *self.state.lock();
            // The program may have acknowledged the interrupt meanwhile, and submitted tasks after that.
            if !self.is_interrupted() {
                return;
            }
            for worker in workers {
                worker.take_back(tasks);
                #[cfg(feature = "net")]
                worker.find_forwarded(None, &mut forwarded);
            }
            tasks.take_all()
        };
        #[cfg(feature = "net")]
        crate::forward::places::cancel(forwarded);
        settled.add_chunks(chunks, error);
        calls.iter().for_each(|job| settled.add_unsent(job, job.source.clear(), error));
        settled.deliver();
    }
}
