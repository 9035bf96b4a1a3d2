//! Shared memory of a parent and its children: the file that is sent, envelopes that change their owner, and
//! the declaration of deaths.
//!
//! # Safety
//! Unsafe, because the arena's file is sent and attached, an envelope is claimed by its number, and a member
//! is declared dead. Sound, for three reasons. File and number are sent to one child, over a socket that only
//! this child has. Parent and child take the envelope by the same compare-and-swap, which succeeds for only
//! one of them. A death is declared after `waitid`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use mp_core::words::Member;
use mp_core::{Arena, Envelope, EnvelopeTicket, Members, Recovery};

use crate::error::{LaunchError, Result, SpawnError, os_limit};

/// Returns the shared memory of this process, and joins it if necessary.
pub(crate) fn arena() -> Result<Arena> {
    Arena::current().map_err(no_memory)
}

fn no_memory(error: mp_core::Error) -> SpawnError {
    match os_limit::of_memory() {
        None => SpawnError::Arguments {
            who: None,
            message: mp_reduce::Error::from(error).to_string(),
            unread: None,
        },
        cause => SpawnError::Launch(Box::new(LaunchError {
            what: "sharing memory with a worker",
            program: None,
            limit: None,
            cause,
            source: io::Error::other(error).into(),
        })),
    }
}

/// Returns the file of the arena, to be sent to a child.
pub(crate) fn arena_file() -> Result<BorrowedFd<'static>> {
    // SAFETY: sent to a child that attaches it, and not duplicated here.
    unsafe { arena()?.fd() }.map_err(no_memory)
}

/// Claims an envelope that the process at the other end of the socket has handed over to this one.
pub(crate) fn claim(ticket: EnvelopeTicket) -> Result<Envelope, String> {
    let arena = Arena::current().map_err(|e| e.to_string())?;
    // SAFETY: the parent or the child of this process sent this ticket to this process alone. The child does
    // not use the envelope, and the parent takes it back only by the same compare-and-swap.
    unsafe { ticket.claim(arena) }.map_err(|e| e.to_string())
}

/// Joins the shared memory in the file `fd`. Called before any other use of shared memory in the child. If
/// `now` is `true`, joins at once and returns the member number of this process. Otherwise returns `None`,
/// and this process joins when it first needs shared memory, and then calls `report`.
#[inline]
pub(crate) fn child_attach(fd: Option<OwnedFd>, now: bool, report: fn(Member)) -> io::Result<Option<u32>> {
    let Some(fd) = fd else { return Ok(None) };
    if !now {
        // SAFETY: the file came from the parent, which sends the file of its arena.
        unsafe { Arena::attach_later(fd, report) };
        return Ok(None);
    }
    // SAFETY: as above.
    let me = unsafe { Arena::attach(fd) }.and_then(|arena| arena.me()).map_err(io::Error::other)?;
    Ok(Some(me.raw() as u32))
}

/// Declares the dead child `pid` in the shared memory, and releases its resources. Returns the number of
/// processes whose resources were released. Called once for each child, right after it was reaped. Followed
/// by [`report_reclaimed`].
pub(crate) fn declare_dead_child(member: Option<u32>, pid: u32) -> usize {
    let Some(arena) = Arena::get() else { return 0 };
    if let Some(member) = member {
        // SAFETY: the child has been reaped.
        unsafe { Members(arena).declare_dead(Member::from_raw(u64::from(member))) };
    }
    // Fails only in a forked process, which is not the parent of these children.
    Recovery(arena).reclaim_ended(pid).unwrap_or(0)
}

/// Emits the events of processes whose resources were released. Called without locks.
pub(crate) fn report_reclaimed() {
    if let Some(arena) = Arena::get() {
        Recovery(arena).report_reclaimed();
    }
}

#[cfg(test)]
mod tests {
    use mp_core::Messages;
    use mp_core::Promise;
    use mp_core::message::Outgoing;

    use super::*;

    /// The child's claim succeeds before the parent has dropped the promise, and fails afterwards.
    #[test]
    fn argument_envelope_that_no_child_claims_is_freed() {
        let arena = Arena::current().unwrap();
        let promise = || Promise::new(Messages(arena).pack(&mut Outgoing::default(), 0).unwrap());
        let ticket = |promise: &Promise| EnvelopeTicket::from_bytes(&promise.ticket().to_bytes()).unwrap();
        let claimed = promise();
        assert!(claim(ticket(&claimed)).is_ok());
        let dropped = promise();
        let late = ticket(&dropped);
        drop(dropped);
        assert!(claim(late).is_err(), "the envelope was taken back");
    }
}
