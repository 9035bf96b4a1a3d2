//! Control of the processes of a group: signals, status, waits.

use std::os::fd::OwnedFd;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_core::Wait;
use mp_core::mutex::MutexGuard;
use mp_core::pauses::wait_without_pauses;
use mp_core::user_code::UserValue;
use mp_core::waits::{BlockingCall, Service, Subject, WaitObject, Watch, serves_no_more};
use rustix::event::{PollFd, PollFlags};

use crate::error::{ExitStatus, Result, Signal, SpawnError};
use crate::io::streams::OutputStreams;
use crate::parent::group::rank::{RankState, RunningProcess};
use crate::parent::group::{ChildGroup, EndCallback, ends_others};
use crate::parent::restart::event::ProcessStatus;
use crate::parent::supervisor;
use crate::sys::{deadline, now, timespec};

/// Time between SIGTERM and SIGKILL if no grace period is set.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Time to wait after a SIGKILL: a process in an uninterruptible system call does not end.
const AFTER_KILL: Duration = Duration::from_secs(10);

impl ChildGroup {
    /// Sends a signal to the process of one rank, at the program's request.
    pub(crate) fn send_signal(&self, rank: usize, signal: Signal) -> Result<()> {
        self.check_owner()?;
        if self.forbid_restart(rank) {
            return Ok(());
        }
        let sent = self.with_known_rank(rank, |rank| {
            rank.signal(signal).inspect(|()| rank.requested_signal = Some(signal))
        })?;
        sent.map_err(|error| {
            let (who, source) = (Box::new(self.process_name(rank)), Arc::new(error.into()));
            SpawnError::NotSignalled { who, signal, source }
        })
    }

    /// Sends a signal to each running process, at the program's request. Returns the first error, after an
    /// attempt for each process.
    pub(crate) fn send_signal_to_all(&self, signal: Signal) -> Result<()> {
        (0..self.len()).map(|rank| self.send_signal(rank, signal)).fold(Ok(()), Result::and)
    }

    /// Ends all running processes: waits `before_term`, sends SIGTERM, waits `before_kill`, sends SIGKILL.
    /// Returns when all have ended, or [`AFTER_KILL`] after the SIGKILL.
    pub(crate) fn end_all(&self, before_term: Option<Duration>, before_kill: Duration) {
        if let Some(grace) = before_term
            && wait_without_pauses(grace, |until| self.wait(Some(until), false))
        {
            return;
        }
        ChildGroup::end_together(&[self], before_kill);
    }

    /// Ends all running processes of several groups in parallel: sends SIGTERM to each process, waits for all
    /// of them together, then sends SIGKILL to the processes that still run. Returns when all have ended, or
    /// [`AFTER_KILL`] after the SIGKILL.
    pub(crate) fn end_together(groups: &[&ChildGroup], before_kill: Duration) {
        let send = |signal| groups.iter().for_each(|group| group.end_with(signal));
        let wait = |time| {
            wait_without_pauses(time, |until| groups.iter().all(|group| group.wait(Some(until), false)))
        };
        send(Signal::TERM);
        if !wait(before_kill) {
            send(Signal::KILL);
            wait(AFTER_KILL);
        }
    }

    /// Cleans up after a failed start: marks processes that were not started as ended, and waits for the
    /// started processes, which were killed.
    pub(crate) fn reap_incomplete(&self) {
        for rank in self.ranks.lock().iter_mut().filter(|rank| rank.pid.is_none()) {
            rank.over = true;
        }
        self.wait(deadline(AFTER_KILL), false);
    }

    fn end_with(&self, signal: Signal) {
        let now = now();
        for rank in self.ranks.lock().iter_mut().filter(|rank| !rank.over) {
            // A process that has reported its failure is exiting. A SIGTERM would only interrupt its exit
            // handlers.
            if rank.failure.is_none() || signal == Signal::KILL {
                let since = rank.ending.map_or(now, |(since, _)| since);
                rank.ending = Some((since, signal));
                // Fails if the process has just ended.
                let _ = rank.signal(signal);
            }
        }
    }
}

