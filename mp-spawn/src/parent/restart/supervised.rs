//! Life of a supervised process across its starts: see [`restart`](crate::parent::restart) for its phases.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::mutex::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::error::exit_status::ExitStatus;
use crate::error::gave_up::GaveUpReason;
use crate::error::process_name::ProcessName;
use crate::error::{RaisedKind, Result, SpawnError, launch_error};
use crate::parent::group::ChildGroup;
use crate::parent::rank::{ProcessStatus, RankState};
use crate::parent::restart::Restart;
use crate::parent::restart::event::{EventListener, ProcessEvent};
use crate::parent::restart::failure_reports::FailureReports;
use crate::parent::restart::history::{RestartDecision, RestartHistory};
use crate::parent::restart::thread::{RestarterHandle, acquire};
use crate::parent::supervisor::{self, Batch};
use crate::sys::clock::now;
use crate::sys::log_event::{self, event};

/// Terms of the supervision of a process.
#[derive(Debug)]
pub(crate) struct RestartTerms {
    pub(crate) restart: Restart,
    pub(crate) healthy_after: Duration,
    pub(crate) listener: Option<Arc<EventListener>>,
}

/// Function that creates the batch for the start with this number.
pub(crate) type RespawnFn = Mutex<Box<dyn FnMut(&Arc<ChildGroup>, u32) -> Result<Batch> + Send>>;

/// Phase of the life of a supervised process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartPhase {
    Starting,
    Running,
    Waiting,
    Done,
}

/// State of a supervised process, in addition to its rank.
pub(crate) struct Supervision {
    history: RestartHistory,
    phase: RestartPhase,
    /// Start time of the present process.
    since: Instant,
    /// `true` if the process must not be restarted.
    forbidden: bool,
    /// `true` if the process and this program are notified of Ctrl-C ([`mp_core::interrupted`]).
    graceful: bool,
    reports: FailureReports,
    /// Resources that are needed until the end.
    needed: Option<RestartResources>,
}

/// Resources that are dropped at the end, because they may be large or belong to the program.
struct RestartResources {
    /// Becomes readable at the end.
    end: Arc<OwnedFd>,
    respawn: Arc<RespawnFn>,
    listener: Option<Arc<EventListener>>,
    thread: RestarterHandle,
}

impl fmt::Debug for Supervision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervision")
            .field("ledger", &self.history)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl Supervision {
    /// Creates the state for a process that is about to be started for the first time.
    pub(crate) fn new(terms: RestartTerms, graceful: bool, respawn: Arc<RespawnFn>) -> Result<Supervision> {
        let RestartTerms { restart, healthy_after, listener } = terms;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| launch_error("eventfd", None, error.into()))?;
        Ok(Supervision {
            history: RestartHistory::new(restart, healthy_after),
            phase: RestartPhase::Starting,
            since: Instant::now(),
            forbidden: false,
            graceful,
            reports: FailureReports::default(),
            needed: Some(RestartResources { end: Arc::new(end), respawn, listener, thread: acquire()? }),
        })
    }

    /// Returns the descriptor that becomes readable at the end, until the end is reached.
    pub(crate) fn end(&self) -> Option<&Arc<OwnedFd>> {
        self.needed.as_ref().map(|needed| &needed.end)
    }

    /// Returns `true` if the process is restarted however it ends.
    pub(crate) fn is_endless(&self) -> bool {
        self.history.is_endless()
    }

    /// Returns the number of the last start.
    pub(crate) fn attempt(&self) -> u32 {
        self.history.attempt
    }

    fn queue_event(&self, event: impl FnOnce() -> ProcessEvent) {
        if let Some(RestartResources { listener: Some(listener), thread, .. }) = &self.needed {
            thread.queue_event(listener, event());
        }
    }

    /// Reports a failure on stderr, unless the program receives the events of the process.
    fn report(&mut self, name: &str, error: &SpawnError, after: Duration) {
        let Some(RestartResources { listener: None, thread, .. }) = &self.needed else { return };
        let Some(failures) = self.reports.failed(Instant::now()).filter(|_| !log_event::wanted()) else {
            return;
        };
        let (attempt, error) = (self.history.attempt, error.to_string());
        let error = error.lines().next().unwrap_or_default();
        let since = match failures {
            1 => String::new(),
            failures => format!(" ({failures} failures since the last report)"),
        };
        thread.queue_report(format!(
            "mp: attempt {attempt} of {name} failed{since}, and attempt {} follows in {after:.1?}: {error}\n",
            attempt.saturating_add(1)
        ));
    }

    /// Returns the status of a process that is not over.
    pub(crate) fn status(&self, failure: Option<&SpawnError>) -> ProcessStatus {
        let restarting = |attempt, error: Option<&SpawnError>| ProcessStatus::Restarting {
            attempt,
            error: error.cloned(),
        };
        match self.phase {
            RestartPhase::Waiting => restarting(self.attempt().saturating_add(1), failure),
            RestartPhase::Starting if self.attempt() > 1 => {
                restarting(self.attempt(), self.history.failure_before())
            }
            RestartPhase::Starting | RestartPhase::Running | RestartPhase::Done => ProcessStatus::Running,
        }
    }
}

