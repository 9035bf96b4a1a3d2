//! Behaviour of groups in a copy of the process that started them, which does not have these children.
//!
//! No locks are taken there: another thread may have held the lock when the copy was made, and no thread of
//! the copy unlocks it.

use crate::error::{Result, SpawnError};
use crate::parent::group::ChildGroup;

impl ChildGroup {
    /// Returns an error in a process that was forked from the owner.
    pub(crate) fn check_owner(&self) -> Result<()> {
        if self.owner == std::process::id() {
            Ok(())
        } else {
            Err(SpawnError::OtherProcess { owner: self.owner })
        }
    }

    /// Returns the same error. Used by functions that do not block, except on a lock.
    pub(crate) fn may_lock(&self) -> Result<()> {
        self.check_owner()
    }

    /// Returns a line for each process.
    pub(crate) fn describe_in_copy(&self, error: &SpawnError) -> Vec<String> {
        self.pids().into_iter().map(|pid| format!("pid {pid}: {error}")).collect()
    }
}
