//! Proof that a wait can't end by itself.
//!
//! A set of processes *hangs* if two conditions hold at one moment. Each of their threads waits without a
//! time-out, in a call of this library, for an event that only processes of the set can cause. None of these
//! events has happened. Then none of these threads can continue. The conditions are proved without stopping a
//! process:
//!
//! 1. A **suspicion** is one pass over the processes, beginning with this one. Each thread of a process
//!    (`/proc/PID/task`) must have a row in the [`table`](super::table) that shows a wait without a time-out.
//!    All members that hold the object of such a wait belong to the set, too. No hang is suspected in any of
//!    these cases: a message in flight has a handle to one of the objects; a thread has no row; a wait has a
//!    time-out, or is for an object of another kind; the recovery of a dead member is not complete. Threads
//!    of this library that run no user code and free nothing that a waiter waits for need no row
//!    ([`serves`](super::serves)).
//! 2. The suspicion is **confirmed** by a second pass that finds the same rows of the same waits, each with
//!    at least two more checks counted. A thread with the same row in both passes did not leave its wait from
//!    one pass to the next: it put, set or released nothing. So from the end of the first pass to the
//!    beginning of the second, no thread of the set ended a wait, and no other process could end one. Each
//!    thread also began at least one check after the first pass, and found nothing. That check would have
//!    found an earlier put.
//!
//! A stopped process checks nothing: its row counts no checks, and the suspicion is never confirmed. Signal
//! handlers, debuggers and another user's `kill` are not considered: a hang is a wait that doesn't end *by
//! itself*.
//!
//! A row has at most six of the processes that a thread waits for ([`WaitObject::Processes`]), so only the
//! waiting process confirms a hang that depends on them.

use std::time::Duration;

use crate::arena::Arena;
use crate::blocking::reports::table::{self, ShownWait};
use crate::blocking::reports::{Subject, WaitObject};
use crate::members::Members;
use crate::sys::identity;
use crate::words::Member;

/// Minimum duration of each wait in a suspicion, so that slow programs rarely cause one.
const OLD: Duration = Duration::from_millis(500);
/// Maximum number of processes in a suspicion. Larger sets of processes are not searched.
const MOST: usize = 256;

/// A set of processes that seems to hang, with the rows of each process's threads.
#[derive(Debug)]
pub(super) struct Suspicion {
    pub(super) arena: Arena,
    pub(super) processes: Vec<(Member, u32, Vec<ShownWait>)>,
}

/// Runs one pass, which begins with this process. The calling thread waits for `subject`. Returns the
/// processes that seem to hang, for a second pass to confirm.
pub(super) fn suspect(subject: &Subject) -> Option<Suspicion> {
    let arena = match subject.on {
        WaitObject::Block(arena, _) => arena,
        WaitObject::Processes(_) => table::arena()?,
        WaitObject::Other => return None,
    };
    let me = arena.me().ok()?;
    let mut set = vec![me];
    let mut processes: Vec<(Member, u32, Vec<ShownWait>)> = Vec::new();
    while let Some(&member) = set.get(processes.len()) {
        let pid = if member == me { identity::process() } else { alive(arena, member)? };
        let rows = rows_of_all_threads(arena, member, pid)?;
        for row in &rows {
            let needed = needed_by(arena, member, row, (me, subject))?;
            set.extend(needed.into_iter().filter(|needed| !set.contains(needed)).collect::<Vec<_>>());
        }
        processes.push((member, pid, rows));
        if set.len() > MOST {
            return None;
        }
    }
    Some(Suspicion { arena, processes })
}

/// Returns the process ID of a live member.
fn alive(arena: Arena, member: Member) -> Option<u32> {
    let info = Members(arena).members().into_iter().find(|info| info.member == member)?;
    (info.live && !Members(arena).is_dead(member)).then_some(info.pid)
}

/// Returns the rows of a process, if each of its threads is a service thread or has a row without a time-out.
fn rows_of_all_threads(arena: Arena, member: Member, pid: u32) -> Option<Vec<ShownWait>> {
    let mut rows = Vec::new();
    table::each(arena, member, |seen| rows.push(seen));
    let services = table::services(arena, member);
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let thread: u32 = task.ok()?.file_name().to_str()?.parse().ok()?;
        if services.contains(&thread) {
            continue;
        }
        let mut its = rows.iter().filter(|row| row.thread == thread);
        let (Some(row), None) = (its.next(), its.next()) else {
            return None;
        };
        if !row.forever || row.waited() < OLD {
            return None;
        }
        found.push(row.clone());
    }
    // A process without threads is gone.
    (!found.is_empty()).then_some(found)
}

/// Returns the members that can end a wait. Returns `None` if the wait may also end in another way, or if
/// this process does not know all members that can end it.
fn needed_by(
    arena: Arena,
    member: Member,
    row: &ShownWait,
    (me, subject): (Member, &Subject),
) -> Option<Vec<Member>> {
    if let Some(block) = row.block.filter(|_| row.call.text().is_ended_by_holders) {
        let (mut members, others) = super::holders_of(arena, block);
        members.retain(|holder| *holder != member);
        return (others == 0).then_some(members);
    }
    // A wait for processes: only the calling thread has the list.
    let WaitObject::Processes(pids) = &subject.on else { return None };
    if member != me || row.thread != identity::thread() || pids.is_empty() {
        return None;
    }
    let members = Members(arena).members();
    pids.iter()
        .map(|pid| members.iter().find(|info| info.pid == *pid && info.live).map(|info| info.member))
        .collect()
}

impl Suspicion {
    /// Makes a second pass. Returns `true` if it confirms the suspicion, and `None` as long as some thread
    /// has not checked its condition twice since the first pass.
    pub(super) fn is_confirmed(&self, subject: &Subject) -> Option<bool> {
        let Some(again) = suspect(subject) else { return Some(false) };
        if again.processes.len() != self.processes.len() {
            return Some(false);
        }
        let mut all_polled = true;
        for ((member, pid, rows), (same, of, now)) in self.processes.iter().zip(&again.processes) {
            if (member, pid) != (same, of) || rows.len() != now.len() {
                return Some(false);
            }
            for row in rows {
                let Some(later) = now.iter().find(|later| later.is_same_wait(row)) else {
                    return Some(false);
                };
                all_polled &= later.polls.wrapping_sub(row.polls) >= 2;
            }
        }
        all_polled.then_some(true)
    }
}
