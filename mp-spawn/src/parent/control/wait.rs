//! Waits for the end of the processes of a group.

use std::os::fd::OwnedFd;
use std::time::Instant;

use mp_core::Wait;
use mp_core::mutex::MutexGuard;
use mp_core::waits::{BlockingCall, Subject, WaitObject, Watch};
use rustix::event::{PollFd, PollFlags};

use crate::io::streams::OutputStreams;
use crate::parent::group::rank::{RankState, RunningProcess};
use crate::parent::group::{ChildGroup, ends_others};
use crate::parent::supervisor;
use crate::sys::clock::timespec;

impl ChildGroup {
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
        supervisor::reap(last.id);
    }
}
