//! Restarts of a supervised process: see [`restart`](crate::parent::restart) for its phases.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{ExitStatus, GaveUpReason, ProcessName, RaisedKind, SpawnError};
use crate::parent::group::ChildGroup;
use crate::parent::group::rank::RankState;
use crate::parent::restart::event::{ProcessEvent, ProcessStatus};
use crate::parent::restart::history::RestartDecision;
use crate::parent::restart::restarter::Restartable;
use crate::parent::restart::supervision::{RespawnFn, RestartPhase, RestartResources};
use crate::sys::log_event::event;
use crate::sys::now;

/// Action after the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    Over,
    Wait(Duration),
}

/// Methods that are called with the ranks locked.
impl RankState {
    /// Handles the end of the process, which was reaped.
    fn has_ended(&mut self) -> NextStep {
        let (pid, exit) = (self.pid_number(), self.exit.unwrap_or(ExitStatus::Unknown));
        let interrupted = self.was_interrupted();
        let error = self.failure.as_ref().map(|(_, error)| error);
        let Some(supervision) = &mut self.supervision else { return NextStep::Over };
        self.running = None;
        let attempt = supervision.attempt();
        let name = || self.name.clone();
        supervision.queue_event(|| ProcessEvent::Exited {
            name: name(),
            pid,
            attempt,
            exit,
            error: error.cloned(),
        });
        // Before a process becomes a worker it may wait for a long time, which does not make it healthy.
        let lasted = if self.begun { supervision.since.elapsed() } else { Duration::ZERO };
        let is_requested = supervision.forbidden;
        if is_requested || interrupted {
            supervision.phase = RestartPhase::Done;
            return NextStep::Over;
        }
        self.decide(lasted)
    }

    /// Handles a start that failed.
    fn start_failed(&mut self, error: SpawnError) -> Option<NextStep> {
        let supervision = self.supervision.as_mut().filter(|its| its.phase == RestartPhase::Starting)?;
        let attempt = supervision.attempt();
        let name = || self.name.clone();
        supervision.queue_event(|| ProcessEvent::NotStarted { name: name(), attempt, error: error.clone() });
        self.failure = Some((now(), error));
        self.exit = Some(ExitStatus::Unknown);
        if supervision.forbidden {
            self.give_up(GaveUpReason::Stopped);
            return Some(NextStep::Over);
        }
        Some(self.decide(Duration::ZERO))
    }

    fn decide(&mut self, lasted: Duration) -> NextStep {
        let failure = self.failure.as_ref().map(|(_, error)| error);
        let Some(supervision) = &mut self.supervision else { return NextStep::Over };
        match supervision.history.decide(failure.is_some(), lasted) {
            RestartDecision::Stop => supervision.phase = RestartPhase::Done,
            RestartDecision::GiveUp => self.give_up(GaveUpReason::Limit),
            RestartDecision::Restart(after) => {
                supervision.phase = RestartPhase::Waiting;
                let attempt = supervision.attempt().saturating_add(1);
                supervision.queue_event(|| ProcessEvent::Restarting {
                    name: self.name.clone(),
                    attempt,
                    after,
                });
                if let Some(error) = failure {
                    supervision.report(&self.name, error, after);
                }
                return NextStep::Wait(after);
            }
        }
        NextStep::Over
    }

    /// Returns `true` if SIGINT ended the process, the process reported an interrupt as its failure, or this
    /// program is notified of an interrupt.
    fn was_interrupted(&self) -> bool {
        let by_signal =
            matches!(self.exit, Some(ExitStatus::Signal { signal, .. }) if signal.number() == libc::SIGINT);
        let is_interrupt_reported = match &self.failure {
            Some((_, SpawnError::ProcessRaised(raised))) => raised.kind == RaisedKind::Interrupted,
            _ => false,
        };
        by_signal || is_interrupt_reported || mp_core::interrupted()
    }

