//! The end of a pool's workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dispatch::settled::Settled;
use crate::error::TaskError;
use crate::thread::manager::Manager;
use crate::workers::state::{Phase, State};

/// How long to wait for a process that got a SIGKILL: one in an uninterruptible system call stays.
const AFTER_KILL: Duration = Duration::from_secs(10);

/// Stands for a time that no clock reaches: a century.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Returns the time that comes `later` than `now`.
fn after(now: Instant, later: Duration) -> Instant {
    now.checked_add(later).unwrap_or_else(|| now + NEVER)
}

/// How far the end of the workers is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Not,
    /// Their queues are closed: they end by themselves.
    Closed,
    /// Their queues are closed, and they may finish their tasks until then.
    Finishing(Instant),
    /// Busy workers got a SIGTERM; workers that are still there then get a SIGKILL.
    Asked(Instant),
    /// They got a SIGKILL; workers that are still there then are left.
    Killed(Instant),
}

impl Manager {
    /// Ends the workers when there is nothing left for them.
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
                // It fails only if it has ended.
                processes.for_each(|process| _ = process.kill());
                self.ending = Ending::Killed(now + AFTER_KILL);
            }
            (_, Ending::Finishing(_) | Ending::Asked(_) | Ending::Killed(_)) => {}
        }
        drop(guard);
        settled.tell();
    }

    /// Sends a SIGTERM to each worker that has a task, or is not ready. The others end by themselves, as their queues are closed.
    fn ask(&mut self, state: &State, now: Instant) {
        let busy = state.workers.iter().filter(|worker| !worker.ready || worker.outstanding > 0);
        // It fails only if it has ended.
        busy.filter_map(|worker| worker.process.as_ref()).for_each(|process| _ = process.terminate());
        self.ending = Ending::Asked(after(now, self.shared.settings.grace));
    }

    /// Whether all is done.
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
