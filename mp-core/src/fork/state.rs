//! State of the arena that a forked child inherits and must not keep: see [`crate::fork`].

use std::os::fd::RawFd;

use crate::process::mutex::MutexGuard;

use crate::alloc;
use crate::arena::{Arena, CURRENT, MAKING};
use crate::envelopes::idle;
use crate::error::Result;
use crate::members::intents;
use crate::setup::files::Held;

/// Arena of a process that is about to fork. While this value lives, no arena is created, and no file opened.
#[derive(Debug)]
pub(crate) struct Inherited {
    _making: MutexGuard<'static, ()>,
    arena: Option<(Arena, Held)>,
}

impl Arena {
    /// Locks and returns the state that a fork inherits. Called by the forking thread, before it forks.
    pub(crate) fn before_fork() -> Inherited {
        let making = MAKING.lock();
        Inherited { _making: making, arena: CURRENT.get().map(|&arena| (arena, arena.hold_files())) }
    }
}

impl Inherited {
    /// Reserves the addresses of the arena in the child, so that nothing else is mapped there. Allocates no
    /// memory before that.
    pub(crate) fn reserve_addresses(&self) -> Result<()> {
        // Private memory has no file. The child's copy of it is private to the child, and is not inherited
        // either.
        self.arena.as_ref().map_or(Ok(()), |(arena, _)| arena.map().reserve_in_copy())
    }

    /// Returns the files of the arena that the process has open.
    pub(crate) fn files(&self) -> &[RawFd] {
        self.arena.as_ref().map_or(&[], |(_, held)| &held.files)
    }
}

/// Forgets the state of this thread that belongs to the parent. Called in the child.
pub(crate) fn forget_thread() {
    intents::forget_thread();
    idle::forget_thread();
    alloc::forget_thread();
}
