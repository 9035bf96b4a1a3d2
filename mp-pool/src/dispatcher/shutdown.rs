//! Shutdown of a pool's workers.

use std::time::{Duration, Instant};

use crate::dispatcher::retry::after;
use crate::dispatcher::settlements::Settlements;
use crate::dispatcher::shared::PoolShared;
use crate::error::TaskError;
use crate::slots::slot::WorkerSlot;
use crate::slots::state::{PoolPhase, PoolState};

/// Maximum wait for a process after a SIGKILL. A process in an uninterruptible system call remains.
const AFTER_KILL: Duration = Duration::from_secs(10);

/// Progress of the shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shutdown {
    NotStarted,
    /// Queues are closed: workers end by themselves.
    QueuesClosed,
    /// Queues are closed, and workers may finish their tasks until this time.
    Finishing(Instant),
    /// Busy workers have received a SIGTERM. Workers that are alive at this time receive a SIGKILL.
    Terminated(Instant),
    /// Workers have received a SIGKILL. Workers that are alive at this time are abandoned.
    Killed(Instant),
}

impl Shutdown {
    /// Advances the shutdown when no work is left for the workers.
    pub(super) fn advance(&mut self, shared: &PoolShared) {
        let mut settled = Settlements::new(shared);
        let mut guard = shared.state.lock();
        let state = &mut *guard;
        let now = Instant::now();
        match (&state.phase, *self) {
            (PoolPhase::Open, _) => {}
            (PoolPhase::Closed, Shutdown::NotStarted) if state.unsettled == 0 => {
                state.workers.iter().for_each(|worker| _ = worker.tasks.close());
                *self = Shutdown::QueuesClosed;
            }
            (PoolPhase::Closed, _) => {}
            (
                PoolPhase::Terminating | PoolPhase::Broken(_),
                Shutdown::NotStarted | Shutdown::QueuesClosed,
            ) => {
                let error = state.phase.error().unwrap_or(TaskError::Terminated);
                for worker in &mut state.workers {
                    settled.add_chunks(worker.stop_taking(), &error);
                }
                *self = Shutdown::Finishing(after(now, shared.settings.finish));
                if shared.settings.finish.is_zero() {
                    self.terminate_busy(shared, state, now);
                }
            }
            (_, Shutdown::Finishing(until)) if until <= now => self.terminate_busy(shared, state, now),
            (_, Shutdown::Terminated(until)) if until <= now => {
                state.workers.iter().for_each(WorkerSlot::kill);
                *self = Shutdown::Killed(now + AFTER_KILL);
            }
            (_, Shutdown::Finishing(_) | Shutdown::Terminated(_) | Shutdown::Killed(_)) => {}
        }
        drop(guard);
        settled.deliver();
    }

    /// Sends a SIGTERM to each worker that has a task, or is not ready. Other workers end by themselves,
    /// because their queues are closed.
    fn terminate_busy(&mut self, shared: &PoolShared, state: &PoolState, now: Instant) {
        let busy = state.workers.iter().filter(|worker| !worker.ready || worker.outstanding > 0);
        // Fails only if the process has ended.
        busy.filter_map(|worker| worker.process.as_ref()).for_each(|process| _ = process.terminate());
        *self = Shutdown::Terminated(after(now, shared.settings.grace()));
    }

    /// Returns `true` if the shutdown is complete.
    pub(super) fn is_over(self, shared: &PoolShared) -> bool {
        let state = shared.state.lock();
        let left = matches!(self, Shutdown::Killed(until) if until <= Instant::now());
        self != Shutdown::NotStarted && (left || !state.has_workers())
    }
}
