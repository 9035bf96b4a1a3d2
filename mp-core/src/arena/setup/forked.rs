//! What a forked copy of this process has of its arena and must not keep: see [`crate::fork`].

use std::os::fd::RawFd;

use crate::process::mutex::MutexGuard;

use crate::arena::alloc;
use crate::arena::messages::idle;
use crate::arena::recovery::intents;
use crate::arena::setup::backing_files::Held;
use crate::arena::{Arena, CURRENT, MAKING};
use crate::error::Result;

/// The arena of a process that is about to be copied. No arena is made, and no file opened, as long as it lives.
#[derive(Debug)]
pub(crate) struct Inherited {
    _making: MutexGuard<'static, ()>,
    arena: Option<(Arena, Held)>,
}

impl Arena {
    /// In the thread that forks, before it does.
    pub(crate) fn before_fork() -> Inherited {
        let making = MAKING.lock();
        Inherited { _making: making, arena: CURRENT.get().map(|&arena| (arena, arena.hold_files())) }
    }
}

impl Inherited {
    /// In the copy: reserves the addresses of the arena, so that nothing else is mapped there. Allocates no
    /// memory before.
    pub(crate) fn reserve_addresses(&self) -> Result<()> {
        // Plain memory has no file, and the copy of it is private to the copy; it is not inherited either.
        self.arena.as_ref().map_or(Ok(()), |(arena, _)| arena.map().reserve_in_copy())
    }

    /// The files of the arena that the process has open.
    pub(crate) fn files(&self) -> &[RawFd] {
        self.arena.as_ref().map_or(&[], |(_, held)| &held.files)
    }
}

/// In the copy: forgets what this thread has, which is the original's.
pub(crate) fn forget_thread() {
    intents::forget_thread();
    idle::forget_thread();
    alloc::forget_thread();
}