impl ChildGroup {
    /// Reaps the process of this rank if it has ended. Does not wait for the supervisor, because a caller
    /// that has detected the end at the sentinel expects the exit status at once. If the process runs, makes
    /// the supervisor watch its messages, unless the process has just started.
    fn poll(&self, rank: usize) {
        let unknown = |rank: &&RankState| rank.exit.is_none();
        let found = self.ranks.lock().get(rank).filter(unknown).and_then(|rank| rank.running.clone());
        match found {
            Some(running) if running.handle.has_ended() => supervisor::reap(running.id),
            Some(running) if running.unwatched().is_none() => supervisor::watch(running.id),
            _ => {}
        }
    }

    fn poll_all(&self) {
        (0..self.len()).for_each(|rank| self.poll(rank));
    }

    /// Returns `true` if a process runs, according to the kernel.
    pub(crate) fn any_runs(&self) -> bool {
        if self.check_owner().is_err() {
            return false;
        }
        self.poll_all();
        self.ranks.lock().iter().any(|rank| !rank.over && rank.exit_status().is_none())
    }

    /// Returns the exit status of the process of this rank, if it has ended. Its failure counts as reported.
    pub(crate) fn exit(&self, rank: usize) -> Result<Option<ExitStatus>> {
        self.check_owner()?;
        self.poll(rank);
        self.with_known_rank(rank, |rank| rank.exit_status().inspect(|_| rank.mark_reported()))
    }

    /// Returns the status of this rank. A failure counts as reported.
    pub(crate) fn status(&self, rank: usize) -> Result<ProcessStatus> {
        self.check_owner()?;
        self.poll(rank);
        self.with_known_rank(rank, |rank| {
            let status = rank.status();
            if matches!(status, ProcessStatus::Failed(_)) {
                rank.mark_reported();
            }
            status
        })
    }

    /// Returns all failures, the earliest first.
    pub(crate) fn failures(&self) -> Vec<SpawnError> {
        if let Err(error) = self.check_owner() {
            return vec![error];
        }
        self.poll_all();
        let failure = |rank: &mut RankState| {
            rank.mark_reported();
            rank.failure.clone()
        };
        let mut failures: Vec<_> = self.ranks.lock().iter_mut().filter_map(failure).collect();
        failures.sort_by_key(|(at, _)| *at);
        failures.into_iter().map(|(_, error)| error).collect()
    }

    /// Returns the names and process ids of the running processes.
    pub(crate) fn active(&self) -> Vec<(String, u32)> {
        self.poll_all();
        let ranks = self.ranks.lock();
        let running = ranks.iter().filter(|rank| !rank.over && rank.running.is_some());
        running.map(|rank| (rank.name.clone(), rank.pid_number())).collect()
    }

    /// Calls a function when all processes have ended, or at once if they have ended already.
    pub(crate) fn on_end(&self, call: impl FnOnce() + Send + 'static) {
        if self.check_owner().is_err() {
            return;
        }
        serves_no_more(Service::Supervisor);
        self.end_callbacks.lock().push(EndCallback(UserValue::new(Box::new(call))));
        self.run_end_callbacks();
        // Watches the processes, so that the supervisor detects the end at once.
        let running = |rank: &RankState| rank.running.as_ref().map(|running| running.id);
        let running: Vec<u64> = self.ranks.lock().iter().filter_map(running).collect();
        running.into_iter().for_each(supervisor::watch);
    }
}