/// Action after the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    Over,
    Wait(Duration),
}

/// All of these are called with the ranks locked.
impl RankState {
    /// Records that the process was started, and sends it a signal that the program has sent before.
    pub(crate) fn is_started(&mut self) {
        let (pid, late) =
            (self.pid_number(), self.requested_signal.or(self.ending.map(|(_, signal)| signal)));
        let Some(supervision) = &mut self.supervision else { return };
        supervision.phase = RestartPhase::Running;
        supervision.since = Instant::now();
        let attempt = supervision.attempt();
        supervision.queue_event(|| ProcessEvent::Started { name: self.name.clone(), pid, attempt });
        if let Some(signal) = late {
            // Fails if the process has just ended.
            let _ = self.signal(signal);
        }
    }

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

    /// Returns `true` if Ctrl-C has ended the process, or would end it soon.
    fn was_interrupted(&self) -> bool {
        let by_signal =
            matches!(self.exit, Some(ExitStatus::Signal { signal, .. }) if signal.number() == libc::SIGINT);
        let is_interrupt_reported = matches!(&self.failure, Some((_, SpawnError::ProcessRaised(raised))) if raised.kind == RaisedKind::Interrupted);
        by_signal || is_interrupt_reported || mp_core::interrupted()
    }

    /// Gives up on further restarts. The process is then over, and the caller announces that after it unlocks
    /// the ranks.
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

    /// Forbids further restarts. Returns `true` if the process is over because of that.
    fn forbid(&mut self) -> bool {
        let Some(supervision) = &mut self.supervision else { return false };
        supervision.forbidden = true;
        if supervision.phase != RestartPhase::Waiting {
            return false;
        }
        self.give_up(GaveUpReason::Stopped);
        true
    }

