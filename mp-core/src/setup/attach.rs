//! Deferred attachment: the arena that this process joins when it first needs one.
//!
//! Many workers never need the arena, and joining it costs more than the rest of starting a worker. A
//! process that has not joined is not a member. It holds no blocks or messages, so its death releases
//! nothing.

use std::os::fd::OwnedFd;

use crate::error::{Error, Result};
use crate::process::mutex::Mutex;
use crate::process::{PerProcess, per_process};
use crate::sys::memory;
use crate::words::Member;

/// Function called once, when the process has joined.
pub(crate) type JoinCallback = fn(Member);

#[derive(Debug)]
enum PendingAttach {
    /// Nothing to join, or already joined.
    None,
    /// Arena that only this process may join, while it has this user ID.
    Join { fd: OwnedFd, process: u32, user: u32, joined: JoinCallback },
    /// Joining failed.
    Failed(String),
}

static PENDING: PerProcess<Mutex<PendingAttach>> = per_process!(Mutex::new(PendingAttach::None));

/// Sets the arena to be joined.
#[inline]
pub(crate) fn put(fd: OwnedFd, joined: JoinCallback) {
    *PENDING.lock() = PendingAttach::Join { fd, process: std::process::id(), user: memory::user(), joined };
}

/// Takes the arena that waits to be joined, or `None` if there is nothing to join.
pub(crate) fn take() -> Result<Option<(OwnedFd, JoinCallback)>> {
    let mut later = PENDING.lock();
    match &*later {
        PendingAttach::None => Ok(None),
        // A new arena would not be shared with the other processes.
        PendingAttach::Failed(why) => {
            Err(Error::NotAnArena(format!("this process could not join the one of its parent: {why}")))
        }
        PendingAttach::Join { process, .. } if *process != std::process::id() => Err(Error::Forked),
        PendingAttach::Join { user, .. } if *user != memory::user() => Err(Error::Unsupported(
            "this process has given up its user before it joined the one of its parent: call \
            Arena::current before"
                .into(),
        )),
        PendingAttach::Join { .. } => match std::mem::replace(&mut *later, PendingAttach::None) {
            PendingAttach::Join { fd, joined, .. } => Ok(Some((fd, joined))),
            _ => Ok(None),
        },
    }
}

/// Returns `true` if an arena is to be joined, or could not be joined.
pub(crate) fn is_pending() -> bool {
    !matches!(*PENDING.lock(), PendingAttach::None)
}

/// Records that the arena could not be joined.
pub(crate) fn failed(why: &Error) {
    *PENDING.lock() = PendingAttach::Failed(why.to_string());
}
