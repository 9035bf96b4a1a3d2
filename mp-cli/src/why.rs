//! The chain of waits of a process, and the proof that it can't end.
//!
//! A set of processes *hangs* if all their threads wait without a time-out, in calls of the library, for what
//! only processes of the set can do. One snapshot shows such a *circle*; it is proved by a second one
//! ([`confirm`]), in the way of the library's own reports: the same threads are in the same waits, need the
//! same processes, and each has checked its condition at least twice in between. So no thread of the set did
//! anything meanwhile, no other process could, and each has looked after that and found nothing. No process
//! is stopped for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mp_core::{ObjectSnapshot, ProcessSnapshot, ProcessState, QueueSnapshot, Snapshot, WaitSnapshot};
use serde::Serialize;

use crate::tables::{duration, failures};

/// Maximum number of processes that are shown beneath one wait.
const WIDTH: usize = 8;
/// Maximum number of failures that are shown.
const FAILURES: usize = 3;
/// Columns up to the places in the source.
const COLUMN: usize = 68;

/// Waits of processes.
#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    pub(crate) chains: Vec<Node>,
    /// `true` if the processes wait in a circle, which can't end by itself if the snapshot was confirmed.
    pub(crate) hangs: bool,
    /// Advice for the waits that can't end.
    advice: Vec<String>,
    /// Last failures of processes.
    failures: Vec<String>,
    /// Conclusion, if the snapshot was confirmed.
    #[serde(skip)]
    reason: &'static str,
}

/// A wait, or another state, and what it needs.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Node {
    text: String,
    place: Option<String>,
    /// Remark after the text.
    mark: &'static str,
    needs: Vec<Node>,
}

impl From<String> for Node {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

/// Explains the waits of these processes.
pub(crate) fn explain(snapshot: &Snapshot, pids: &[u32]) -> Explanation {
    let mut found = Explanation {
        chains: Vec::new(),
        hangs: false,
        advice: Vec::new(),
        failures: failures(snapshot).rev().take(FAILURES).collect(),
        reason: ALONE,
    };
    found.failures.reverse();
    let (mut shown, mut explained) = (BTreeSet::new(), BTreeSet::<u32>::new());
    for pid in pids {
        let Some(process) = process_of(snapshot, *pid) else {
            let is_alive = std::path::Path::new(&format!("/proc/{pid}")).exists();
            let state = if is_alive { "is no member of the program" } else { "has ended" };
            found.chains.push(format!("process {pid} {state}").into());
            continue;
        };
        let hang = if explained.contains(pid) { None } else { hang_of(snapshot, *pid) };
        if !shown.contains(pid) {
            let mut chain = Chain { snapshot, shown: &mut shown };
            let title = if pids.len() > 1 { Some(process) } else { None };
            found.chains.extend(chain.of_process(process, title));
        }
        let Some(hang) = hang else { continue };
        explained.extend(&hang);
        found.hangs = true;
        for pid in causes_of(snapshot, &hang) {
            if process_of(snapshot, pid).and_then(|its| needs_of(snapshot, its)) != Some(Vec::new()) {
                found.reason = CIRCLE;
            }
            for wait in process_of(snapshot, pid).iter().flat_map(|process| &process.waits) {
                for advice in advice(snapshot, wait) {
                    if !found.advice.contains(&advice) {
                        found.advice.push(advice);
                    }
                }
            }
        }
    }
    found
}

fn process_of(snapshot: &Snapshot, pid: u32) -> Option<&ProcessSnapshot> {
    let mut all = snapshot.processes.iter().filter(|process| process.pid == pid);
    // A dead process may have had the same number.
    all.clone().find(|process| process.state != ProcessState::Dead).or_else(|| all.next())
}

fn queue_of<'a>(snapshot: &'a Snapshot, wait: &WaitSnapshot) -> Option<&'a QueueSnapshot> {
    snapshot.queues.iter().find(|queue| Some(queue.block) == wait.object)
}

