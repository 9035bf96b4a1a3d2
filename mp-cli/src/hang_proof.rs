//! Proof that the waits of processes can't end by themselves.
//!
//! A set of processes *hangs* if all their threads wait, without a time-out and in calls of the library, for
//! actions that only processes of the set can take. One snapshot shows such a *cycle*. A second snapshot
//! proves it ([`confirm`]), as in the library's own reports: the same threads are in the same waits and need
//! the same processes, and each thread has checked its condition at least twice between the two snapshots. So
//! no thread of the set has made progress, no other process can help, and each condition was still unmet at
//! the last check. No process is stopped for the proof.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use mp_core::{ObjectSnapshot, ProcessSnapshot, ProcessState, QueueSnapshot, Snapshot, WaitSnapshot};

pub(crate) fn process_of(snapshot: &Snapshot, pid: u32) -> Option<&ProcessSnapshot> {
    let mut all = snapshot.processes.iter().filter(|process| process.pid == pid);
    // A dead process may have had the same number.
    all.clone().find(|process| process.state != ProcessState::Dead).or_else(|| all.next())
}

pub(crate) fn queue_of<'a>(snapshot: &'a Snapshot, wait: &WaitSnapshot) -> Option<&'a QueueSnapshot> {
    snapshot.queues.iter().find(|queue| Some(queue.block) == wait.object)
}

pub(crate) fn object_of<'a>(snapshot: &'a Snapshot, wait: &WaitSnapshot) -> Option<&'a ObjectSnapshot> {
    snapshot.objects.iter().find(|object| Some(object.block) == wait.object)
}

/// Returns the processes that can end a wait, and `true` if only these processes can end it.
pub(crate) fn needed(snapshot: &Snapshot, pid: u32, wait: &WaitSnapshot) -> (Vec<u32>, bool) {
    let others = |all: &[u32]| all.iter().copied().filter(|other| *other != pid).collect::<Vec<_>>();
    if !wait.possible_processes.is_empty() {
        return (others(&wait.possible_processes), true);
    }
    if !wait.processes.is_empty() {
        return (others(&wait.processes), !wait.more_processes);
    }
    if let Some(queue) = queue_of(snapshot, wait) {
        return (others(&queue.holders.processes), wait.ended_by_holders && queue.holders.messages == 0);
    }
    let Some(object) = object_of(snapshot, wait) else { return (Vec::new(), false) };
    let only = wait.ended_by_holders && object.holders.messages == 0;
    match object.owner {
        Some(owner) => (others(&[owner.pid]), only),
        None => (others(&object.holders.processes), only),
    }
}

/// Returns `true` if the condition of a wait was read, and is met.
fn is_met(snapshot: &Snapshot, wait: &WaitSnapshot) -> bool {
    let is_alive = |pid: &u32| process_of(snapshot, *pid).is_some_and(|p| p.state == ProcessState::Running);
    if !wait.processes.is_empty() {
        return !wait.processes.iter().all(is_alive);
    }
    if let Some(ring) = queue_of(snapshot, wait).and_then(|queue| queue.ring.as_ref()) {
        return match wait.call.rsplit("::").next() {
            Some("get" | "recv" | "poll") => ring.len > 0 || ring.closed,
            Some("put" | "send") => ring.closed || ring.capacity.is_none_or(|most| ring.len < most),
            _ => false,
        };
    }
    let owner = object_of(snapshot, wait).and_then(|object| object.owner);
    owner.is_some_and(|owner| !is_alive(&owner.pid))
}

/// Returns the processes on which `process` depends: it can continue only after at least one of them has
/// acted. Returns `None` if it can continue without another process of this program.
pub(crate) fn needs_of(snapshot: &Snapshot, process: &ProcessSnapshot) -> Option<Vec<u32>> {
    let is_waiting = process.state == ProcessState::Running
        && process.other_threads.as_ref().is_some_and(Vec::is_empty)
        && !process.waits.is_empty();
    let mut all = Vec::new();
    for wait in &process.waits {
        let (needs, only) = needed(snapshot, process.pid, wait);
        if !wait.steady || !wait.forever || !only || is_met(snapshot, wait) {
            return None;
        }
        all.extend(needs);
    }
    is_waiting.then_some(all)
}

