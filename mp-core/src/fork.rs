//! Forked copies of this process that become separate processes: the memory part of the start method `fork`.
//!
//! `fork(2)` copies a process without the cooperation of its libraries. A copy that was not prepared is
//! not a member of the arena: operations that need shared memory return [`Error::Forked`]. Operations
//! that can't return an error return an empty result. Accesses to memory, for example to the elements of a
//! tensor, raise SIGSEGV, unless [`keep_memory_readable`] was called. A copy prepared by this module begins
//! like a newly started process: it may join the arena as a separate member, like any child.
//!
//! | state of the original | in the copy |
//! |---|---|
//! | identity as a member, held blocks | reads 0 (`MADV_WIPEONFORK`), forever: copied handles return [`Error::Forked`], and dropping them releases nothing |
//! | mapping of the arena | missing (`MADV_DONTFORK`). Its addresses are reserved, so that a copied reference into it raises SIGSEGV and never reads another process's data. After [`keep_memory_readable`], copies that were not prepared map the arena's files for private writes |
//! | files of the arena, and their open-file-description locks, which show that their owner lives | closed: a copy that kept them open would make a crashed owner seem alive |
//! | identity of the thread, its lane, its unused envelopes | reset |
//! | locks of this crate and of the crates above it | replaced by new locks, see [`PerProcess`]: no thread missing in the copy holds them |
//! | values looked up once (processors, features of the kernel) | kept. All are looked up before the fork, so that no look-up is half done in the copy |
//!
//! During the fork, the forking thread holds the lock under which an arena is created or joined, and the lock
//! under which files are opened. So the copy has a complete list of the arena's files.
//!
//! | killed process | consequence |
//! |---|---|
//! | the forking process, before or after the fork | the same as at any other time. The copy is not affected |
//! | the copy, before it has joined | none: the copy has no seat, and its copies of files keep locks only while it lives |
//!
//! # Safety
//! [`Fork::begin`] is `unsafe`, because it replaces files that the copy has inherited. This is sound, because
//! handles that use the arena's files detect that they were copied, and the caller vouches for the other
//! files.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use crate::arena::{Arena, CURRENT, MAKING};
use crate::envelopes::idle;
use crate::error::{Error, Result};
use crate::members::intents;
use crate::process::mutex::MutexGuard;
use crate::process::{begin_generation, generation};
use crate::setup::Backing;
use crate::setup::files::HeldFiles;
use crate::storage::copy_on_write::{ARE_INHERITED, MAPPED, MappedRange};
use crate::sync::shared::{AtomicBool, AtomicU32, Ordering};
use crate::{alloc, sys};

pub use crate::process::{GENERATIONS, PerProcess, SetOnce};

// fork: the state that forbids copying is in the process's memory, so a copy inherits it, too.
static FORBIDDEN: OnceLock<&'static str> = OnceLock::new();

/// Forbids copying this process from now on, and records the reason. For processes with state that doesn't
/// survive a copy, for example a driver's memory. The first reason is kept.
pub fn forbid(why: &'static str) {
    _ = FORBIDDEN.set(why);
}

/// Returns the reason why this process can't be copied, if there is one.
#[must_use]
pub fn forbidden() -> Option<&'static str> {
    if let Some(why) = FORBIDDEN.get() {
        return Some(why);
    }
    let last = generation() + 1 >= GENERATIONS;
    last.then_some("it is a copy of a copy, 15 times over; start one by another method in between")
}

/// `true` while this process must not create an arena.
// fork: always `false` when a copy is made.
static CREATION_REFUSED: AtomicBool = AtomicBool::new(false);

/// Calls `f`, and meanwhile refuses to create an arena in this process. For code without shared memory that
/// prepares a process for being copied.
#[doc(hidden)]
pub fn with_creation_refused<R>(f: impl FnOnce() -> R) -> R {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            CREATION_REFUSED.store(false, Ordering::Relaxed);
        }
    }
    CREATION_REFUSED.store(true, Ordering::Relaxed);
    let _restore = Restore;
    f()
}

/// Returns an error while this process must not create an arena.
pub(crate) fn check_creation() -> Result<()> {
    if CREATION_REFUSED.load(Ordering::Relaxed) {
        return Err(Error::InvalidArgument(
            "a fork server can't make shared memory, since its processes would be copies of it: make it in \
             the program or in its processes"
                .to_owned(),
        ));
    }
    Ok(())
}

thread_local! {
    /// `true` while this thread prepares a copy.
    static PREPARING: Cell<bool> = const { Cell::new(false) };
}

/// Maps the arena in each forked process that was not prepared, at the addresses of its parent, for private
/// writes. Code that has only an address, such as a view of another language, can continue to read. The
/// forked process reads the changes of the members, except in pages that it has written itself. It owns no
/// block: members may free a block and allocate it again at any time.
///
/// The files are opened again for that: a process that closes its inherited descriptors must not keep the
/// locks that make a dead parent seem alive. A file that can't be opened (without `/proc`, or at the limit of
/// descriptors) is not mapped.
///
/// Without this call, an access in such a process raises SIGSEGV. Handles return [`Error::Forked`] in both
/// cases.
#[doc(hidden)]
pub fn keep_memory_readable() {
    if !ARE_INHERITED.swap(true, Ordering::Relaxed) {
        sys::at_exit::on_fork(map_in_child);
    }
}

/// Maps the arena's files for private writes in a forked process that was not prepared. Called in each forked
/// process, by its only thread.
extern "C" fn map_in_child() {
    if let Some(&arena) = CURRENT.get()
        && !PREPARING.get()
    {
        // On failure, the process has no memory at these addresses.
        _ = Backing(arena).map_privately();
    }
}

