//! What is known about the processes of one start, shared between the supervisor and whoever waits.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::error::{Result, SpawnError};
use crate::exit::Signal;

/// How long to wait for processes that got a SIGKILL: a process in an uninterruptible system call stays.
const AFTER_KILL: Duration = Duration::from_secs(10);

/// How a process is doing.
///
/// ```
/// use mp_spawn::{Options, Status, start_processes};
///
/// let context = start_processes(|_rank: usize, (): ()| {}, (), Options::nprocs(1))?;
/// context.join()?;
/// assert!(matches!(context.status(0)?, Status::Ended));
/// # Ok::<(), mp_spawn::SpawnError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Status {
    /// It runs.
    Running,
    /// It ended and is content: its function returned, or it called `exit(0)`.
    Ended,
    /// It failed. Its process may still be on its way out.
    Failed(SpawnError),
    /// It was ended because another one failed, or because nobody wanted it any more; this is the last signal
    /// that it got.
    EndedByUs(Signal),
}

/// The processes of one start.
#[derive(Debug)]
pub(crate) struct Group {
    /// The process that started them.
    owner: u32,
    ranks: Mutex<Vec<Rank>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Rank {
    name: String,
    pid: Option<Pid>,
    /// Open while the process has not been reaped.
    pidfd: Option<Arc<OwnedFd>>,
    /// The time and the error of its failure.
    failure: Option<(u64, SpawnError)>,
    /// The time of the first and the name of the last signal that ended it for another one's sake.
    ending: Option<(u64, Signal)>,
    /// The last signal that the program sent to this one alone.
    asked: Option<Signal>,
    over: bool,
}

impl Group {
    pub(crate) fn new(names: impl Iterator<Item = String>) -> Group {
        let rank = |name| Rank {
            name,
            pid: None,
            pidfd: None,
            failure: None,
            ending: None,
            asked: None,
            over: false,
        };
        Group {
            owner: std::process::id(),
            ranks: Mutex::new(names.map(rank).collect()),
            changed: Condvar::new(),
        }
    }

    /// An error in a process that was forked from the owner.
    pub(crate) fn check_owner(&self) -> Result<()> {
        if self.owner == std::process::id() {
            Ok(())
        } else {
            Err(SpawnError::OtherProcess { owner: self.owner })
        }
    }

    pub(crate) fn name(&self, rank: usize) -> String {
        self.ranks.lock().get(rank).map(|rank| rank.name.clone()).unwrap_or_default()
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.ranks.lock().iter().map(|rank| rank.pid.map_or(0, pid_number)).collect()
    }

    pub(crate) fn started(&self, rank: usize, pid: Pid, pidfd: Arc<OwnedFd>) {
        self.change(rank, |rank| {
            rank.pid = Some(pid);
            rank.pidfd = Some(pidfd);
        });
    }

    /// The rank failed at this time, unless it failed before, or only because it was being ended.
    pub(crate) fn failed(&self, rank: usize, at: u64, error: SpawnError) {
        self.change(rank, |rank| {
            let ended_by_us = rank.ending.is_some_and(|(since, _)| since <= at);
            if rank.failure.is_none() && !ended_by_us {
                rank.failure = Some((at, error));
            }
        });
    }

    /// The process was reaped, or never started.
    pub(crate) fn over(&self, rank: usize) {
        self.change(rank, |rank| {
            rank.pidfd = None;
            rank.over = true;
        });
    }

    /// The last signal that the program sent to this rank alone.
    pub(crate) fn asked(&self, rank: usize) -> Option<Signal> {
        self.ranks.lock().get(rank).and_then(|rank| rank.asked)
    }

    fn change(&self, rank: usize, change: impl FnOnce(&mut Rank)) {
        if let Some(rank) = self.ranks.lock().get_mut(rank) {
            change(rank);
        }
        self.changed.notify_all();
    }

    pub(crate) fn status(&self, rank: usize) -> Result<Status> {
        let ranks = self.ranks.lock();
        let found = ranks.get(rank).ok_or(SpawnError::NoSuchRank { rank, nprocs: ranks.len() })?;
        Ok(found.status())
    }

    /// The failure that happened first.
    pub(crate) fn first_failure(&self) -> Option<SpawnError> {
        let ranks = self.ranks.lock();
        let failures = ranks.iter().filter_map(|rank| rank.failure.as_ref());
        failures.min_by_key(|(at, _)| *at).map(|(_, error)| error.clone())
    }