/// Returns the hang that contains a process: this process, and then all processes on which it depends,
/// directly or through other processes. Returns `None` if one of these processes can continue.
pub(crate) fn hang_of(snapshot: &Snapshot, pid: u32) -> Option<Vec<u32>> {
    let (mut set, mut seen) = (vec![pid], BTreeSet::from([pid]));
    let mut done = 0;
    while let Some(&pid) = set.get(done) {
        done += 1;
        let needs = needs_of(snapshot, process_of(snapshot, pid)?)?;
        set.extend(needs.into_iter().filter(|pid| seen.insert(*pid)));
    }
    Some(set)
}

/// Returns the causes of a hang: processes that are part of a cycle, and processes that no process can help.
/// Each other process of the hang waits for one of the causes.
pub(crate) fn causes_of(snapshot: &Snapshot, hang: &[u32]) -> Vec<u32> {
    let of = |pid: &u32| Some((*pid, needs_of(snapshot, process_of(snapshot, *pid)?)?));
    let needs: BTreeMap<u32, Vec<u32>> = hang.iter().filter_map(of).collect();
    let of = |pid: &u32| needs.get(pid).into_iter().flatten().copied();
    let needs_itself = |pid: u32| {
        // Most cycles are short, and in a large cycle each process may depend on all others.
        if of(&pid).any(|other| needs.get(&other).is_some_and(|needs| needs.contains(&pid))) {
            return true;
        }
        let (mut next, mut seen): (Vec<_>, _) = (of(&pid).collect(), BTreeSet::new());
        while let Some(other) = next.pop().filter(|_| !seen.contains(&pid)) {
            if seen.insert(other) {
                next.extend(of(&other));
            }
        }
        seen.contains(&pid)
    };
    let is_cause = |pid: &u32| of(pid).next().is_none() || needs_itself(*pid);
    hang.iter().copied().filter(is_cause).collect()
}

/// Marks exactly those waits of a snapshot as steady that an earlier snapshot confirms. A cycle of steady
/// waits can't end by itself.
pub(crate) fn confirm(later: &mut Snapshot, earlier: &Snapshot) {
    let is_confirmed = |process: &ProcessSnapshot| {
        let Some(before) = process_of(earlier, process.pid) else { return false };
        let same = |wait: &WaitSnapshot| {
            let mut all = before.waits.iter().filter(|before| before.thread.id == wait.thread.id);
            let Some(old) = all.next() else { return false };
            let of = |wait: &WaitSnapshot| (wait.call.clone(), wait.object, wait.since_ms, wait.forever);
            old.steady
                && of(old) == of(wait)
                && wait.checks.wrapping_sub(old.checks) >= 2
                && needed(earlier, process.pid, old) == needed(later, process.pid, wait)
        };
        before.member == process.member
            && before.waits.len() == process.waits.len()
            && before.other_threads.as_ref().is_some_and(Vec::is_empty)
            && process.waits.iter().all(same)
    };
    let confirmed: Vec<bool> = later.processes.iter().map(is_confirmed).collect();
    for (process, confirmed) in later.processes.iter_mut().zip(confirmed) {
        process.waits.iter_mut().for_each(|wait| wait.steady &= confirmed);
    }
}

/// Returns all processes that wait for each other and can't continue. `top` calls this for each sample, so
/// the holders of an object are read only once for all processes that wait for that object alone.
pub(crate) fn hanging(snapshot: &Snapshot) -> BTreeSet<u32> {
    let of = |process: &ProcessSnapshot| {
        let needs = needs_of(snapshot, process)?;
        let object = if let [wait] = process.waits.as_slice() { wait.object } else { None };
        Some((process.pid, (object, needs)))
    };
    let mut stuck: HashMap<u32, (Option<u32>, Vec<u32>)> = snapshot.processes.iter().filter_map(of).collect();
    // A process can continue if it depends on a process that can continue.
    loop {
        let pids: HashSet<u32> = stuck.keys().copied().collect();
        let are_stuck = |needs: &[u32]| needs.iter().all(|pid| pids.contains(pid));
        let mut known: HashMap<u32, bool> = HashMap::new();
        stuck.retain(|_, (object, needs)| match object {
            Some(block) => *known.entry(*block).or_insert_with(|| are_stuck(needs)),
            None => are_stuck(needs),
        });
        if stuck.len() == pids.len() {
            return stuck.into_keys().collect();
        }
    }
}
