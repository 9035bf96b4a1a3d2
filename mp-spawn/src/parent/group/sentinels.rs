//! Sentinels: descriptors that become readable when a process ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::long_lived_fds;

use crate::parent::group::ChildGroup;
use crate::sys::descriptors::new_event;

/// Permanently readable, because a copy of the process that started others has no ends to wait for.
static COPY_SENTINEL: PerProcess<OnceLock<OwnedFd>> =
    PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

impl ChildGroup {
    /// Sets the descriptor that serves as the sentinel of processes that are over. It is permanently
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
