//! State of the processes of one start, shared between the supervisor and waiters.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mp_core::mutex::{Condvar, Mutex, MutexGuard};
use mp_core::pauses::wait_without_pauses;
use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU32;
use mp_core::user_code::{UserValue, catch_panic};
use mp_core::waits::{Call, On, Service, Subject, Watch, serves_no_more};
use mp_core::{Wait, children};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::process::Pid;

use crate::error::exit_status::{ExitDetail, ExitStatus, Signal};
use crate::error::process_name::ProcessName;
use crate::error::{RaisedKind, Result, SpawnError};
use crate::io::captured::OutputStreams;
use crate::parent::active::ActiveChild;
use crate::parent::rank::{ProcessStatus, RankState, RunningProcess};
use crate::parent::restart::supervised::Supervision;
use crate::parent::supervisor;
use crate::protocol::payload::ReceivedValue;
use crate::sys::clock::{deadline, now, timespec};
use crate::sys::pid_number;

/// Time between SIGTERM and SIGKILL if no grace period is set.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Time to wait after a SIGKILL: a process in an uninterruptible system call does not end.
const AFTER_KILL: Duration = Duration::from_secs(10);

/// Processes of one start.
#[derive(Debug)]
pub(crate) struct ChildGroup {
    /// Process that started them.
    pub(super) owner: u32,
    /// Last process id of each rank, 0 before its start. Readable without a lock, for copies of the owner.
    pids: Vec<AtomicU32>,
    /// `true` if errors name the processes by their ranks.
    ranked: bool,
    pub(super) ranks: Mutex<Vec<RankState>>,
    changed: Condvar,
    /// Eventfd that becomes permanently readable at the next change. Used by callers that wait for the end of
    /// the last process.
    change_event: Mutex<Option<Arc<OwnedFd>>>,
    /// Sentinels that a caller requested, by rank. They stay open as long as the group. All others are closed
    /// when their processes are over.
    pub(super) sentinels: Vec<OnceLock<Arc<OwnedFd>>>,
    /// Sentinel of processes that were over at the request. Permanently readable.
    pub(super) over_sentinel: OnceLock<Arc<OwnedFd>>,
    /// Callbacks for the end of all processes.
    end_callbacks: Mutex<Vec<EndCallback>>,
}

/// Callback for the end of all processes.
struct EndCallback(UserValue<Box<dyn FnOnce() + Send>>);

impl std::fmt::Debug for EndCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AtEnd")
    }
}

impl ChildGroup {
    pub(crate) fn new(names: impl Iterator<Item = String>, ranked: bool) -> ChildGroup {
        let ranks: Vec<_> = names.map(RankState::new).collect();
        ChildGroup {
            owner: std::process::id(),
            ranked,
            pids: ranks.iter().map(|_| AtomicU32::new(0)).collect(),
            sentinels: ranks.iter().map(|_| OnceLock::new()).collect(),
            ranks: Mutex::new(ranks),
            changed: Condvar::new(),
            change_event: Mutex::new(None),
            over_sentinel: OnceLock::new(),
            end_callbacks: Mutex::new(Vec::new()),
        }
    }

    /// Creates a group of one process, which may be restarted.
    pub(crate) fn supervised(name: String, supervision: Supervision) -> ChildGroup {
        let group = ChildGroup::new([name].into_iter(), false);
        group.with_rank(0, |rank| rank.supervision = Some(Box::new(supervision)));
        group
    }

    /// Returns the number of the last start of a supervised process.
    pub(crate) fn attempt(&self) -> Option<u32> {
        self.may_lock().ok()?;
        self.with_rank(0, |rank| rank.supervision.as_ref().map(|its| its.attempt())).flatten()
    }

    /// Calls a function with the state of a rank, if the rank exists.
    pub(crate) fn with_rank<R>(&self, rank: usize, call: impl FnOnce(&mut RankState) -> R) -> Option<R> {
        self.ranks.lock().get_mut(rank).map(call)
    }