    /// All failures in the order in which they happened.
    pub(crate) fn failures(&self) -> Vec<SpawnError> {
        let mut failures: Vec<_> = self.ranks.lock().iter().filter_map(|rank| rank.failure.clone()).collect();
        failures.sort_by_key(|(at, _)| *at);
        failures.into_iter().map(|(_, error)| error).collect()
    }

    /// Sends a signal to one rank on the program's behalf.
    pub(crate) fn ask(&self, rank: usize, signal: Signal) -> Result<()> {
        let mut ranks = self.ranks.lock();
        let nprocs = ranks.len();
        let found = ranks.get_mut(rank).ok_or(SpawnError::NoSuchRank { rank, nprocs })?;
        found.asked = Some(signal);
        found.signal(signal).map_err(|error| crate::launch::failed("pidfd_send_signal", None, error.into()))
    }

    /// Waits until all are over, or one has failed if that is asked for; false when time ran out.
    pub(crate) fn wait(&self, until: Option<Instant>, or_failure: bool) -> bool {
        let settled = |ranks: &[Rank]| {
            ranks.iter().all(|rank| rank.over)
                || or_failure && ranks.iter().any(|rank| rank.failure.is_some())
        };
        let mut ranks = self.ranks.lock();
        while !settled(&ranks) {
            match until {
                None => self.changed.wait(&mut ranks),
                Some(until) => {
                    if self.changed.wait_until(&mut ranks, until).timed_out() {
                        return settled(&ranks);
                    }
                }
            }
        }
        true
    }

    /// Ends all that still run: time to end by themselves, then SIGTERM, time, SIGKILL. Returns when all are
    /// over, or some time after the SIGKILL.
    pub(crate) fn end_all(&self, before_term: Option<Duration>, before_kill: Duration) {
        if let Some(grace) = before_term
            && self.wait(deadline(grace), false)
        {
            return;
        }
        self.end_with(Signal::TERM);
        if !self.wait(deadline(before_kill), false) {
            self.end_with(Signal::KILL);
            self.wait(deadline(AFTER_KILL), false);
        }
    }

    /// After a start that failed: what never started is over, and the rest, which was killed, will be soon.
    pub(crate) fn reap_incomplete(&self) {
        for rank in self.ranks.lock().iter_mut().filter(|rank| rank.pid.is_none()) {
            rank.over = true;
        }
        self.wait(deadline(AFTER_KILL), false);
    }

    fn end_with(&self, signal: Signal) {
        let now = now();
        for rank in self.ranks.lock().iter_mut().filter(|rank| !rank.over) {
            // One that has reported its failure is on its way out: a SIGTERM would only cut its exit handlers short.
            if rank.failure.is_none() || signal == Signal::KILL {
                let since = rank.ending.map_or(now, |(since, _)| since);
                rank.ending = Some((since, signal));
                // It fails for a process that has ended just now.
                let _ = rank.signal(signal);
            }
        }
    }

    /// One line for each rank.
    pub(crate) fn describe(&self) -> Vec<String> {
        let ranks = self.ranks.lock();
        let describe = |rank: &Rank| {
            let pid = rank.pid.map_or(0, pid_number);
            match rank.status() {
                Status::Running => format!("{} (pid {pid}): running", rank.name),
                Status::Ended => format!("{} (pid {pid}): ended", rank.name),
                Status::Failed(error) => error.to_string(),
                Status::EndedByUs(signal) => format!("{} (pid {pid}): ended by us with {signal}", rank.name),
            }
        };
        ranks.iter().map(describe).collect()
    }
}

impl Rank {
    fn status(&self) -> Status {
        match (&self.failure, self.over, self.ending) {
            (Some((_, error)), ..) => Status::Failed(error.clone()),
            (None, false, _) => Status::Running,
            (None, true, Some((_, signal))) => Status::EndedByUs(signal),
            (None, true, None) => Status::Ended,
        }
    }

    /// Sends a signal, unless the process is over.
    fn signal(&self, signal: Signal) -> Result<(), Errno> {
        let Some(pidfd) = &self.pidfd else { return Ok(()) };
        let signal = if signal == Signal::KILL {
            rustix::process::Signal::KILL
        } else {
            rustix::process::Signal::TERM
        };
        match rustix::process::pidfd_send_signal(pidfd, signal) {
            Err(Errno::SRCH) => Ok(()),
            result => result,
        }
    }
}

/// The instant so far from now; `None`, which is never, when the clock doesn't reach that far.
pub(crate) fn deadline(after: Duration) -> Option<Instant> {
    Instant::now().checked_add(after)
}

/// The monotonic clock in nanoseconds, which all processes of this machine share.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// A process id as the standard library has it.
pub(crate) fn pid_number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}
