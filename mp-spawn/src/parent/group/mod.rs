//! State of the processes of one start, shared between the supervisor and waiters.
//!
//! A forked copy of the process that started a group has no children, and takes no lock of the group: another
//! thread may have held the lock when the copy was made, and no thread of the copy unlocks it.

pub(crate) mod rank;
pub(crate) mod restarts;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use mp_core::fork::PerProcess;
use mp_core::mutex::{Condvar, Mutex};
use mp_core::sync::Ordering;
use mp_core::sync::shared::AtomicU32;
use mp_core::user_code::{UserValue, catch_panic};
use mp_core::{children, long_lived_fds};
use rustix::process::Pid;

use crate::error::{ExitDetail, ProcessName, RaisedKind, Result, SpawnError};
use crate::io::streams::OutputStreams;
use crate::parent::group::rank::{RankState, RunningProcess};
use crate::parent::restart::supervision::Supervision;
use crate::protocol::payload::ReceivedValue;
use crate::sys::{new_event, notify, pid_number};

/// Processes of one start.
pub(crate) struct ChildGroup {
    /// Process that started the processes of this group.
    owner: u32,
    /// Last process id of each rank, 0 before its start. Readable without a lock, for copies of the owner.
    pids: Vec<AtomicU32>,
    /// `true` if errors name the processes by their ranks.
    ranked: bool,
    pub(super) ranks: Mutex<Vec<RankState>>,
    pub(super) changed: Condvar,
    /// Eventfd that becomes permanently readable at the next change of the group's state. Used by callers
    /// that wait for the end of the last process.
    change_event: Mutex<Option<Arc<OwnedFd>>>,
    /// Sentinels that a caller requested, by rank. They stay open as long as the group exists. All other
    /// sentinels are closed when their processes have ended.
    sentinels: Vec<OnceLock<Arc<OwnedFd>>>,
    /// Sentinel for callers that request a sentinel after the process has ended. Permanently readable.
    over_sentinel: OnceLock<Arc<OwnedFd>>,
    /// Callbacks for the end of all processes.
    pub(super) end_callbacks: Mutex<Vec<EndCallback>>,
}