/// ID of the process that last recorded here that it has inherited no state of this library. 0 before the
/// first check. A forked copy begins with the ID of the process that it was copied from.
// fork: a process id, which differs from the id of a copy.
static CLEAN_PROCESS: AtomicU32 = AtomicU32::new(0);

/// Records that this process is a copy of a process in which no code of the user has run. So this process has
/// inherited as little as a process after `exec`.
#[doc(hidden)]
pub fn record_clean_copy() {
    CLEAN_PROCESS.store(std::process::id(), Ordering::Relaxed);
}

/// Returns `true` if this process was executed, or is a [clean copy](record_clean_copy). In any other copy,
/// the files of an async runtime may also be open in the process that was copied.
#[cfg(feature = "tokio")]
pub(crate) fn inherits_nothing() -> bool {
    const NO_PROCESS: u32 = u32::MAX;
    let this = std::process::id();
    match CLEAN_PROCESS.load(Ordering::Relaxed) {
        // All callers compute the same value.
        0 => {
            let executed = sys::identity::was_executed();
            CLEAN_PROCESS.store(if executed { this } else { NO_PROCESS }, Ordering::Relaxed);
            executed
        }
        process => process == this,
    }
}

/// Preparation of this process for a copy that the calling thread makes. Dropping this value in the process
/// that was copied ends the preparation.
#[derive(Debug)]
pub struct Fork {
    inherited: ForkState,
    /// Empty file that replaces inherited files in the copy.
    placeholder: OwnedFd,
}

impl Fork {
    /// Prepares the copy. Until the result is dropped, no arena is created, and no file of an arena is
    /// opened.
    ///
    /// # Errors
    /// [`Error::Os`] if no descriptor is available.
    pub fn prepare() -> Result<Self> {
        sys::evaluate_lookups();
        let placeholder = sys::placeholder::new().map_err(sys::os("eventfd"))?;
        Ok(Self { inherited: ForkState::lock(), placeholder })
    }

    /// Turns the copy into a separate process, which is not a member of any arena, and closes the inherited
    /// files `more`. Called first in the copy.
    ///
    /// # Errors
    /// [`Error::Os`] if the addresses of the arena can't be reserved.
    ///
    /// # Safety
    /// - The calling process is a copy by `fork(2)`, made by this thread after [`prepare`](Self::prepare).
    ///   This function is called once, before anything else of this library is used.
    /// - The numbers `more` belong to files that are not used in the copy. The calling thread kept other
    ///   threads from closing them when it made the copy.
    pub unsafe fn begin(self, more: &[RawFd]) -> Result<()> {
        let Self { inherited, placeholder } = self;
        // First, before an allocation can get those addresses.
        let reserved = inherited.reserve_addresses();
        for &fd in inherited.files().iter().chain(more) {
            // SAFETY: files of the original that are not used in the copy: the arena's own, whose users
            // detect that they were copied and return an error, and the files that the caller vouches for.
            unsafe { sys::placeholder::replace(fd, placeholder.as_fd()) };
        }
        // The locks stay locked: no thread uses them.
        std::mem::forget(inherited);
        PREPARING.set(false);
        #[cfg(feature = "inject")]
        let armed = crate::sys::inject::for_copies();
        begin_generation();
        #[cfg(feature = "inject")]
        crate::sys::inject::begin_copy(armed);
        sys::identity::forget_thread();
        crate::fork::forget_thread();
        reserved.map_err(|e| match e {
            Error::Os { source, .. } => Error::Os { what: "reserving the addresses of the arena", source },
            other => other,
        })
    }
}

/// Arena of a process that is about to fork. While this value lives, no arena is created, and no file of an
/// arena is opened.
#[derive(Debug)]
pub(crate) struct ForkState {
    _making: MutexGuard<'static, ()>,
    arena: Option<(Arena, HeldFiles)>,
    /// Mappings for private writes, by address.
    mapped: MutexGuard<'static, BTreeMap<usize, MappedRange>>,
}

impl ForkState {
    /// Locks and returns the state that a fork inherits. Called by the forking thread, before it forks.
    pub(crate) fn lock() -> Self {
        let making = MAKING.lock();
        let arena = CURRENT.get().map(|&arena| (arena, Backing(arena).hold_files()));
        PREPARING.set(true);
        Self { _making: making, arena, mapped: MAPPED.lock() }
    }

    /// Reserves the addresses of the arena, and of the arena's mappings for private writes, so that nothing
    /// else is mapped there. Called in the child, before the child allocates memory.
    pub(crate) fn reserve_addresses(&self) -> Result<()> {
        // An arena in private memory has no file, and its mapping is not inherited either.
        self.arena.as_ref().map_or(Ok(()), |(arena, _)| arena.map().reserve_in_copy())?;
        self.mapped.iter().try_for_each(|(&address, range)| range.reserve_in_copy(address))
    }

    /// Returns the files of the arena that the process has open.
    pub(crate) fn files(&self) -> &[RawFd] {
        self.arena.as_ref().map_or(&[], |(_, held)| &held.files)
    }
}

impl Drop for ForkState {
    fn drop(&mut self) {
        PREPARING.set(false);
    }
}

/// Forgets the state of this thread that belongs to the parent. Called in the child.
pub(crate) fn forget_thread() {
    intents::forget_thread();
    idle::forget_thread();
    alloc::forget_thread();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_forbidden_twice_keeps_the_first_reason() {
        assert_eq!(forbidden(), None);
        forbid("a test says so");
        forbid("another one");
        assert_eq!(forbidden(), Some("a test says so"));
    }
}