    pub(crate) fn name(&self, rank: usize) -> String {
        self.ranks.lock().get(rank).map(|rank| rank.name.clone()).unwrap_or_default()
    }

    /// Returns the name of this process for errors.
    pub(crate) fn process_name(&self, rank: usize) -> ProcessName {
        let ranks = self.ranks.lock();
        let (name, pid) =
            ranks.get(rank).map(|rank| (rank.name.clone(), rank.pid_number())).unwrap_or_default();
        ProcessName::new(self.ranked.then_some(rank), name, pid)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.pids.iter().map(|pid| pid.load(Ordering::Relaxed)).collect()
    }

    pub(crate) fn record_start(&self, rank: usize, pid: Pid, running: RunningProcess) {
        if let Some(last) = self.pids.get(rank) {
            last.store(pid_number(pid), Ordering::Relaxed);
        }
        children::record_start(pid_number(pid));
        self.change(rank, |rank| {
            rank.pid = Some(pid);
            rank.running = Some(running);
            rank.is_started();
        });
    }

    /// Sets the streams of this rank.
    pub(crate) fn set_streams(&self, rank: usize, streams: OutputStreams) {
        if let Some(rank) = self.ranks.lock().get_mut(rank) {
            rank.streams = streams;
        }
    }

    /// Returns the streams of a rank.
    pub(crate) fn streams(&self, rank: usize) -> Result<OutputStreams> {
        self.may_lock()?;
        let ranks = self.ranks.lock();
        let nprocs = ranks.len();
        ranks.get(rank).map(|rank| rank.streams.clone()).ok_or(SpawnError::NoSuchRank { rank, nprocs })
    }

    /// Reads the remaining output of a rank that has ended. Returns the last lines of its standard error, if
    /// it is captured. Does not block.
    pub(crate) fn drain(&self, rank: usize) -> Option<String> {
        let streams = self.streams(rank).ok()?;
        streams.drain();
        streams.last_words()
    }

    /// Stores the value that the function of this rank returned.
    pub(crate) fn set_value(&self, rank: usize, value: ReceivedValue) {
        if let Some(rank) = self.ranks.lock().get_mut(rank) {
            rank.value = Some(value);
        }
    }

