//! The arena: a shared memory region for a whole tree of processes.
//!
//! The arena is a sparse, sealed memfd that each process maps once. Positions in it are stored as offsets.
//! The first process that needs the arena creates it ([`Arena::current`], in `open`). Child processes attach
//! to their parent's arena. Tensor data may also be stored in named files, which are mapped after the memfd
//! in the same address range (`extent`).
//!
//! [`Arena`] is the handle. The operations are methods of views of it: [`Members`](crate::members::Members),
//! [`Envelopes`](crate::envelopes::Envelopes), [`Blocks`](crate::blocks::Blocks),
//! [`Allocator`](crate::alloc::Allocator), [`Recovery`](crate::recovery::Recovery) and others.

pub(crate) mod state;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::OnceLock;

use state::{AllocState, Files, State};

use crate::error::{Error, Result};
use crate::layout::ArenaLayout;
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::sync::Ordering;
use crate::sync::shared::AtomicU64;
use crate::sys::{Errno, Mapping, directory, limits, memory};
use crate::words::Member;

/// Defines a view of an arena: a copy of its handle, with methods for one subject.
macro_rules! view {
    ($(#[$attribute:meta])* $vis:vis struct $name:ident;) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        $vis struct $name(pub Arena);

        #[allow(dead_code, reason = "not every view uses all of them")]
        impl $name {
            #[inline]
            fn map(self) -> &'static crate::sys::Mapping {
                self.0.map()
            }
            #[inline]
            fn layout(self) -> &'static crate::layout::ArenaLayout {
                self.0.layout()
            }
            #[inline]
            fn me(self) -> crate::error::Result<crate::words::Member> {
                self.0.me()
            }
        }
    };
}
pub(crate) use view;

/// Handle to the shared region that this process is a member of. Copying the handle copies a reference.
///
/// ```
/// let arena = mp_core::Arena::current()?;
/// println!("{arena:?}: {} members", arena.members().len());
/// # Ok::<(), mp_core::Error>(())
/// ```
///
/// The arena lives as long as the process: its memory is never unmapped. When the process ends, normally or
/// not, the other members release everything it held.
#[derive(Clone, Copy)]
pub struct Arena(pub(crate) &'static State);

/// Compares by identity. A process has one arena. In a forked child, the parent's arena differs from the
/// arena that the child has joined.
impl PartialEq for Arena {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}
impl Eq for Arena {}

/// Arena of this process, if any. The thread that creates or attaches the arena holds `MAKING`.
pub(crate) static CURRENT: PerProcess<OnceLock<Arena>> = per_process!(OnceLock::new());
pub(crate) static MAKING: PerProcess<Mutex<()>> = per_process!(Mutex::new(()));

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let me = self.me();
        f.debug_struct("Arena")
            .field("id", &format_args!("{:016x}", self.0.id))
            .field("size", &format_args!("{}", crate::error::ByteSize(self.0.layout.size)))
            .field("me", &me.as_ref().map_or("forked", |_| "member"))
            .field("member", &me.ok())
            .finish_non_exhaustive()
    }
}

impl Arena {
    /// Returns the arena of this process, if it already has one.
    pub fn get() -> Option<Self> {
        CURRENT.get().copied().filter(|a| a.is_here())
    }

    /// Returns this process's member tag.
    ///
    /// # Errors
    /// [`Error::Forked`] in a process that was forked from a member.
    #[inline]
    pub fn me(&self) -> Result<Member> {
        match self.0.identity.get() {
            0 => Err(Error::Forked),
            tag => Ok(Member::from_raw(tag - 1)),
        }
    }

    /// Returns `true` if this process is a member. A forked child of a member is not a member.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.0.identity.get() != 0
    }

    /// Returns the size of the arena in bytes. Most of it is address space, not memory.
    pub fn size(&self) -> u64 {
        self.0.layout.size
    }

    /// Returns the random ID of the arena.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn map(&self) -> &'static Mapping {
        &self.0.map
    }
    pub(crate) fn layout(&self) -> &'static ArenaLayout {
        &self.0.layout
    }
    pub(crate) fn holds(&self) -> &'static [AtomicU64] {
        self.0.holds
    }

    /// Returns the state of the allocator in this process.
    #[inline]
    pub(crate) fn alloc_state(&self) -> &'static AllocState {
        &self.0.alloc
    }

    pub(crate) fn files(&self) -> &'static Files {
        &self.0.files
    }

    /// Returns `true` if the arena's memory is private to this process.
    pub fn is_local(&self) -> bool {
        self.files().own.is_none()
    }

    /// Returns the arena's own file.
    ///
    /// # Errors
    /// [`Error::Local`] if the arena has no file.
    pub(crate) fn file(&self) -> Result<BorrowedFd<'static>> {
        self.files().own.as_ref().map(AsFd::as_fd).ok_or(Error::Local)
    }

    /// Reserves pages for a range of the arena's own file.
    pub(crate) fn commit(&self, at: u64, len: u64) -> Result<()> {
        let Ok(own) = self.file() else {
            self.files().local.fetch_add(len, Ordering::Relaxed);
            return Ok(());
        };
        memory::commit(own, at, len).map_err(|e| no_memory(*self, len, e))
    }
}

/// Returns the number of bytes by which the arena's own file can grow, and the limit that determines it.
pub(crate) fn room(arena: Arena) -> (u64, String) {
    match arena.file() {
        // An anonymous file is limited by memory only. The arena may also be a named file.
        Ok(own) => directory::room(own, &memory::path_of(own).unwrap_or_default()),
        Err(_) => limits::memory_left(),
    }
}

/// Returns the error for a failed `fallocate(2)` in the arena's own file.
pub(crate) fn no_memory(arena: Arena, asked: u64, e: Errno) -> Error {
    match e {
        // DQUOT is a quota on an arena that is itself a named file.
        Errno::NOSPC | Errno::NOMEM | Errno::FBIG | Errno::DQUOT => {
            let own = arena.file().ok().and_then(memory::path_of).unwrap_or_default();
            exhausted(asked, e, &own, room(arena))
        }
        e => Error::Os { what: "fallocate in the arena", source: e.into() },
    }
}

/// Returns the error for exhausted memory or disk space, with the limit that was reached. For an exceeded
/// disk quota, the error states less free space than was requested, because the remaining quota can't be
/// queried.
pub(crate) fn exhausted(asked: u64, e: Errno, path: &Path, (left, limit): (u64, String)) -> Error {
    if e != Errno::DQUOT {
        return Error::OutOfMemory { asked, left, limit };
    }
    let limit =
        format!("a quota of this user, group or project on {} (quota(1)); and {limit}", path.display());
    Error::OutOfMemory { asked, left: left.min(asked.saturating_sub(1)), limit }
}
