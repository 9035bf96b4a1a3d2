//! Cancellation of calls, the end of all tasks, and SIGINT (Ctrl-C) and SIGTERM for pools that are notified
//! of them: [`PoolBuilder::interrupt`](crate::PoolBuilder::interrupt).
//!
//! The kernel sends the signal to all processes of the program. The order does not matter:
//!
//! | process | action | left for others |
//! |---|---|---|
//! | a worker | ends after its running task, or at once if it waits for a task; begins no task after the signal | the tasks in its queue and in its chunk, which are handled like those of any worker that has ended |
//! | this process, in the pool's thread | withdraws the tasks that no worker has begun, and settles them as interrupted; until the program has acknowledged the interrupt, each thread that would assign a task does the same | tasks that workers have begun |
//!
//! If a worker ends before this process receives the signal, it is replaced by a worker without an interrupt:
//! its tasks are withdrawn from the replacement, too. If it is killed at any point, the effect is the same as
//! for any killed worker.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_spawn::Interrupt;

use crate::dispatcher::settlements::Settlements;
use crate::dispatcher::shared::PoolShared;
use crate::error::{BrokenPool, TaskError};
use crate::slots::state::{PoolPhase, PoolState};
use crate::steps::chunk::CutShare;
use crate::tasks::call_state::CallState;
use crate::tasks::chunk::{ReadyChunk, next_chunk};

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
        // The pool's thread would wait for replies that only it receives.
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
        let in_hand = {
            let mut state = self.state.lock();
            if state.phase.error().is_some() {
                // The end of the pool settles them, with its own error.
                return 0;
            }
            // Under the state's lock, tasks in transit are neither with a worker nor returned.
            let in_hand = settled.add_rest(job, &TaskError::Cancelled);
            let PoolState { workers, returned, jobs, retries, emptied_chunks, .. } = &mut *state;
            jobs.retain(|listed| !Arc::ptr_eq(listed, job));
            // Tasks that were to be retried are cancelled. From now on, no task is retried.
            settled.add_retries(job, &TaskError::Cancelled);
            settled.add_scheduled(retries.take_of(job), &TaskError::Cancelled);
            for worker in workers.iter_mut() {
                if worker.has_more_of(job) {
                    returned.extend(worker.recall_all(false));
                }
                let (rest, nothing) = worker.cut_all_of(job, next_chunk());
                returned.extend(rest.map(ReadyChunk::unpacked));
                emptied_chunks.extend(nothing);
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
        settled.deliver();
        self.feed();
        count
    }

    /// Stops accepting tasks, and ends the workers. `phase` contains the reason.
    pub(crate) fn stop(&self, phase: PoolPhase) {
        let Some(error) = phase.error() else { return };
        let (jobs, returned, later) = {
            let mut state = self.state.lock();
            if state.phase.error().is_some() {
                return;
            }
            state.phase = phase;
            self.changed.notify_all();
            let (jobs, returned) = (std::mem::take(&mut state.jobs), std::mem::take(&mut state.returned));
            (jobs, returned, state.retries.take_all())
        };
        let mut settled = Settlements::new(self);
        settled.add_scheduled(later, &error);
        jobs.iter().for_each(|job| _ = settled.add_rest(job, &error));
        returned.into_iter().for_each(|ready| settled.add(ready.chunk, error.clone()));
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
        self.break_pool(BrokenPool::with_reason(self.settings.name.clone(), why));
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

    /// Returns `true` if this process was interrupted and has not acknowledged it.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.handles_interrupts() && mp_core::interrupted()
    }

    /// Withdraws the tasks that no worker has begun, and settles them.
    pub(crate) fn interrupt(&self) {
        let error = &TaskError::Interrupted;
        let mut settled = Settlements::new(self);
        let (jobs, later) = {
            let PoolState { workers, returned, jobs, retries, emptied_chunks, .. } = &mut *self.state.lock();
            for worker in workers.iter_mut() {
                returned.extend(worker.recall_all(false));
                let (rest, nothing) = worker.cut(CutShare::All, next_chunk());
                returned.extend(rest.map(ReadyChunk::unpacked));
                emptied_chunks.extend(nothing);
            }
            returned.drain(..).for_each(|ready| settled.add(ready.chunk, error.clone()));
            (std::mem::take(jobs), retries.take_all())
        };
        settled.add_scheduled(later, error);
        jobs.iter().for_each(|job| settled.add_unsent(job, job.take_unsent(), error));
        settled.deliver();
    }
}
