//! Copies of this process that become processes of their own: the part of the start method `fork` that is about
//! memory.
//!
//! `fork(2)` copies a process behind the back of everything in it. A copy that was not prepared is no member
//! of the arena: what needs shared memory in it returns [`Error::Forked`]; what can't return an error finds nothing
//! there or, as the elements of a tensor, ends the copy by SIGSEGV. A copy that this module has prepared begins as
//! a process that was just started: it may join the arena as a member of its own, as any child does.
//!
//! | of the process that forks | in the copy |
//! |---|---|
//! | which member it is, what it holds | reads 0 (`MADV_WIPEONFORK`), for ever: handles that were copied refuse with [`Error::Forked`], and dropping them releases nothing |
//! | the mapping of the arena | not there (`MADV_DONTFORK`). Its addresses are reserved, so that a reference into it that was copied is a SIGSEGV and never another process's data |
//! | the files of the arena, and their locks by open file description, which say that their owner lives | closed: a copy that kept them open would make a crashed owner seem alive |
//! | which thread it is, its lane, the envelopes that it keeps | forgotten |
//! | locks of this crate and of those above it | other ones, see [`PerProcess`]: no thread that the copy doesn't have holds them |
//! | what was looked up once (processors, what the kernel can) | stays; looked up before, so that no thread is half done with it |
//!
//! The thread that forks holds, meanwhile, the lock under which an arena is made or joined, and the one under which files
//! are opened: so the copy knows all of them.
//!
//! | killed | left |
//! |---|---|
//! | the process that forks, before or after | what it leaves when it is killed anywhere else: nothing of that reaches the copy |
//! | the copy, before it has joined | nothing: it has no seat, and its copies of files keep locks alive for no longer than itself |

//!
//! # Safety
//! Unsafe, because [`Fork::begin`] declares a contract, and takes the original's files away; sound, because the arena's
//! are used by handles that find that they were copied, and the others its caller vouches for.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use crate::arena::{Arena, Inherited};
use crate::error::{Error, Result};
pub use crate::process::{GENERATIONS, PerProcess, SetOnce};
use crate::process::{begin_generation, generation};
use crate::sync::shared::{AtomicU32, Ordering};
use crate::sys;

// fork: what forbids to copy a process is in its memory, and so in a copy that was made meanwhile.
static FORBIDDEN: OnceLock<&'static str> = OnceLock::new();

/// From now on this process is not to be copied, for this reason: something in it, as a driver's memory, doesn't survive
/// that. The first reason stays.
pub fn forbid(why: &'static str) {
    _ = FORBIDDEN.set(why);
}

/// Why this process can't be copied, if it can't.
#[must_use]
pub fn forbidden() -> Option<&'static str> {
    if let Some(why) = FORBIDDEN.get() {
        return Some(why);
    }
    let last = generation() + 1 >= GENERATIONS;
    last.then_some("it is a copy of a copy, 15 times over; start one by another method in between")
}

/// The process in which nothing is inherited from another one, but what it was executed with.
// fork: it is a number, and a copy finds that it isn't its own.
static ON_ITS_OWN: AtomicU32 = AtomicU32::new(0);

/// Said by a process that was copied from one in which nothing was in use, so that it inherits as little as one that was
/// executed.
#[doc(hidden)]
pub fn begin_on_its_own() {
    ON_ITS_OWN.store(std::process::id(), Ordering::Relaxed);
}

/// Whether this process was executed, or is as if it were. In a copy, what a runtime has open may be open in its original, too.
#[cfg(feature = "tokio")]
pub(crate) fn nothing_is_inherited() -> bool {
    const NO_PROCESS: u32 = u32::MAX;
    let this = std::process::id();
    match ON_ITS_OWN.load(Ordering::Relaxed) {
        // All that ask find the same.
        0 => {
            let executed = sys::identity::was_executed();
            ON_ITS_OWN.store(if executed { this } else { NO_PROCESS }, Ordering::Relaxed);
            executed
        }
        process => process == this,
    }
}

/// A process that is about to be copied by the calling thread. Dropping it, in the original, lets that
/// continue as before.
#[derive(Debug)]
pub struct Fork {
    inherited: Inherited,
    /// What lies where files of the original were: a file that means nothing.
    plug: OwnedFd,
}

impl Fork {
    /// Gets ready. Until it is dropped, no arena is made and no file of one opened.
    ///
    /// # Errors
    /// [`Error::Os`] if there is no descriptor to spare.
    pub fn prepare() -> Result<Self> {
        sys::look_up_everything();
        let plug = sys::plug::new().map_err(sys::os("eventfd"))?;
        Ok(Self { inherited: Arena::before_fork(), plug })
    }

    /// In the copy, first of all: makes it a process of its own, which is no member of any arena. The files `more`, of the
    /// original, are closed in it as well.
    ///
    /// # Errors
    /// [`Error::Os`] if the addresses of the arena can't be reserved.
    ///
    /// # Safety
    /// - The calling process is a copy by `fork(2)`, made by this thread after [`prepare`](Self::prepare); this is
    ///   called once, and before anything else of this library is used.
    /// - The numbers `more` are those of files that the calling thread kept other threads from closing when
    ///   it made the copy, and that are not used in the copy.
    pub unsafe fn begin(self, more: &[RawFd]) -> Result<()> {
        let Self { inherited, plug } = self;
        // First, before anything asks for memory and gets those addresses.
        let reserved = inherited.reserve_addresses();
        for &fd in inherited.files().iter().chain(more) {
            // SAFETY: files of the original that are not used in the copy: the arena's own, whose users find
            // that they were copied and refuse, and those that the caller vouches for.
            unsafe { sys::plug::put(fd, plug.as_fd()) };
        }
        // What is locked stays locked: no thread asks any more.
        std::mem::forget(inherited);
        #[cfg(feature = "inject")]
        let armed = crate::sys::inject::for_copies();
        begin_generation();
        #[cfg(feature = "inject")]
        crate::sys::inject::begin_copy(armed);
        sys::identity::forget_thread();
        crate::arena::forget_thread();
        reserved.map_err(|e| match e {
            Error::Os { source, .. } => Error::Os { what: "reserving the addresses of the arena", source },
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays() {
        assert_eq!(forbidden(), None);
        forbid("a test says so");
        forbid("another one");
        assert_eq!(forbidden(), Some("a test says so"));
    }
}