    /// Ends the supervision after a failure. The process then counts as ended, and the caller announces the
    /// end after it unlocks the ranks.
    fn give_up(&mut self, reason: GaveUpReason) {
        let who = ProcessName::new(None, self.name.clone(), self.pid_number());
        let Some(supervision) = &mut self.supervision else { return };
        supervision.phase = RestartPhase::Done;
        if let Some((at, last)) = self.failure.take() {
            let error = supervision.history.gave_up(who, reason, last);
            supervision.queue_event(|| ProcessEvent::GaveUp { error: error.clone() });
            self.failure = Some((at, error));
        }
    }

    /// Forbids further restarts. Returns `true` if the process waited for its next start, which is now
    /// cancelled.
    fn forbid(&mut self) -> bool {
        let Some(supervision) = &mut self.supervision else { return false };
        supervision.forbidden = true;
        if supervision.phase != RestartPhase::Waiting {
            return false;
        }
        self.give_up(GaveUpReason::Stopped);
        true
    }

    /// Begins a restart. Returns the function that prepares the start, and the number of the start, or `None`
    /// if no restart is needed or the process has ended.
    fn begin_restart(&mut self) -> Option<(Arc<RespawnFn>, u32)> {
        let supervision = self.supervision.as_mut().filter(|its| its.phase == RestartPhase::Waiting)?;
        if mp_core::interrupted() {
            self.give_up(GaveUpReason::Interrupted);
            return None;
        }
        let respawn = Arc::clone(&supervision.resources.as_ref()?.respawn);
        supervision.phase = RestartPhase::Starting;
        supervision.history.record_restart(self.failure.take().map(|(_, error)| error));
        self.exit = None;
        self.begun = false;
        self.reported = false;
        self.value = None;
        self.value_taken = false;
        Some((respawn, supervision.attempt()))
    }
}

/// Methods for groups whose only process, of rank 0, is supervised.
impl ChildGroup {
    /// Handles the end of the process of this rank, which was reaped. The process may be restarted.
    pub(crate) fn handle_end(self: &Arc<ChildGroup>, rank: usize) {
        self.apply(rank, |rank| Some(rank.has_ended()));
    }

    /// Applies `change` to the state of a rank. Then schedules the next start, or marks the process as ended,
    /// if `change` returns that step.
    fn apply(self: &Arc<ChildGroup>, number: usize, change: impl FnOnce(&mut RankState) -> Option<NextStep>) {
        let next = self.with_rank(number, |rank| {
            let next = change(rank)?;
            if let (NextStep::Wait(delay), Some(its)) = (next, &rank.supervision)
                && let Some(RestartResources { thread, .. }) = &its.resources
            {
                let process: Arc<dyn Restartable> = Arc::clone(self) as _;
                thread.start_after(delay, process, its.graceful);
            }
            Some(next)
        });
        match next.flatten() {
            Some(NextStep::Wait(delay)) => {
                self.notify_changed();
                event!(Info, "{} is started again in {delay:.1?}", self.name(number));
            }
            Some(NextStep::Over) => self.mark_over(number),
            None => {}
        }
    }

    /// Forbids further restarts of all ranks. Does not block.
    pub(crate) fn forbid_restarts(&self) {
        (0..self.len()).for_each(|rank| _ = self.forbid_restart(rank));
    }

    /// Forbids further restarts of a rank. Returns `true` if the process waited for its next start, which is
    /// now cancelled. Does not block.
    pub(crate) fn forbid_restart(&self, number: usize) -> bool {
        let over = self.with_rank(number, |rank| {
            let over = rank.forbid();
            let thread = rank
                .supervision
                .as_ref()
                .and_then(|its| its.resources.as_ref())
                .map(|resources| &resources.thread);
            (over, thread.filter(|_| over).and_then(|thread| thread.cancel(self)))
        });
        let (over, kept) = over.unwrap_or_default();
        if over {
            self.mark_over(number);
        }
        // Dropped after the ranks are unlocked, because it may be the last reference to the group.
        drop(kept);
        over
    }
}

