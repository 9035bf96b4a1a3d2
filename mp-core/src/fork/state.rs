//! State of the arena that a forked child inherits and must not keep: see [`crate::fork`].

use std::os::fd::RawFd;

use crate::alloc;
use crate::arena::{Arena, CURRENT, MAKING};
use crate::envelopes::idle;
use crate::error::Result;
use crate::members::intents;
use crate::process::mutex::MutexGuard;
use crate::setup::Backing;
use crate::setup::files::HeldFiles;

/// Arena of a process that is about to fork. While this value lives, no arena is created, and no file opened.
#[derive(Debug)]
pub(crate) struct ForkState {
    _making: MutexGuard<'static, ()>,
    arena: Option<(Arena, HeldFiles)>,
}

impl ForkState {
    /// Locks and returns the state that a fork inherits. Called by the forking thread, before it forks.
    pub(crate) fn lock() -> Self {
        let making = MAKING.lock();
        Self { _making: making, arena: CURRENT.get().map(|&arena| (arena, Backing(arena).hold_files())) }
    }

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