    /// Takes the value that the function of this rank returned.
    ///
    /// # Errors
    /// The reason, in words, if the value is missing.
    pub(crate) fn take_value(&self, rank: usize) -> Result<ReceivedValue, &'static str> {
        let mut ranks = self.ranks.lock();
        let rank = ranks.get_mut(rank).ok_or("there is no such rank")?;
        let before = std::mem::replace(&mut rank.value_taken, true);
        rank.value.take().ok_or(if before { "an earlier call has taken it" } else { "it did not arrive" })
    }

    /// Puts a value back that was not read, so that a later call takes it.
    pub(crate) fn return_value(&self, rank: usize, value: ReceivedValue) {
        value.put_aside();
        if let Some(rank) = self.ranks.lock().get_mut(rank) {
            rank.value = Some(value);
            rank.value_taken = false;
        }
    }

    /// Records the exit status of the process of this rank.
    pub(crate) fn record_exit(&self, rank: usize, exit: ExitStatus, begun: bool) {
        if let Some(rank) = self.ranks.lock().get_mut(rank) {
            rank.exit = Some(exit);
            rank.begun = begun;
        }
    }

    /// Returns `true` if the process of this rank, which has ended, had reported as a worker.
    pub(crate) fn has_begun(&self, rank: usize) -> bool {
        self.ranks.lock().get(rank).is_some_and(|rank| rank.begun)
    }

    /// Reaps the process of this rank if it has ended, without waiting for the supervisor to notice: a caller
    /// that has detected the end at the sentinel queries the exit status. If the process runs, the supervisor
    /// watches its messages from now on, unless the process has just started.
    fn poll(&self, rank: usize) {
        let unknown = |rank: &&RankState| rank.exit.is_none();
        let found = self.ranks.lock().get(rank).filter(unknown).and_then(|rank| rank.running.clone());
        match found {
            Some(running) if running.handle.has_ended() => supervisor::ended(running.id),
            Some(running) if running.unwatched().is_none() => supervisor::hear(running.id),
            _ => {}
        }
    }

    fn poll_all(&self) {
        (0..self.len()).for_each(|rank| self.poll(rank));
    }

    /// Returns `true` if a process runs, according to the kernel.
    pub(crate) fn any_runs(&self) -> bool {
        if self.may_lock().is_err() {
            return false;
        }
        self.poll_all();
        self.ranks.lock().iter().any(|rank| !rank.over && rank.exit_status().is_none())
    }

    /// Returns the exit status of the process of this rank, if it has ended.
    pub(crate) fn exit(&self, rank: usize) -> Option<ExitStatus> {
        self.may_lock().ok()?;
        self.poll(rank);
        self.ranks.lock().get(rank).and_then(RankState::exit_status)
    }

    /// Returns the exit status and the failure of the present process of this rank.
    pub(crate) fn outcome(&self, rank: usize) -> (Option<ExitStatus>, Option<SpawnError>) {
        let outcome =
            |rank: &mut RankState| (rank.exit, rank.failure.as_ref().map(|(_, error)| error.clone()));
        self.with_rank(rank, outcome).unwrap_or_default()
    }

    /// Returns the running processes.
    pub(crate) fn active(&self) -> Vec<ActiveChild> {
        self.poll_all();
        let ranks = self.ranks.lock();
        let running = ranks.iter().filter(|rank| !rank.over && rank.running.is_some());
        running.map(|rank| ActiveChild { name: rank.name.clone(), pid: rank.pid_number() }).collect()
    }

    /// Records that all failures so far were returned to the program.
    pub(crate) fn mark_all_reported(&self) {
        self.ranks.lock().iter_mut().for_each(RankState::mark_reported);
    }

    /// Records that the status of this rank was returned to the program.
    pub(crate) fn mark_reported(&self, rank: usize) {
        if self.may_lock().is_ok()
            && let Some(rank) = self.ranks.lock().get_mut(rank)
        {
            rank.mark_reported();
        }
    }

    /// Returns the first failure that was not returned to the program, and that no signal of the program
    /// caused.
    pub(crate) fn unreported_failure(&self) -> Option<SpawnError> {
        let ranks = self.ranks.lock();
        let unreported = ranks.iter().filter(|rank| !rank.reported).filter_map(|rank| rank.failure.as_ref());
        let is_requested = |error: &SpawnError| matches!(error, SpawnError::ProcessExited(exited) if exited.detail == Some(ExitDetail::Requested));
        let unreported = unreported.filter(|(_, error)| !is_requested(error));
        unreported.min_by_key(|(at, _)| *at).map(|(_, error)| error.clone())
    }

    pub(crate) fn len(&self) -> usize {
        self.pids.len()
    }

    /// Returns `true` if all processes are over.
    pub(crate) fn all_over(&self) -> bool {
        self.ranks.lock().iter().all(|rank| rank.over)
    }

    /// Records a failure of the rank at this time, unless it failed before, or failed only because it was
    /// being ended.
    pub(crate) fn record_failure(&self, rank: usize, at: u64, error: SpawnError) {
        self.change(rank, |rank| {
            let ended_by_us = rank.ending.is_some_and(|(since, _)| since <= at);
            if rank.failure.is_none() && !ended_by_us {
                children::record_failure(rank.pid_number(), &error.to_string());
                rank.failure = Some((at, error));
            }
        });
    }

    /// Records that the process was reaped, or never started, and is not restarted.
    pub(crate) fn mark_over(&self, rank: usize) {
        self.change(rank, |rank| {
            rank.running = None;
            rank.over = true;
            if rank.failure.is_some() || rank.ending.is_some() {
                // It was killed after it had sent the value. No caller will ask for the value, and its memory
                // may be large.
                rank.value = None;
            }
        });
        self.release_supervision(rank);
        self.run_end_callbacks();
    }

    /// Calls a function when all processes are over, or at once if they are.
    pub(crate) fn on_end(&self, call: impl FnOnce() + Send + 'static) {
        if self.may_lock().is_err() {
            return;
        }
        serves_no_more(Service::Supervisor);
        self.end_callbacks.lock().push(EndCallback(UserValue::new(Box::new(call))));
        self.run_end_callbacks();
        // Watches the processes, so that the supervisor notices the end at once.
        let running = |rank: &RankState| rank.running.as_ref().map(|running| running.id);
        let running: Vec<u64> = self.ranks.lock().iter().filter_map(running).collect();
        running.into_iter().for_each(supervisor::hear);
    }

    fn run_end_callbacks(&self) {
        if self.all_over() {
            let calls = std::mem::take(&mut *self.end_callbacks.lock());
            for EndCallback(call) in calls {
                // A panic of the callback, which the hook has printed, must not end the thread that watches
                // all processes.
                catch_panic(|| call.into_inner().map(|call| call()));
            }
        }
    }

    /// Returns the last signal that the program sent to this rank alone.
    pub(crate) fn requested_signal(&self, rank: usize) -> Option<Signal> {
        self.ranks.lock().get(rank).and_then(|rank| rank.requested_signal)
    }

    fn change(&self, rank: usize, change: impl FnOnce(&mut RankState)) {
        if let Some(rank) = self.ranks.lock().get_mut(rank) {
            change(rank);
        }
        self.notify_changed();
    }

    /// Wakes threads that wait for changes.
    pub(crate) fn notify_changed(&self) {
        self.changed.notify_all();
        if let Some(event) = self.change_event.lock().take() {
            // Can't fail, because no other thread adds to the counter.
            let _ = rustix::io::write(&event, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn status(&self, rank: usize) -> Result<ProcessStatus> {
        self.may_lock()?;
        self.poll(rank);
        let ranks = self.ranks.lock();
        let found = ranks.get(rank).ok_or(SpawnError::NoSuchRank { rank, nprocs: ranks.len() })?;
        Ok(found.status())
    }

    /// Returns the earliest failure.
    pub(crate) fn first_failure(&self) -> Option<SpawnError> {
        let ranks = self.ranks.lock();
        let failures = ranks.iter().filter_map(|rank| rank.failure.as_ref());
        // Failures from an interrupt come last, so that they are returned only if there is no other failure.
        failures.min_by_key(|(at, error)| (!ends_others(error), *at)).map(|(_, error)| error.clone())
    }

    /// Returns `true` if there is a failure that ends the other processes.
    pub(crate) fn ends_others(&self) -> bool {
        self.ranks.lock().iter().filter_map(|rank| rank.failure.as_ref()).any(|(_, error)| ends_others(error))
    }

    /// Returns all failures, the earliest first.
    pub(crate) fn failures(&self) -> Vec<SpawnError> {
        if let Err(error) = self.may_lock() {
            return vec![error];
        }
        self.poll_all();
        let mut failures: Vec<_> = self.ranks.lock().iter().filter_map(|rank| rank.failure.clone()).collect();
        failures.sort_by_key(|(at, _)| *at);
        failures.into_iter().map(|(_, error)| error).collect()
    }

    /// Sends a signal to one rank for the program.
    pub(crate) fn send_signal(&self, rank: usize, signal: Signal) -> Result<()> {
        if self.forbid_restart(rank) {
            return Ok(());
        }
        let mut ranks = self.ranks.lock();
        let nprocs = ranks.len();
        let found = ranks.get_mut(rank).ok_or(SpawnError::NoSuchRank { rank, nprocs })?;
        match found.signal(signal) {
            Ok(()) => found.requested_signal = Some(signal),
            Err(error) => {
                drop(ranks);
                let (who, source) = (Box::new(self.process_name(rank)), Arc::new(error.into()));
                return Err(SpawnError::NotSignalled { who, signal, source });
            }
        }
        Ok(())
    }

    /// Sends a signal to each running process for the program. Returns the first error, after all were tried.
    pub(crate) fn send_signal_to_all(&self, signal: Signal) -> Result<()> {
        (0..self.len()).map(|rank| self.send_signal(rank, signal)).fold(Ok(()), Result::and)
    }

    /// Waits until all processes are over and their output is passed on, or, with `or_failure`, until one has
    /// failed. Returns `false` if the time is over.
    pub(crate) fn wait(&self, until: Option<Instant>, or_failure: bool) -> bool {
        let settled = |ranks: &[RankState]| {
            ranks.iter().all(|rank| rank.over)
                || or_failure
                    && ranks
                        .iter()
                        .any(|rank| rank.failure.as_ref().is_some_and(|(_, error)| ends_others(error)))
        };
        let mut ranks = self.ranks.lock();
        let mut watch: Option<Watch> = None;
        while !settled(&ranks) {
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                return false;
            }
            let watch =
                watch.get_or_insert_with(|| Watch::new(now, until.map_or(Wait::Forever, Wait::Until)));
            if watch.is_due(now) {
                MutexGuard::unlocked(&mut ranks, || watch.looked(now, || self.wait_subject()));
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
                            supervisor::hear(last.id);
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
        Subject::other(Call::Join, On::Processes(pids), format!("{}{more}", names.join(", ")))
    }

    /// Returns the event of the next change. Called with the ranks locked, so that no change is missed.
    fn change_event(&self) -> Option<Arc<OwnedFd>> {
        let mut event = self.change_event.lock();
        if event.is_none() {
            *event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().map(Arc::new);
        }
        event.clone()
    }

    /// Ends all running processes: waits `before_term`, sends SIGTERM, waits `before_kill`, sends SIGKILL.
    /// Returns when all are over, or some time after the SIGKILL.
    pub(crate) fn end_all(&self, before_term: Option<Duration>, before_kill: Duration) {
        if let Some(grace) = before_term
            && wait_without_pauses(grace, |until| self.wait(Some(until), false))
        {
            return;
        }
        ChildGroup::end_together(&[self], before_kill);
    }

    /// Ends all running processes of several groups in parallel: sends SIGTERM to each, waits for all of them
    /// together, then sends SIGKILL to the rest. Returns when all are over, or some time after the SIGKILL.
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

    /// Cleans up after a failed start: processes that never started are marked as over. The others were
    /// killed and end soon.
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

    /// Returns a line for each rank.
    pub(crate) fn describe(&self) -> Vec<String> {
        if let Err(error) = self.may_lock() {
            return self.describe_in_copy(&error);
        }
        self.ranks.lock().iter().map(RankState::describe).collect()
    }
}

/// Returns the only process that has not been reaped.
fn last_process(ranks: &[RankState]) -> Option<RunningProcess> {
    let mut left = ranks.iter().filter(|rank| !rank.over);
    match (left.next(), left.next()) {
        (Some(last), None) => last.running.clone(),
        _ => None,
    }
}

/// Waits for the end of a process and reaps it, without waiting for the supervisor: with one process, two
/// wake-ups of another thread take a tenth of the lifetime of the process. Returns also when the event is
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
        supervisor::ended(last.id);
    }
}

/// Returns `true` if a failure ends the other processes. A failure from Ctrl-C alone does not.
fn ends_others(error: &SpawnError) -> bool {
    let SpawnError::ProcessRaised(raised) = error else { return true };
    raised.kind != RaisedKind::Interrupted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_failure_is_the_earliest_in_time() {
        let failure = |rank| SpawnError::NoSuchRank { rank, nprocs: 0 };
        for heard in [[0, 1], [1, 0]] {
            let group = ChildGroup::new(["a".to_string(), "b".to_string()].into_iter(), true);
            for rank in heard {
                // Rank 1 fails before rank 0 does.
                group.record_failure(rank, 200 - 100 * rank as u64, failure(rank));
            }
            assert_eq!(group.first_failure().and_then(|error| error.rank()), Some(1), "{heard:?}");
            let order: Vec<_> = group.failures().iter().map(SpawnError::rank).collect();
            assert_eq!(order, [Some(1), Some(0)], "{heard:?}");
        }
    }
}
