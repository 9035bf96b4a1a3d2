//! What becomes readable when a process ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use mp_core::fork::{GENERATIONS, PerProcess};
use mp_core::kept::kept;
use rustix::event::{EventfdFlags, eventfd};

use crate::parent::group::Group;

/// Readable from the beginning, for good: in a copy of the process that started others, there is no end to wait for.
static NOTHING: PerProcess<OnceLock<OwnedFd>> = PerProcess::new([const { OnceLock::new() }; GENERATIONS]);

impl Group {
    /// What is readable from now on, for good.
    pub(crate) fn readable_at_the_end(&self, over: &Arc<OwnedFd>) {
        self.over.get_or_init(|| Arc::clone(over));
    }

    /// The sentinels of the processes, by rank, which stay open from now on, also after their ends.
    pub(crate) fn sentinels(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ours = self.may_lock().is_ok();
        let all = self.sentinels.iter().enumerate();
        all.filter_map(move |(rank, kept)| {
            if !ours {
                return self.sentinel_of_a_copy();
            }
            if kept.get().is_none() {
                let sentinel = self.sentinel_now(rank)?;
                // Another thread may have been faster; either will do.
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

    /// What takes the place of each in a copy of the owner.
    fn sentinel_of_a_copy(&self) -> Option<BorrowedFd<'_>> {
        let nothing: &'static OnceLock<OwnedFd> = &NOTHING;
        if nothing.get().is_none()
            && let Ok(readable) = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        {
            kept("copy: sentinel", &readable);
            // Another thread may have been faster; either will do.
            let _ = nothing.set(readable);
        }
        let nothing = nothing.get().map(AsFd::as_fd);
        nothing.or_else(|| self.over.get().map(|over| over.as_fd()))
    }
}