impl Restartable for ChildGroup {
    fn restart(self: Arc<Self>) {
        let Some((respawn, attempt)) = self.with_rank(0, RankState::begin_restart).flatten() else {
            let given_up = self.with_rank(0, |rank| {
                !rank.over && rank.supervision.as_ref().is_some_and(|its| its.phase == RestartPhase::Done)
            });
            if given_up == Some(true) {
                self.mark_over(0);
            }
            return;
        };
        let prepared = (*respawn.lock())(attempt);
        // Released before the start: if the process ends soon, its arguments must not stay referenced.
        drop(respawn);
        match prepared.and_then(|start| start()) {
            Ok(()) => event!(Info, "{} was started again (attempt {attempt})", self.name(0)),
            Err(error) => {
                event!(Warn, "{} was not started again (attempt {attempt}): {error}", self.name(0));
                self.apply(0, |rank| rank.start_failed(error));
            }
        }
    }

    fn next_start(&self) -> Option<(String, u32, Option<SpawnError>)> {
        self.with_rank(0, |rank| match rank.status() {
            ProcessStatus::Restarting { attempt, error } => Some((rank.name.clone(), attempt, error)),
            _ => None,
        })
        .flatten()
    }
}

#[cfg(test)]
mod tests {
    use mp_core::mutex::Mutex;
    use rustix::event::{PollFd, PollFlags};
    use rustix::process::Pid;

    use super::*;
    use crate::error::Signal;
    use crate::parent::group::rank::RunningProcess;
    use crate::parent::restart::Restart;
    use crate::parent::restart::supervision::{RestartTerms, Supervision};
    use crate::sys::ProcessHandle;
    use crate::sys::timespec;

    /// Creates a group whose process is about to be started.
    fn starting() -> Arc<ChildGroup> {
        let respawn: Arc<RespawnFn> = Arc::new(Mutex::new(Box::new(|_| Err(SpawnError::NotInitialised))));
        let group = Arc::new(ChildGroup::new(["one".to_string()].into_iter(), false));
        let terms = RestartTerms { restart: Restart::always(), healthy_after: Duration::MAX, listener: None };
        let supervision = Supervision::new(terms, false, respawn).unwrap();
        group.supervise(supervision);
        group
    }

    #[test]
    fn signal_sent_during_a_start_is_delivered_afterwards() {
        let group = starting();
        group.send_signal(0, Signal::KILL).unwrap();
        assert!(!group.all_over(), "the start is still in progress");
        #[allow(clippy::zombie_processes, reason = "the handle reaps it")]
        let child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let handle = Arc::new(ProcessHandle::open(pid).unwrap());
        group.record_start(
            0,
            pid,
            RunningProcess { handle: Arc::clone(&handle), id: u64::MAX >> 2, unwatched_until: None },
        );
        let time = timespec(Duration::from_secs(20));
        let sentinel = handle.sentinel();
        let ended = rustix::event::poll(&mut [PollFd::new(&sentinel, PollFlags::IN)], Some(&time));
        let exit = handle.end(None).unwrap();
        assert_eq!(ended, Ok(1), "the process continues after SIGKILL");
        group.with_rank(0, |rank| (rank.exit, rank.begun) = (Some(exit), true));
        group.handle_end(0);
        assert!(group.all_over());
    }

    #[test]
    fn failed_start_of_a_killed_process_is_not_retried() {
        let group = starting();
        group.send_signal(0, Signal::TERM).unwrap();
        group.apply(0, |rank| rank.start_failed(SpawnError::NotInitialised));
        let Some(SpawnError::GaveUp(gave_up)) = group.first_failure() else {
            panic!("{:?}", group.describe())
        };
        assert_eq!((group.all_over(), gave_up.reason), (true, GaveUpReason::Stopped));
    }
}