    /// Begins a restart. Returns the function that creates its batch, and the number of the start, or `None`
    /// if no restart is needed or the process is over.
    fn begin(&mut self) -> Option<(Arc<RespawnFn>, u32)> {
        let supervision = self.supervision.as_mut().filter(|its| its.phase == RestartPhase::Waiting)?;
        if mp_core::interrupted() {
            self.give_up(GaveUpReason::Interrupted);
            return None;
        }
        let respawn = Arc::clone(&supervision.needed.as_ref()?.respawn);
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

/// In each of these groups the process is rank 0.
impl ChildGroup {
    /// Handles the end of the process of this rank, which was reaped. It may be restarted.
    pub(crate) fn handle_end(self: &Arc<ChildGroup>, rank: usize) {
        self.apply(rank, |rank| Some(rank.has_ended()));
    }

    /// Changes the state, and then schedules the next start, or marks the process as over.
    fn apply(self: &Arc<ChildGroup>, number: usize, change: impl FnOnce(&mut RankState) -> Option<NextStep>) {
        let next = self.with_rank(number, |rank| {
            let next = change(rank)?;
            if let (NextStep::Wait(delay), Some(its)) = (next, &rank.supervision)
                && let Some(RestartResources { thread, .. }) = &its.needed
            {
                thread.start_after(delay, self, its.graceful);
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

    /// Forbids further restarts of a rank. Returns `true` if the process is over because of that. Does not
    /// block.
    pub(crate) fn forbid_restart(&self, number: usize) -> bool {
        let over = self.with_rank(number, |rank| {
            let over = rank.forbid();
            let thread =
                rank.supervision.as_ref().and_then(|its| its.needed.as_ref()).map(|needed| &needed.thread);
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

    /// Restarts the process after its delay. Blocks until it is started.
    pub(crate) fn restart_process(self: &Arc<ChildGroup>) {
        let Some((respawn, attempt)) = self.with_rank(0, RankState::begin).flatten() else {
            let given_up = self.with_rank(0, |rank| {
                !rank.over && rank.supervision.as_ref().is_some_and(|its| its.phase == RestartPhase::Done)
            });
            if given_up == Some(true) {
                self.mark_over(0);
            }
            return;
        };
        let batch = (*respawn.lock())(self, attempt);
        drop(respawn);
        match batch.and_then(supervisor::start) {
            Ok(()) => event!(Info, "{} was started again (attempt {attempt})", self.name(0)),
            Err(error) => {
                event!(Warn, "{} was not started again (attempt {attempt}): {error}", self.name(0));
                self.apply(0, |rank| rank.start_failed(error));
            }
        }
    }

    /// Makes the sentinel readable at the end, and drops the resources for further starts.
    pub(crate) fn release_supervision(&self, number: usize) {
        let needed =
            self.with_rank(number, |rank| rank.supervision.as_mut().and_then(|its| its.needed.take()));
        if let Some(RestartResources { end, .. }) = needed.flatten() {
            // Can't fail, because no other thread adds to the counter.
            let _ = rustix::io::write(&end, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags};
    use rustix::process::Pid;

    use super::*;
    use crate::error::exit_status::Signal;
    use crate::parent::rank::RunningProcess;
    use crate::sys::clock::timespec;
    use crate::sys::process_handle::ProcessHandle;

    /// Creates a group whose process is about to be started.
    fn starting() -> Arc<ChildGroup> {
        let respawn: Arc<RespawnFn> = Arc::new(Mutex::new(Box::new(|_, _| Err(SpawnError::NotInitialised))));
        let terms = RestartTerms { restart: Restart::always(), healthy_after: Duration::MAX, listener: None };
        let supervision = Supervision::new(terms, false, respawn).unwrap();
        Arc::new(ChildGroup::supervised("one".to_string(), supervision))
    }

    #[test]
    fn signal_during_a_start_is_delivered_afterwards() {
        let group = starting();
        group.send_signal(0, Signal::KILL).unwrap();
        assert!(!group.all_over(), "what is being started may come");
        #[allow(clippy::zombie_processes, reason = "the handle reaps it")]
        let child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let handle = Arc::new(ProcessHandle::of(pid).unwrap());
        group.record_start(
            0,
            pid,
            RunningProcess { handle: Arc::clone(&handle), id: u64::MAX >> 2, unwatched_until: None },
        );
        let time = timespec(Duration::from_secs(20));
        let sentinel = handle.sentinel();
        let ended = rustix::event::poll(&mut [PollFd::new(&sentinel, PollFlags::IN)], Some(&time));
        let exit = handle.end();
        assert_eq!(ended, Ok(1), "it runs on");
        group.record_exit(0, exit, true);
        group.handle_end(0);
        assert!(group.all_over());
    }

    #[test]
    fn a_start_that_fails_after_a_kill_is_the_last_one() {
        let group = starting();
        group.send_signal(0, Signal::TERM).unwrap();
        group.apply(0, |rank| rank.start_failed(SpawnError::NotInitialised));
        let Some(SpawnError::GaveUp(gave_up)) = group.first_failure() else { panic!("{group:?}") };
        assert_eq!((group.all_over(), gave_up.reason), (true, GaveUpReason::Stopped));
    }
}
