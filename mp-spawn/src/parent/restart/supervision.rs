//! State of a supervised process across its starts: see [`restart`](crate::parent::restart) for its phases.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::mutex::Mutex;

use crate::error::{Result, SpawnError};
use crate::parent::restart::Restart;
use crate::parent::restart::event::{EventListener, ProcessEvent, ProcessStatus};
use crate::parent::restart::history::RestartHistory;
use crate::parent::restart::restarter::{RestarterHandle, acquire};
use crate::sys::{log_event, new_event, notify};

/// Terms of the supervision of a process.
pub(crate) struct RestartTerms {
    pub(crate) restart: Restart,
    pub(crate) healthy_after: Duration,
    pub(crate) listener: Option<Arc<EventListener>>,
}

/// Prepared start of a process. The call starts the process.
pub(crate) type PreparedStart = Box<dyn FnOnce() -> Result<()>>;

/// Function that prepares the start with this number.
pub(crate) type RespawnFn = Mutex<Box<dyn FnMut(u32) -> Result<PreparedStart> + Send>>;

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
    pub(crate) history: RestartHistory,
    pub(crate) phase: RestartPhase,
    /// Start time of the present process.
    pub(crate) since: Instant,
    /// `true` if the process must not be restarted.
    pub(crate) forbidden: bool,
    /// `true` if the process and this program are notified of Ctrl-C ([`mp_core::interrupted`]).
    pub(crate) graceful: bool,
    reports: FailureReports,
    /// Resources that are needed until the supervision ends.
    pub(crate) resources: Option<RestartResources>,
}

/// Resources that are dropped when the supervision ends, because they may be large or belong to the program.
pub(crate) struct RestartResources {
    /// Eventfd that becomes readable when the supervision ends.
    end: Arc<OwnedFd>,
    pub(crate) respawn: Arc<RespawnFn>,
    listener: Option<Arc<EventListener>>,
    pub(crate) thread: RestarterHandle,
}

impl Supervision {
    /// Creates the state for a process that is about to be started for the first time.
    pub(crate) fn new(terms: RestartTerms, graceful: bool, respawn: Arc<RespawnFn>) -> Result<Supervision> {
        let RestartTerms { restart, healthy_after, listener } = terms;
        Ok(Supervision {
            history: RestartHistory::new(restart, healthy_after),
            phase: RestartPhase::Starting,
            since: Instant::now(),
            forbidden: false,
            graceful,
            reports: FailureReports::default(),
            resources: Some(RestartResources {
                end: Arc::new(new_event(0)?),
                respawn,
                listener,
                thread: acquire()?,
            }),
        })
    }

    /// Returns the descriptor that becomes readable when the supervision ends, or `None` after that.
    pub(crate) fn end(&self) -> Option<&Arc<OwnedFd>> {
        self.resources.as_ref().map(|resources| &resources.end)
    }

    /// Returns `true` if the process is restarted however it ends.
    pub(crate) fn is_endless(&self) -> bool {
        self.history.is_endless()
    }

    /// Returns the number of the last start.
    pub(crate) fn attempt(&self) -> u32 {
        self.history.attempt
    }

    pub(crate) fn queue_event(&self, event: impl FnOnce() -> ProcessEvent) {
        if let Some(RestartResources { listener: Some(listener), thread, .. }) = &self.resources {
            thread.queue_event(listener, event());
        }
    }

    /// Reports a failure on stderr, unless the program receives the events of the process.
    pub(crate) fn report(&mut self, name: &str, error: &SpawnError, after: Duration) {
        let Some(RestartResources { listener: None, thread, .. }) = &self.resources else { return };
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

    /// Returns the status of a process that has not ended.
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

    /// Takes the resources for further starts when the supervision ends.
    pub(crate) fn release(&mut self) -> Option<RestartResources> {
        self.resources.take()
    }
}

impl RestartResources {
    /// Makes the sentinel readable, and drops the resources. Called without locks, because the resources may
    /// be large or belong to the program.
    pub(crate) fn announce_end(self) {
        // Can't fail, because no other thread adds to the counter.
        notify(&self.end);
    }
}

/// Time between the first two reports. It doubles with each report.
const FIRST: Duration = Duration::from_secs(10);
/// Longest time between two reports.
const LONGEST: Duration = Duration::from_secs(600);

/// Decides which failures of a process, or of the workers of a pool, are reported.
#[derive(Debug, Default)]
pub struct FailureReports {
    /// Earliest time of the next report, and the interval between the last report and that time.
    next: Option<(Instant, Duration)>,
    unreported: u32,
}

impl FailureReports {
    /// Counts a failure. If a report is due, returns the number of failures since the last report, including
    /// this failure.
    pub fn failed(&mut self, now: Instant) -> Option<u32> {
        self.unreported = self.unreported.saturating_add(1);
        let interval = match self.next {
            Some((at, _)) if now < at => return None,
            // After a long time without a failure, the intervals begin again.
            Some((at, interval)) if now < at + interval => (2 * interval).min(LONGEST),
            _ => FIRST,
        };
        self.next = Some((now + interval, interval));
        Some(std::mem::take(&mut self.unreported))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_between_restart_failure_reports_grow() {
        let (mut reports, begin) = (FailureReports::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let reported: Vec<_> =
            (0..100).filter_map(|s| reports.failed(at(s)).map(|count| (s, count))).collect();
        assert_eq!(reported, [(0, 1), (10, 10), (30, 20), (70, 40)]);
        assert_eq!(reports.failed(at(10_000)), Some(30));
        assert_eq!(reports.failed(at(10_010)), Some(1), "the intervals begin again");
    }
}
