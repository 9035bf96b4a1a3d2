//! Status of the processes of a group, and callbacks for their end.

use mp_core::user_code::UserValue;
use mp_core::waits::{Service, serves_no_more};

use crate::error::exit_status::ExitStatus;
use crate::error::{Result, SpawnError};
use crate::parent::group::rank::RankState;
use crate::parent::group::{ChildGroup, EndCallback};
use crate::parent::process_status::ProcessStatus;
use crate::parent::supervisor;

impl ChildGroup {
    /// Reaps the process of this rank if it has ended, without waiting for the supervisor to notice: a caller
    /// that has detected the end at the sentinel queries the exit status. If the process runs, the supervisor
    /// watches its messages from now on, unless the process has just started.
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

    /// Returns the exit status of the process of this rank, if it has ended.
    pub(crate) fn exit(&self, rank: usize) -> Option<ExitStatus> {
        self.check_owner().ok()?;
        self.poll(rank);
        self.ranks.lock().get(rank).and_then(RankState::exit_status)
    }

    pub(crate) fn status(&self, rank: usize) -> Result<ProcessStatus> {
        self.check_owner()?;
        self.poll(rank);
        let ranks = self.ranks.lock();
        let found = ranks.get(rank).ok_or(SpawnError::NoSuchRank { rank, nprocs: ranks.len() })?;
        Ok(found.status())
    }

    /// Returns all failures, the earliest first.
    pub(crate) fn failures(&self) -> Vec<SpawnError> {
        if let Err(error) = self.check_owner() {
            return vec![error];
        }
        self.poll_all();
        let mut failures: Vec<_> = self.ranks.lock().iter().filter_map(|rank| rank.failure.clone()).collect();
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

    /// Calls a function when all processes are over, or at once if they are.
    pub(crate) fn on_end(&self, call: impl FnOnce() + Send + 'static) {
        if self.check_owner().is_err() {
            return;
        }
        serves_no_more(Service::Supervisor);
        self.end_callbacks.lock().push(EndCallback(UserValue::new(Box::new(call))));
        self.run_end_callbacks();
        // Watches the processes, so that the supervisor notices the end at once.
        let running = |rank: &RankState| rank.running.as_ref().map(|running| running.id);
        let running: Vec<u64> = self.ranks.lock().iter().filter_map(running).collect();
        running.into_iter().for_each(supervisor::watch);
    }
}