fn object_of<'a>(snapshot: &'a Snapshot, wait: &WaitSnapshot) -> Option<&'a ObjectSnapshot> {
    snapshot.objects.iter().find(|object| Some(object.block) == wait.object)
}

/// Returns the processes that can end a wait, and `true` if nothing else can.
fn needed(snapshot: &Snapshot, pid: u32, wait: &WaitSnapshot) -> (Vec<u32>, bool) {
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

/// Returns the processes of which one would have to act, so that a process can go on. Returns `None` if it
/// can go on without another one of this program.
fn needs_of(snapshot: &Snapshot, process: &ProcessSnapshot) -> Option<Vec<u32>> {
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

/// Returns the processes that wait for each other in a circle, beginning with this one, if it is one of them.
fn hang_of(snapshot: &Snapshot, pid: u32) -> Option<Vec<u32>> {
    let (mut set, mut seen) = (vec![pid], BTreeSet::from([pid]));
    let mut done = 0;
    while let Some(&pid) = set.get(done) {
        done += 1;
        let needs = needs_of(snapshot, process_of(snapshot, pid)?)?;
        set.extend(needs.into_iter().filter(|pid| seen.insert(*pid)));
    }
    Some(set)
}

/// Returns the processes of a hang that wait for each other, or that no process can help. The other ones only
/// wait for these.
fn causes_of(snapshot: &Snapshot, hang: &[u32]) -> Vec<u32> {
    let of = |pid: &u32| Some((*pid, needs_of(snapshot, process_of(snapshot, *pid)?)?));
    let needs: BTreeMap<u32, Vec<u32>> = hang.iter().filter_map(of).collect();
    let of = |pid: &u32| needs.get(pid).into_iter().flatten().copied();
    let needs_itself = |pid: u32| {
        // Most circles are short, and in a large one all may need all.
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

/// Marks the waits of a snapshot as steady that an earlier one confirms, and no others: circles of steady
/// waits can't end by themselves.
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

/// Returns all processes that wait for each other for good. Looks at each process a few times only, so that
/// `top` can call it again and again.
pub(crate) fn hanging(snapshot: &Snapshot) -> BTreeSet<u32> {
    let of = |process: &ProcessSnapshot| Some((process.pid, needs_of(snapshot, process)?));
    let mut stuck: BTreeMap<u32, Vec<u32>> = snapshot.processes.iter().filter_map(of).collect();
    // A process can go on if it needs one that can.
    loop {
        let pids: BTreeSet<u32> = stuck.keys().copied().collect();
        stuck.retain(|_, needs| needs.iter().all(|pid| pids.contains(pid)));
        if stuck.len() == pids.len() {
            break;
        }
    }
    let mut found = BTreeSet::new();
    for pid in stuck.into_keys() {
        if !found.contains(&pid) {
            found.extend(hang_of(snapshot, pid).into_iter().flatten());
        }
    }
    found
}

fn advice(snapshot: &Snapshot, wait: &WaitSnapshot) -> Vec<String> {
    let mut all = vec![wait.advice.clone()];
    all.retain(|advice| !advice.is_empty());
    if let Some(QueueSnapshot { name, ring: Some(ring), .. }) = queue_of(snapshot, wait)
        && !name.is_empty()
        && ring.capacity.is_some_and(|most| ring.len >= most)
    {
        all.push(format!("Give {name:?} more room, or take from it."));
    }
    all
}

/// Waits that are described together: the call, its object, and its place in the source.
#[derive(PartialEq)]
struct WaitKey(String, Option<u32>, Option<String>);

impl WaitKey {
    /// Returns the wait of a process that does nothing else, and doesn't hold what it waits for.
    fn of(snapshot: &Snapshot, process: &ProcessSnapshot) -> Option<Self> {
        let owner = |wait| object_of(snapshot, wait).and_then(|object| object.owner).map(|owner| owner.pid);
        match process.waits.as_slice() {
            [wait]
                if process.state == ProcessState::Running
                    && wait.object.is_some()
                    && owner(wait) != Some(process.pid) =>
            {
                Some(Self(wait.call.clone(), wait.object, wait.place.clone()))
            }
            _ => None,
        }
    }
}

/// A chain of waits, while it is followed.
struct Chain<'a> {
    snapshot: &'a Snapshot,
    /// Processes that were described, or will be.
    shown: &'a mut BTreeSet<u32>,
}

impl Chain<'_> {
    /// Describes the threads of a process. `title` is the process, if the text begins with its name.
    fn of_process(&mut self, process: &ProcessSnapshot, title: Option<&ProcessSnapshot>) -> Vec<Node> {
        self.shown.insert(process.pid);
        let title = title.map_or(String::new(), |process| format!("{}: ", named(process)));
        let state = match process.state {
            ProcessState::Dead => "is dead; its resources are not released yet",
            ProcessState::Stopped => "is stopped by a signal or a debugger: `kill -CONT` continues it",
            _ if process.waits.is_empty() => "is in no call of multiproc that waits",
            _ => "",
        };
        if !state.is_empty() {
            return vec![format!("{title}{state}").into()];
        }
        let is_single = process.waits.len() == 1 && !title.is_empty();
        let waits = process.waits.iter();
        waits.map(|wait| self.of_wait(process, wait, &title, is_single)).collect()
    }

    fn of_wait(&mut self, process: &ProcessSnapshot, wait: &WaitSnapshot, title: &str, short: bool) -> Node {
        let thread = match &wait.thread {
            _ if short => String::new(),
            thread if thread.id == process.pid => "thread main: ".into(),
            thread => format!("thread {} ({}): ", thread.name, thread.id),
        };
        let text = format!("{title}{thread}{} for {}", self.call(wait), duration(wait.waited_ms));
        let needs = self.needs(process.pid, wait);
        Node { text, place: wait.place.clone(), mark: "", needs }
    }

    /// Returns the call and its object: `Queue::put of queue "results" (#0, 64/64)`.
    fn call(&self, wait: &WaitSnapshot) -> String {
        let WaitSnapshot { call, kind, .. } = wait;
        if !wait.processes.is_empty() {
            let more = if wait.more_processes { ", and more" } else { "" };
            return format!("{call} of {}{more}", self.list(&wait.processes));
        }
        let Some(block) = wait.object else { return call.clone() };
        let queue = queue_of(self.snapshot, wait);
        let name = queue.map(|queue| &queue.name);
        let name = name.or_else(|| object_of(self.snapshot, wait).map(|object| &object.name));
        let name = name.filter(|name| !name.is_empty()).map_or(String::new(), |name| format!(" {name:?}"));
        let state = match queue.and_then(|queue| queue.ring.as_ref()) {
            Some(ring) => format!(", {}", crate::tables::fill(ring)),
            None => String::new(),
        };
        format!("{call} of {kind}{name} (#{block}{state})")
    }

    fn name_of(&self, pid: u32) -> String {
        process_of(self.snapshot, pid).map_or_else(|| format!("{pid} (ended)"), named)
    }

    /// Returns the names of processes, or the number of many.
    fn list(&self, pids: &[u32]) -> String {
        match pids {
            [first, _, _, .., last] => {
                format!("{} processes, {} to {}", pids.len(), self.name_of(*first), self.name_of(*last))
            }
            few => few.iter().map(|pid| self.name_of(*pid)).collect::<Vec<_>>().join(", "),
        }
    }

    /// Describes processes that this one waits for. Those with the same wait are described together.
    fn of_others(&mut self, others: &[u32]) -> Vec<Node> {
        let mut groups: Vec<(Option<WaitKey>, Vec<u32>)> = Vec::new();
        for pid in others {
            let key = process_of(self.snapshot, *pid).and_then(|process| WaitKey::of(self.snapshot, process));
            match groups.iter_mut().find(|(other, _)| key.is_some() && *other == key) {
                Some((_, group)) => group.push(*pid),
                None => groups.push((key, vec![*pid])),
            }
        }
        let mut nodes = Vec::new();
        for (_, group) in groups.iter().take(WIDTH) {
            let Some(process) = process_of(self.snapshot, group[0]) else {
                nodes.push(format!("{} has ended", group[0]).into());
                continue;
            };
            match process.waits.as_slice() {
                [wait] if group.len() > 1 => {
                    let waits = group.iter().filter_map(|pid| process_of(self.snapshot, *pid)?.waits.first());
                    let shortest = waits.map(|wait| wait.waited_ms).min().unwrap_or(wait.waited_ms);
                    let title = format!("{}: ", self.list(group));
                    let mut wait = wait.clone();
                    wait.waited_ms = shortest;
                    nodes.push(self.of_wait(process, &wait, &title, true));
                }
                _ => nodes.extend(self.of_process(process, Some(process))),
            }
        }
        let rest: usize = groups.iter().skip(WIDTH).map(|(_, group)| group.len()).sum();
        if rest > 0 {
            nodes.push(format!("and {rest} more").into());
        }
        nodes
    }

    fn needs(&mut self, pid: u32, wait: &WaitSnapshot) -> Vec<Node> {
        let (needed, only) = needed(self.snapshot, pid, wait);
        let (above, new): (Vec<_>, Vec<_>) = needed.into_iter().partition(|pid| self.shown.contains(pid));
        // All of them before any of them is followed, so that each is described once.
        self.shown.extend(&new);
        let mut nodes: Vec<Node> = self.of_shown(&above, wait, only).into_iter().collect();
        nodes.extend(self.of_others(&new));
        let messages = queue_of(self.snapshot, wait).map(|queue| queue.holders.messages);
        let messages = messages.or_else(|| object_of(self.snapshot, wait).map(|o| o.holders.messages));
        if let Some(count @ 1..) = messages.filter(|_| wait.ended_by_holders) {
            let messages = if count == 1 { "message in transit has" } else { "messages in transit have" };
            nodes.push(format!("{count} {messages} a handle to it").into());
        }
        let owner = object_of(self.snapshot, wait).and_then(|object| object.owner);
        if let Some(owner) = owner.filter(|owner| owner.pid == pid) {
            nodes.push(format!("thread {} of this process holds it", owner.thread).into());
        }
        if nodes.is_empty() && wait.ended_by_holders {
            nodes.push(format!("no other process {}", wait.ended_by).into());
        }
        nodes
    }

    /// Describes processes that are described elsewhere in one line.
    fn of_shown(&self, pids: &[u32], wait: &WaitSnapshot, only: bool) -> Option<Node> {
        let mut calls: Vec<(&str, Vec<u32>)> = Vec::new();
        for pid in pids {
            let process = process_of(self.snapshot, *pid);
            let call = process.and_then(|process| process.waits.first()).map_or("", |wait| &wait.call);
            match calls.iter_mut().find(|(other, _)| *other == call) {
                Some((_, group)) => group.push(*pid),
                None => calls.push((call, vec![*pid])),
            }
        }
        let text = |(call, pids): &(&str, Vec<u32>)| {
            let call = if call.is_empty() { String::new() } else { format!(" (in {call})") };
            self.list(pids) + &call
        };
        let names: Vec<_> = calls.iter().map(text).collect();
        let is_owned = object_of(self.snapshot, wait).is_some_and(|object| object.owner.is_some());
        let ended_by = if is_owned { "holds it" } else { &wait.ended_by };
        let text = format!("{ended_by}: {}", names.join("; "));
        let mark = if only { ONLY } else { "" };
        (!pids.is_empty()).then(|| Node { mark, ..text.into() })
    }
}

const CIRCLE: &str = "These processes wait for each other: this can't end by itself.";
const ALONE: &str = "No other process can end this wait: it can't end by itself.";
/// Remark on processes that alone could end a wait.
const ONLY: &str = "← no other process";

/// Returns the process ID and the name of a process.
fn named(process: &ProcessSnapshot) -> String {
    match &process.name {
        name if name.is_empty() => process.pid.to_string(),
        name => format!("{} {name}", process.pid),
    }
}

impl Explanation {
    /// Returns the conclusion, if the snapshot was confirmed.
    pub(crate) fn conclusion(&self) -> String {
        let lines = [self.reason].into_iter().chain(self.advice.iter().map(String::as_str));
        if self.hangs { lines.map(|line| format!("{line}\n")).collect() } else { String::new() }
    }
}

/// Formats the waits. The [conclusion](Explanation::conclusion) follows them.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.chains.iter().try_for_each(|node| node.write(f, 0))?;
        self.failures.iter().try_for_each(|failure| writeln!(f, "failed {failure}"))
    }
}

