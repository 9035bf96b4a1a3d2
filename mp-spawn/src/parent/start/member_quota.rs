//! Limit on members of the arena, checked before a start. So an excess of processes is an error of the start,
//! and not of a worker that can't join when it first needs memory.
//!
//! A child joins late, or never. So the count includes members, children of this process that have not
//! joined, and processes that any thread is about to start. Children that other members have started and that
//! have not joined are unknown here. If they are too many, the last one to join returns an error.
//!
//! | state of a process to be started | counted as |
//! |---|---|
//! | its batch was admitted | reserved |
//! | it runs ([`MemberReservation::release_one`]) | a child that has not joined |
//! | it could not be started, or its batch was dropped ([`Drop`]) | nothing |

use std::cell::Cell;
use std::io;

use mp_core::fork::PerProcess;
use mp_core::mutex::Mutex;
use mp_core::{Arena, Members, Recovery};

use crate::error::{LaunchError, Result, SpawnError};
use crate::parent::supervisor;
use crate::protocol::payload::shared_memory;

/// Number of reserved member slots.
static RESERVED: PerProcess<Mutex<usize>> = mp_core::per_process!(Mutex::new(0));

/// Member slots that are reserved for the processes of one start.
#[derive(Debug)]
pub(crate) struct MemberReservation {
    left: Cell<usize>,
}

/// Reserves member slots for `count` processes.
pub(crate) fn reserve(count: usize) -> Result<MemberReservation> {
    let arena = shared_memory::arena()?;
    let mut reserved = RESERVED.lock();
    // The order matters, here and below: a child that joins in between is counted as a child or as a member,
    // never as neither.
    let children = supervisor::not_joined();
    let (limit, members) = Members(arena).most_members();
    // This fast check is usually sufficient. It counts some members that have left.
    if count > limit.saturating_sub(members + children.len() + *reserved) {
        let free = limit.saturating_sub(count_processes(&arena) + *reserved);
        if count > free {
            return Err(too_many(count, free, limit));
        }
    }
    *reserved += count;
    Ok(MemberReservation { left: Cell::new(count) })
}

/// Counts members, and children that are not members. A child that has joined and has not reported it yet is
/// counted once.
#[cold]
fn count_processes(arena: &Arena) -> usize {
    let mut children = supervisor::not_joined();
    // Crashed processes occupy their places until they are reclaimed. Fails only in a forked process, which
    // has no children.
    let _ = Recovery(*arena).reclaim_unreported();
    let members = arena.members();
    children.retain(|pid| !members.iter().any(|member| member.pid == *pid));
    members.len() + children.len()
}

#[cold]
fn too_many(count: usize, free: usize, limit: usize) -> SpawnError {
    let why = format!("{count} were asked for, and there is room for {free}");
    let runs = limit - free;
    SpawnError::Launch(Box::new(LaunchError {
        what: "the start of that many processes",
        program: None,
        limit: Some(format!(
            "{limit} processes that share memory (256 where less than 4 GiB of addresses can be mapped), \
             the first one of the tree included; {runs} run or are being started"
        )),
        cause: None,
        source: io::Error::new(io::ErrorKind::QuotaExceeded, why).into(),
    }))
}

impl MemberReservation {
    /// Releases the reservation of a process that runs.
    pub(crate) fn release_one(&self) {
        self.release(1);
    }

    fn release(&self, count: usize) {
        let count = count.min(self.left.get());
        self.left.set(self.left.get() - count);
        let mut reserved = RESERVED.lock();
        *reserved = reserved.saturating_sub(count);
    }
}

impl Drop for MemberReservation {
    fn drop(&mut self) {
        if self.left.get() > 0 {
            self.release(self.left.get());
        }
    }
}
