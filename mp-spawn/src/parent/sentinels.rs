//! Sentinels: descriptors that become readable when a process ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::kept::kept;
use rustix::event::{EventfdFlags, eventfd};

use crate::parent::group::Group;

/// Permanently readable, because a copy of the process that started others has no ends to wait for.
static NOTHING: PerProcess<OnceLock<OwnedFd>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

impl Group {
    /// Sets the descriptor that serves as the sentinel of processes that are over. It is permanently
    /// readable.
    pub(crate) fn readable_at_the_end(&self, over: &Arc<OwnedFd>) {
        self.over.get_or_init(|| Arc::clone(over));
    }

    /// Returns the sentinels of the processes, by rank. They stay open from now on, also after the ends of
    /// the processes.
    pub(crate) fn sentinels(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ours = self.may_lock().is_ok();
        let all = self.sentinels.iter().enumerate();
        all.filter_map(move |(rank, kept)| {
            if !ours {
                return self.sentinel_of_a_copy();
            }
            if kept.get().is_none() {
                let sentinel = self.sentinel_now(rank)?;
                // Another thread may have set it first. Either value is valid.
                let _ = kept.set(sentinel);
            }
            kept.get().map(|sentinel| sentinel.as_fd())
        })
    }

    fn sentinel_now(&self, rank: usize) -> Option<Arc<OwnedFd>> {
        let ranks = self.ranks.lock();
        let rank = ranks.get(rank)?;
        if let Some(end) = rank.supervision.as_ref().and_then(|its| its.end()) {
            return Some(Arc::clone(end));
        }
        match &rank.running {
            Some(running) => Some(Arc::clone(running.handle.shared_sentinel())),
            None => self.over.get().cloned(),
        }
    }

    /// Returns the sentinel for all processes in a copy of the owner.
    fn sentinel_of_a_copy(&self) -> Option<BorrowedFd<'_>> {
        let nothing: &'static OnceLock<OwnedFd> = &NOTHING;
        if nothing.get().is_none()
            && let Ok(readable) = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        {
            kept("copy: sentinel", &readable);
            // Another thread may have set it first. Either value is valid.
            let _ = nothing.set(readable);
        }
        let nothing = nothing.get().map(AsFd::as_fd);
        nothing.or_else(|| self.over.get().map(|over| over.as_fd()))
    }
}
