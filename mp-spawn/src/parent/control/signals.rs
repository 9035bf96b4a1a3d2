//! Signals to the processes of a group, and their end.

use std::sync::Arc;
use std::time::Duration;

use mp_core::pauses::wait_without_pauses;

use crate::error::exit_status::Signal;
use crate::error::{Result, SpawnError};
use crate::parent::group::ChildGroup;
use crate::sys::clock::{deadline, now};

/// Time between SIGTERM and SIGKILL if no grace period is set.
pub(crate) const GRACE: Duration = Duration::from_secs(5);
/// Time to wait after a SIGKILL: a process in an uninterruptible system call does not end.
const AFTER_KILL: Duration = Duration::from_secs(10);

impl ChildGroup {
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
}
