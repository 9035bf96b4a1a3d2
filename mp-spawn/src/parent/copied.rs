//! What is known of processes in a copy of the one that started them, which has no such children.
//!
//! Nothing is locked there: another thread may have held the lock when the copy was made, and no thread of the copy unlocks it.

use crate::error::{Result, SpawnError};
use crate::parent::group::Group;

impl Group {
    /// An error in a process that was forked from the owner.
    pub(crate) fn check_owner(&self) -> Result<()> {
        if self.owner == std::process::id() {
            Ok(())
        } else {
            Err(SpawnError::OtherProcess { owner: self.owner })
        }
    }

    /// The same, of what does not block, and would wait for no other reason than a lock.
    pub(crate) fn may_lock(&self) -> Result<()> {
        self.check_owner()
    }

    /// One line for each.
    pub(crate) fn describe_in_a_copy(&self, error: &SpawnError) -> Vec<String> {
        self.pids().into_iter().map(|pid| format!("pid {pid}: {error}")).collect()
    }
}