impl ChildGroup {
    /// Waits until all processes have ended and their output is passed on, or, with `or_failure`, until one
    /// has failed. Returns `false` if the time has expired.
    #[track_caller]
    pub(crate) fn wait(&self, until: Option<Instant>, or_failure: bool) -> bool {
        let settled = |ranks: &[RankState]| {
            ranks.iter().all(|rank| rank.over)
                || or_failure
                    && ranks
                        .iter()
                        .any(|rank| rank.failure.as_ref().is_some_and(|(_, error)| ends_others(error)))
        };
        let mut ranks = self.ranks.lock();
        let (mut watch, place) = (None, Location::caller());
        while !settled(&ranks) {
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                return false;
            }
            let limit = until.map_or(Wait::Forever, Wait::Until);
            let watch = watch.get_or_insert_with(|| Watch::new(now, limit, place));
            if watch.is_due(now) {
                MutexGuard::unlocked(&mut ranks, || watch.record_poll(now, || self.wait_subject()));
                if settled(&ranks) {
                    break;
                }
            }
            let next = now + watch.pause();
            let until = until.map_or(next, |until| until.min(next));
            if let Some(last) = last_process(&ranks) {
                let unwatched = last.unwatched();
                let event = if unwatched.is_none() { self.change_event() } else { None };
                if unwatched.is_some() || event.is_some() {
                    let until = unwatched.map_or(until, |end| end.min(until));
                    MutexGuard::unlocked(&mut ranks, || {
                        if unwatched.is_none() && last.unwatched_until.is_some() {
                            supervisor::watch(last.id);
                        }
                        wait_for_end(&last, event.as_deref(), until);
                    });
                    continue;
                }
            }
            self.changed.wait_until(&mut ranks, until);
        }
        let to_be_written = |rank: &&RankState| rank.over && rank.streams.has_unwritten_lines();
        let left: Vec<_> = ranks.iter().filter(to_be_written).map(|rank| rank.streams.clone()).collect();
        let all_over = ranks.iter().all(|rank| rank.over);
        drop(ranks);
        !all_over || left.is_empty() || OutputStreams::wait_until_written(&left, until)
    }

    /// Returns the subject of the wait, for reports.
    fn wait_subject(&self) -> Subject {
        let ranks = self.ranks.lock();
        let left: Vec<&RankState> = ranks.iter().filter(|rank| !rank.over).collect();
        let names: Vec<&str> = left.iter().take(8).map(|rank| rank.name.as_str()).collect();
        let endless = |rank: &&RankState| rank.supervision.as_ref().is_some_and(|its| its.is_endless());
        let more = if left.len() > names.len() {
            format!(", and {} more", left.len() - names.len())
        } else if left.iter().any(endless) {
            ", which is started again whenever it ends: kill() or terminate() ends that".to_owned()
        } else {
            String::new()
        };
        let pids = left.iter().filter(|rank| rank.running.is_some()).map(|rank| rank.pid_number()).collect();
        Subject::other(BlockingCall::Join, WaitObject::Processes(pids), format!("{}{more}", names.join(", ")))
    }
}

/// Returns the process that has not been reaped, if there is exactly one.
fn last_process(ranks: &[RankState]) -> Option<RunningProcess> {
    let mut left = ranks.iter().filter(|rank| !rank.over);
    match (left.next(), left.next()) {
        (Some(last), None) => last.running.clone(),
        _ => None,
    }
}

/// Waits for the end of a process and reaps it, without waiting for the supervisor: two wake-ups of the
/// supervisor thread would take a tenth of the lifetime of a short process. Also returns when `event` is
/// readable.
fn wait_for_end(last: &RunningProcess, event: Option<&OwnedFd>, until: Instant) {
    let left = timespec(until.saturating_duration_since(Instant::now()));
    let sentinel = last.handle.sentinel();
    let end = PollFd::new(&sentinel, PollFlags::IN);
    let other = event.map(|event| PollFd::new(event, PollFlags::IN));
    let (mut fds, count) = match other {
        Some(other) => ([end, other], 2),
        None => ([end.clone(), end], 1),
    };
    // After an interrupted or refused wait the caller checks again.
    let ended = rustix::event::poll(&mut fds[..count], Some(&left)).is_ok() && !fds[0].revents().is_empty();
    if ended {
        supervisor::reap(last.id);
    }
}