impl Node {
    fn write(&self, f: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        let indent =
            if depth == 0 { String::new() } else { format!("{}└ ", "    ".repeat(depth - 1) + "  ") };
        let text = format!("{indent}{}", self.text);
        let place = self.place.as_ref().map_or(String::new(), |place| format!("[{place}]"));
        let after = format!("{place}{}", self.mark);
        let text = if after.is_empty() { text } else { format!("{text:<COLUMN$} {after}") };
        writeln!(f, "{text}")?;
        self.needs.iter().try_for_each(|node| node.write(f, depth + 1))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wait(thread: u32, object: u32, waited: u64, checks: u64) -> Value {
        json!({
            "thread": {"id": thread, "name": "main"}, "call": "lock", "kind": "lock", "object": object,
            "processes": [], "more_processes": false, "place": null, "waited_ms": waited, "since_ms": waited,
            "checks": checks, "forever": true, "steady": true, "ended_by_holders": true,
            "ended_by": "has a handle to it", "advice": "",
        })
    }

    fn process(pid: u32, wait: &Value) -> Value {
        json!({
            "pid": pid, "member": "m", "name": "", "state": "running", "parent": 1, "blocks": 0, "bytes": 0,
            "waits": [wait], "other_threads": [],
        })
    }

    fn lock(block: u32, owner: u32) -> Value {
        let holders = json!({"processes": [10, 20], "messages": 0});
        json!({
            "block": block, "kind": "lock", "name": "", "holders": holders,
            "owner": {"pid": owner, "thread": owner},
        })
    }

    /// Returns a program in which each of two processes wants the lock of the other, with these numbers of
    /// checks.
    fn cycle(checks: [u64; 2]) -> Snapshot {
        let processes = [process(10, &wait(10, 2, 7, checks[0])), process(20, &wait(20, 1, 8, checks[1]))];
        let memory = json!({
            "size": 0, "reserved": 0, "allocated": 0, "cached": 0, "blocks": 0, "queued": 0,
            "queued_bytes": 0, "deaths": 0,
        });
        let snapshot = json!({
            "arena": "0", "version": "0", "taken_ms": 0, "processes": processes, "queues": [],
            "objects": [lock(1, 10), lock(2, 20)], "memory": memory, "changed": 0,
        });
        serde_json::from_value(snapshot).unwrap()
    }

    /// Returns `true` if the second snapshot proves the hang that the first one shows.
    fn is_proved(first: &Snapshot, mut second: Snapshot) -> bool {
        confirm(&mut second, first);
        explain(&second, &[10]).hangs
    }

    #[test]
    fn circle_is_proved_by_two_checks_of_each_thread() {
        let first = cycle([5, 9]);
        let found = explain(&first, &[10]);
        assert!(found.hangs && found.to_string().contains("holds it: 10 (in lock)"), "{found}");
        assert!(is_proved(&first, cycle([7, 11])));
        assert!(!is_proved(&first, cycle([7, 10])), "a thread may have looked before the first snapshot");
    }

    #[test]
    fn advice_is_of_the_circle_alone() {
        let mut snapshot = cycle([5, 9]);
        snapshot.processes[0].waits[0].advice = "Was a guard kept?".into();
        let mut join = wait(5, 0, 7, 5);
        (join["call"], join["processes"], join["advice"]) = (json!("join"), json!([10]), json!("Close it."));
        snapshot.processes.push(serde_json::from_value(process(5, &join)).unwrap());
        let found = explain(&snapshot, &[5]);
        assert_eq!(found.conclusion(), format!("{CIRCLE}\nWas a guard kept?\n"));
    }

    #[test]
    fn wait_that_no_process_can_end_is_no_circle() {
        let mut snapshot = cycle([5, 9]);
        snapshot.objects[1].owner = None;
        snapshot.objects[1].holders.processes = vec![10];
        let found = explain(&snapshot, &[10]);
        assert!(found.to_string().contains("no other process has a handle to it"), "{found}");
        assert_eq!(found.conclusion(), format!("{ALONE}\n"));
        // Nor do those that wait for it make it one.
        let mut join = wait(5, 0, 7, 5);
        (join["call"], join["processes"]) = (json!("join"), json!([10]));
        snapshot.processes.push(serde_json::from_value(process(5, &join)).unwrap());
        assert_eq!(explain(&snapshot, &[5]).conclusion(), format!("{ALONE}\n"));
    }

    #[test]
    fn processes_with_the_same_wait_are_one_line() {
        let mut snapshot = cycle([5, 9]);
        let mut join = wait(5, 0, 7, 5);
        let ranks = [30, 31, 32, 33];
        (join["call"], join["processes"]) = (json!("join"), json!(ranks));
        let processes = ranks.map(|rank| process(rank, &wait(rank, 2, 1000 * u64::from(rank), 5)));
        let mut all = vec![process(5, &join)];
        all.extend(processes);
        snapshot.processes.extend(all.into_iter().map(|its| serde_json::from_value(its).unwrap()));
        let text = explain(&snapshot, &[5]).to_string();
        let line = "  └ 4 processes, 30 to 33: lock of lock (#2) for 30 s\n";
        assert!(text.contains(line), "{text}");
        // The holder of a lock that waits for it in another thread is apart from them.
        snapshot.objects[1].owner = serde_json::from_value(json!({"pid": 30, "thread": 99})).unwrap();
        let text = explain(&snapshot, &[5]).to_string();
        assert!(text.contains("thread 99 of this process holds it"), "{text}");
        assert!(text.contains("31, 32, 33: lock") && text.contains("holds it: 30"), "{text}");
    }

    #[test]
    fn hang_of_many_processes_is_explained_in_time() {
        let mut snapshot = cycle([5, 9]);
        let pids: Vec<u32> = (100..700).collect();
        let all = pids.iter().map(|pid| process(*pid, &wait(*pid, 1, 7, 5)));
        snapshot.processes = all.map(|its| serde_json::from_value(its).unwrap()).collect();
        snapshot.objects[0].owner = None;
        snapshot.objects[0].holders.processes.clone_from(&pids);
        let began = std::time::Instant::now();
        assert!(explain(&snapshot, &pids).hangs);
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn changed_circle_is_not_proved() {
        let first = cycle([5, 9]);
        let changed = |change: fn(&mut Snapshot)| {
            let mut second = cycle([7, 11]);
            change(&mut second);
            is_proved(&first, second)
        };
        assert!(!changed(|second| second.processes[1].waits[0].since_ms += 1), "another wait");
        assert!(!changed(|second| second.objects[0].holders.messages = 1), "a handle on the way");
        assert!(!changed(|second| second.processes[1].other_threads = None), "unknown threads");
        assert!(!changed(|second| second.processes[0].state = ProcessState::Stopped), "a stopped process");
    }
}