/// Callback for the end of all processes.
pub(super) struct EndCallback(pub(super) UserValue<Box<dyn FnOnce() + Send>>);

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

    /// Sets the supervision of the only process of this group.
    pub(crate) fn supervise(&self, supervision: Supervision) {
        self.with_rank(0, |rank| rank.supervision = Some(Box::new(supervision)));
    }

    /// Returns an error in a process that was forked from the owner.
    pub(crate) fn check_owner(&self) -> Result<()> {
        if self.owner == std::process::id() {
            Ok(())
        } else {
            Err(SpawnError::OtherProcess { owner: self.owner })
        }
    }

    /// Returns the number of the last start of a supervised process.
    pub(crate) fn attempt(&self) -> Option<u32> {
        self.check_owner().ok()?;
        self.with_rank(0, |rank| rank.supervision.as_ref().map(|its| its.attempt())).flatten()
    }

    /// Calls a function with the state of a rank, if the rank exists.
    pub(crate) fn with_rank<R>(&self, rank: usize, call: impl FnOnce(&mut RankState) -> R) -> Option<R> {
        self.ranks.lock().get_mut(rank).map(call)
    }

    /// Calls a function with the state of a rank. Returns [`SpawnError::NoSuchRank`] if the rank does not
    /// exist.
    pub(crate) fn with_known_rank<R>(
        &self,
        rank: usize,
        call: impl FnOnce(&mut RankState) -> R,
    ) -> Result<R> {
        self.with_rank(rank, call).ok_or(SpawnError::NoSuchRank { rank, nprocs: self.len() })
    }

    pub(crate) fn name(&self, rank: usize) -> String {
        self.ranks.lock().get(rank).map(|rank| rank.name.clone()).unwrap_or_default()
    }

    /// Returns the name of the process of `rank`, for errors.
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
            rank.record_start();
        });
    }

    /// Returns the streams of a rank.
    pub(crate) fn streams(&self, rank: usize) -> Result<OutputStreams> {
        self.check_owner()?;
        self.with_known_rank(rank, |rank| rank.streams.clone())
    }

    /// Reads the remaining output of a rank that has ended. Returns the last lines of its standard error, if
    /// it is captured. Does not block.
    pub(crate) fn drain(&self, rank: usize) -> Option<String> {
        let streams = self.streams(rank).ok()?;
        streams.drain();
        streams.last_stderr_lines()
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

    /// Stores a value again that was taken but not read, so that a later call can take it.
    pub(crate) fn return_value(&self, rank: usize, value: ReceivedValue) {
        value.put_aside();
        if let Some(rank) = self.ranks.lock().get_mut(rank) {
            rank.value = Some(value);
            rank.value_taken = false;
        }
    }

    /// Waits until all processes have ended. Their failures count as reported.
    #[track_caller]
    pub(crate) fn join_all(&self) -> Result<()> {
        self.check_owner()?;
        self.wait(None, false);
        self.mark_all_reported();
        Ok(())
    }

    /// Records that all failures so far were returned to the program.
    pub(crate) fn mark_all_reported(&self) {
        self.ranks.lock().iter_mut().for_each(RankState::mark_reported);
    }

    /// Returns the first failure that was not returned to the program, and that no signal of the program
    /// caused.
    pub(crate) fn unreported_failure(&self) -> Option<SpawnError> {
        let ranks = self.ranks.lock();
        let unreported = ranks.iter().filter(|rank| !rank.reported).filter_map(|rank| rank.failure.as_ref());
        let is_requested = |error: &SpawnError| match error {
            SpawnError::ProcessExited(exited) => exited.detail == Some(ExitDetail::Requested),
            _ => false,
        };
        let unreported = unreported.filter(|(_, error)| !is_requested(error));
        unreported.min_by_key(|(at, _)| *at).map(|(_, error)| error.clone())
    }

    pub(crate) fn len(&self) -> usize {
        self.pids.len()
    }

    /// Returns `true` if all processes have ended.
    pub(crate) fn all_over(&self) -> bool {
        self.ranks.lock().iter().all(|rank| rank.over)
    }

    /// Records a failure of the rank at the time `at`. Does nothing if the rank has failed before, or if this
    /// process had begun to end the rank's process by that time.
    pub(crate) fn record_failure(&self, rank: usize, at: u64, error: SpawnError) {
        self.change(rank, |rank| {
            let ended_by_us = rank.ending.is_some_and(|(since, _)| since <= at);
            if rank.failure.is_none() && !ended_by_us {
                let text = error.to_string();
                children::record_failure(rank.pid_number(), &text);
                mp_core::waits::record_failure(&text);
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
                // The process was killed after it had sent the value. No caller will ask for the value, and
                // its memory may be large.
                rank.value = None;
            }
        });
        let released = self.with_rank(rank, |rank| rank.supervision.as_mut().and_then(|its| its.release()));
        if let Some(resources) = released.flatten() {
            resources.announce_end();
        }
        self.run_end_callbacks();
    }

    pub(super) fn run_end_callbacks(&self) {
        if self.all_over() {
            let calls = std::mem::take(&mut *self.end_callbacks.lock());
            for EndCallback(call) in calls {
                // A panic of the callback, which the hook has printed, must not end the thread that watches
                // all processes.
                catch_panic(|| call.into_inner().map(|call| call()));
            }
        }
    }

    fn change(&self, rank: usize, change: impl FnOnce(&mut RankState)) {
        if let Some(rank) = self.ranks.lock().get_mut(rank) {
            change(rank);
        }
        self.notify_changed();
    }

    /// Wakes threads that wait for changes of the group's state.
    pub(crate) fn notify_changed(&self) {
        self.changed.notify_all();
        if let Some(event) = self.change_event.lock().take() {
            // Can't fail, because no other thread adds to the counter.
            notify(&event);
        }
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

    /// Returns the eventfd that becomes readable at the next change of the group's state. Called with the
    /// ranks locked, so that no change is missed.
    pub(super) fn change_event(&self) -> Option<Arc<OwnedFd>> {
        let mut event = self.change_event.lock();
        if event.is_none() {
            *event = new_event(0).ok().map(Arc::new);
        }
        event.clone()
    }

    /// Returns a description of each rank's state, one line for each rank.
    pub(crate) fn describe(&self) -> Vec<String> {
        if let Err(error) = self.check_owner() {
            return self.pids().into_iter().map(|pid| format!("pid {pid}: {error}")).collect();
        }
        self.ranks.lock().iter().map(RankState::describe).collect()
    }
}

/// Returns `true` if a failure ends the other processes. A failure from Ctrl-C alone does not.
pub(super) fn ends_others(error: &SpawnError) -> bool {
    let SpawnError::ProcessRaised(raised) = error else { return true };
    raised.kind != RaisedKind::Interrupted
}

/// Sentinel of all processes in a forked copy of their parent. Permanently readable, because the copy has no
/// children whose ends it could wait for.
static COPY_SENTINEL: PerProcess<OnceLock<OwnedFd>> = mp_core::per_process!(OnceLock::new());

impl ChildGroup {
    /// Sets the descriptor that serves as the sentinel of processes that have ended. It is permanently
    /// readable.
    pub(crate) fn set_over_sentinel(&self, over: &Arc<OwnedFd>) {
        self.over_sentinel.get_or_init(|| Arc::clone(over));
    }

    /// Returns the sentinels of the processes, by rank. They stay open from now on, also after the ends of
    /// the processes.
    pub(crate) fn sentinels(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ours = self.check_owner().is_ok();
        let all = self.sentinels.iter().enumerate();
        all.filter_map(move |(rank, kept)| {
            if !ours {
                return self.sentinel_in_copy();
            }
            if kept.get().is_none() {
                let sentinel = self.find_sentinel(rank)?;
                // Another thread may have set it first. Either value is valid.
                let _ = kept.set(sentinel);
            }
            kept.get().map(|sentinel| sentinel.as_fd())
        })
    }

    fn find_sentinel(&self, rank: usize) -> Option<Arc<OwnedFd>> {
        let ranks = self.ranks.lock();
        let rank = ranks.get(rank)?;
        if let Some(end) = rank.supervision.as_ref().and_then(|its| its.end()) {
            return Some(Arc::clone(end));
        }
        match &rank.running {
            Some(running) => Some(Arc::clone(running.handle.shared_sentinel())),
            None => self.over_sentinel.get().cloned(),
        }
    }

    /// Returns the sentinel for all processes in a copy of the owner.
    fn sentinel_in_copy(&self) -> Option<BorrowedFd<'_>> {
        let nothing: &'static OnceLock<OwnedFd> = &COPY_SENTINEL;
        if nothing.get().is_none()
            && let Ok(readable) = new_event(1)
        {
            long_lived_fds::register("copy: sentinel", &readable);
            // Another thread may have set it first. Either value is valid.
            let _ = nothing.set(readable);
        }
        let nothing = nothing.get().map(AsFd::as_fd);
        nothing.or_else(|| self.over_sentinel.get().map(|over| over.as_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_returns_the_earliest_failure_in_any_order() {
        let failure = |rank| SpawnError::NoSuchRank { rank, nprocs: 0 };
        for recorded in [[0, 1], [1, 0]] {
            let group = ChildGroup::new(["a".to_string(), "b".to_string()].into_iter(), true);
            for rank in recorded {
                // Rank 1 fails before rank 0 does.
                group.record_failure(rank, 200 - 100 * rank as u64, failure(rank));
            }
            assert_eq!(group.first_failure().and_then(|error| error.rank()), Some(1), "{recorded:?}");
            let order: Vec<_> = group.failures().iter().map(SpawnError::rank).collect();
            assert_eq!(order, [Some(1), Some(0)], "{recorded:?}");
        }
    }
}
