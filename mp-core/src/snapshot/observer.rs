//! Observers: read-only views of the arena of another program.
//!
//! # Safety
//! The code is `unsafe` because a handle of an arena refers to a state that is assumed to live as long as the
//! process, but an observer's state is freed with the observer. It is sound because the handle stays in this
//! module's type. The handle is used only during a call, and no value that refers to the state is returned.
//!
//! The mapping has no write access, so that not even an error in this library changes the arena. The handle
//! has no identity: each function that would change the arena returns [`Error::Forked`] instead, as in a
//! forked copy of a member.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};

use super::{Snapshot, StorageSnapshot, read};
use crate::arena::Arena;
use crate::arena::state::{AllocState, Budget, Files, State};
use crate::error::{Error, Result};
use crate::layout::{ArenaLayout, size_class};
use crate::open::{FILE_NAME, check_size};
use crate::setup::files;
use crate::sync::shared::AtomicU64;
use crate::sys::identity::Identity;
use crate::sys::{Mapping, memory};

/// Identity in the handle of an observer: a process that is not a member.
// fork: never changes.
static NO_MEMBER: AtomicU64 = AtomicU64::new(0);

/// Read access to the arena of another program, from outside.
///
/// ```no_run
/// use mp_core::Observer;
///
/// let snapshot = Observer::of_process(4711)?.snapshot();
/// println!("{} queues", snapshot.queues.len());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// An observer is not a member of the program, and can't change its data: the mapping has no write access. It
/// stops no process, and the program can't detect it. The death of the observing process does not affect the
/// program.
#[derive(Debug)]
pub struct Observer(Observed);

#[derive(Debug)]
enum Observed {
    /// The arena of this process. It is not opened a second time: closing another descriptor of the arena's
    /// file would drop the locks of this process.
    Own(Arena),
    /// State of the observer's handle, from [`Box::into_raw`].
    Other(*mut State),
}

// SAFETY: the state consists of atomics, locks and a mapping, each of which may be used by any thread.
unsafe impl Send for Observer {}
// SAFETY: as above.
unsafe impl Sync for Observer {}

impl Observer {
    /// Opens the arena of the program that a process belongs to, through the descriptors of the process
    /// (`/proc/PID/fd`).
    ///
    /// # Errors
    /// [`Error::NotAnArena`] if the process has no arena, or belongs to another user; [`Error::Os`] if its
    /// descriptors are not accessible; [`Error::Version`] if its program has another version of this library;
    /// [`Error::Unsupported`] if the process is in another PID namespace.
    pub fn of_process(pid: u32) -> Result<Self> {
        let own = Arena::get();
        let file = memory::open_of_process(pid, FILE_NAME, own.and_then(|own| own.file().ok()))?;
        match (file, own) {
            (None, Some(own)) => Ok(Self(Observed::Own(own))),
            (Some(file), _) => Self::new(file),
            (None, None) => Err(Error::Forked),
        }
    }

    fn new(file: OwnedFd) -> Result<Self> {
        let size = check_size(files::verify(file.as_fd())?)?;
        let header = memory::read_words(file.as_fd())?;
        let layout = ArenaLayout::new(size, size_class::CLASSES, ArenaLayout::envelopes_in(&header)?);
        let id = layout.check(|word| header[word.offset() as usize / 8], None)?;
        let map = Mapping::read_only(file.as_fd(), size)?;
        let state = State {
            map,
            layout,
            id,
            identity: Identity::of(&NO_MEMBER),
            holds: &[],
            files: Files::new(Some(file)),
            alloc: AllocState::new(Budget::of_this_process()),
        };
        Ok(Self(Observed::Other(Box::into_raw(Box::new(state)))))
    }

    /// Returns the present state of the program: see [`Snapshot::of`].
    pub fn snapshot(&self) -> Snapshot {
        read::snapshot(self.arena())
    }

    /// Returns the tensor memory in a block, even if the block is not among the
    /// [largest](Snapshot::storages). Returns `None` if the block contains no elements of a tensor.
    pub fn storage(&self, block: u32) -> Option<StorageSnapshot> {
        read::storage(self.arena(), block)
    }

    /// Returns the handle of the arena, for a call that keeps no reference to the state.
    fn arena(&self) -> Arena {
        match self.0 {
            Observed::Own(arena) => arena,
            // SAFETY: the state lives as long as `self`, and the result is used by functions that return no
            // reference to it: a snapshot has none.
            Observed::Other(state) => Arena(unsafe { &*state }),
        }
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        if let Observed::Other(state) = self.0 {
            // SAFETY: from `Box::into_raw`, and not used after this.
            let state = unsafe { Box::from_raw(state) };
            state.map.unmap();
        }
    }
}
