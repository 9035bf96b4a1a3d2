//! Shutdown of a pool's workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dispatch::settled::Settled;
use crate::error::TaskError;
use crate::thread::manager::Manager;
use crate::workers::state::{Phase, State};

/// Maximum wait for a process after a SIGKILL. A process in an uninterruptible system call remains.
const AFTER_KILL: Duration = Duration::from_secs(10);

/// Delay that stands for infinity: a century.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Returns the time `later` after `now`.
fn after(now: Instant, later: Duration) -> Instant {
    now.checked_add(later).unwrap_or_else(|| now + NEVER)
}

/// Progress of the shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Not,
    /// Queues are closed: workers end by themselves.
    Closed,
    /// Queues are closed, and workers may finish their tasks until this time.
    Finishing(Instant),
    /// Busy workers have received a SIGTERM. Workers that are alive at this time receive a SIGKILL.
    Asked(Instant),
    /// Workers have received a SIGKILL. Workers that are alive at this time are abandoned.
    Killed(Instant),
}

impl Manager {
    /// Advances the shutdown when no work is left for the workers.
    pub(super) fn end(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut settled = Settled::new(&shared);
        let mut guard = shared.state.lock();
        let state = &mut *guard;
        let now = Instant::now();
        match (&state.phase, self.ending) {
            (Phase::Open, _) => {}
            (Phase::Closed, Ending::Not) if state.unsettled == 0 => {
                state.workers.iter().for_each(|worker| _ = worker.tasks.close());
                self.ending = Ending::Closed;
            }
            (Phase::Closed, _) => {}
            (Phase::Terminating | Phase::Broken(_), Ending::Not | Ending::Closed) => {
                let error = state.phase.error().unwrap_or(TaskError::Terminated);
                for worker in &mut state.workers {
                    for chunk in worker.takes_no_more() {
                        settled.add(chunk, error.clone());
                    }
                }
                self.ending = Ending::Finishing(after(now, shared.settings.finish));
                if shared.settings.finish.is_zero() {
                    self.ask(state, now);
                }
            }
            (_, Ending::Finishing(until)) if until <= now => self.ask(state, now),
            (_, Ending::Asked(until)) if until <= now => {
                let processes = state.workers.iter().filter_map(|worker| worker.process.as_ref());
                // Fails only if the process has ended.
                processes.for_each(|process| _ = process.kill());
                self.ending = Ending::Killed(now + AFTER_KILL);
            }
            (_, Ending::Finishing(_) | Ending::Asked(_) | Ending::Killed(_)) => {}
        }
        drop(guard);
        settled.tell();
    }

    /// Sends a SIGTERM to each worker that has a task, or is not ready. Other workers end by themselves,
    /// because their queues are closed.
    fn ask(&mut self, state: &State, now: Instant) {
        let busy = state.workers.iter().filter(|worker| !worker.ready || worker.outstanding > 0);
        // Fails only if the process has ended.
        busy.filter_map(|worker| worker.process.as_ref()).for_each(|process| _ = process.terminate());
        self.ending = Ending::Asked(after(now, self.shared.settings.grace));
    }

    /// Returns `true` if the shutdown is complete.
    pub(super) fn is_over(&self) -> bool {
        let state = self.shared.state.lock();
        let left = matches!(self.ending, Ending::Killed(until) if until <= Instant::now());
        self.ending != Ending::Not && (left || !state.has_workers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_without_an_end_are_times() {
        let now = Instant::now();
        assert_eq!(after(now, Duration::from_secs(3)), now + Duration::from_secs(3));
        assert!(after(now, Duration::MAX) >= now + NEVER);
    }
}
