//! The chain of waits of a process, as text. The module [`hang_proof`](crate::hang_proof) decides whether the
//! chain can end.

use std::collections::BTreeSet;
use std::fmt;

use mp_core::{ProcessSnapshot, ProcessState, QueueSnapshot, Snapshot, WaitSnapshot};
use serde::Serialize;

use crate::hang_proof::{causes_of, hang_of, needed, needs_of, object_of, process_of, queue_of};
use crate::tables::{duration, failures};

/// Maximum number of processes that are shown beneath one wait.
const WIDTH: usize = 8;
/// Maximum number of failures that are shown.
const FAILURES: usize = 3;
/// Column at which locations in the source begin.
const COLUMN: usize = 68;

/// Waits of processes.
#[derive(Debug, Serialize)]
pub(crate) struct Explanation {
    pub(crate) chains: Vec<Node>,
    /// `true` if the processes wait in a cycle, which can't end by itself if the snapshot was confirmed.
    pub(crate) hangs: bool,
    /// Advice for the waits that can't end.
    advice: Vec<String>,
    /// `true` if a process waits.
    #[serde(skip)]
    waits: bool,
    /// Last failures of processes.
    failures: Vec<String>,
    /// Text of the conclusion. It is valid only if the snapshot was confirmed.
    #[serde(skip)]
    reason: &'static str,
}

/// A wait or another state of a process, and the waits on which it depends.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Node {
    text: String,
    place: Option<String>,
    /// Remark that is printed after the text.
    mark: String,
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
        waits: false,
        reason: ALONE,
    };
    found.failures.reverse();
    let (mut shown, mut explained) = (BTreeSet::new(), BTreeSet::<u32>::new());
    for pid in pids {
        let Some(process) = process_of(snapshot, *pid) else {
            let is_alive = std::path::Path::new(&format!("/proc/{pid}")).exists();
            let state = if is_alive { "is not a process of the program" } else { "has ended" };
            found.chains.push(format!("process {pid} {state}").into());
            continue;
        };
        found.waits |= !process.waits.is_empty();
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
            let has_queue = hang
                .iter()
                .filter_map(|pid| process_of(snapshot, *pid))
                .any(|process| process.waits.iter().any(|wait| queue_of(snapshot, wait).is_some()));
            // The advice for waits for processes is about their queues.
            let of_interest = |wait: &&WaitSnapshot| wait.processes.is_empty() || has_queue;
            let waits = process_of(snapshot, pid).into_iter().flat_map(|process| &process.waits);
            for wait in waits.filter(of_interest) {
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

fn advice(snapshot: &Snapshot, wait: &WaitSnapshot) -> Vec<String> {
    let object = queue_of(snapshot, wait).map(|queue| &queue.name);
    let object = object.or_else(|| object_of(snapshot, wait).map(|object| &object.name));
    let object = object.filter(|name| !name.is_empty()).map_or(String::new(), |name| format!("{name:?}: "));
    let mut all = vec![format!("{object}{}", wait.advice)];
    all.retain(|_| !wait.advice.is_empty());
    if let Some(QueueSnapshot { name, ring: Some(ring), .. }) = queue_of(snapshot, wait)
        && !name.is_empty()
        && ring.capacity.is_some_and(|most| ring.len >= most)
    {
        all.push(format!("Give {name:?} more room, or take from it."));
    }
    all
}

/// Key of waits that are described together: the call, its object, and its location in the source.
#[derive(PartialEq)]
struct WaitKey(String, Option<u32>, Option<String>);

impl WaitKey {
    /// Returns the key of the only wait of a process. Returns `None` if the process has several waits, or
    /// holds the object that it waits for.
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

/// State of the traversal of a chain of waits.
struct Chain<'a> {
    snapshot: &'a Snapshot,
    /// Processes that the text already describes or will describe.
    shown: &'a mut BTreeSet<u32>,
}

impl Chain<'_> {
    /// Describes the waits of a process, or its state if it has no waits. If `title` is this process, its
    /// name precedes each wait. If `title` is `None`, the waits have no name.
    fn of_process(&mut self, process: &ProcessSnapshot, title: Option<&ProcessSnapshot>) -> Vec<Node> {
        self.shown.insert(process.pid);
        let text_of = |process| format!("{}: ", named(process));
        let title = title.map_or(String::new(), text_of);
        let state = match process.state {
            ProcessState::Dead => "is dead; its resources are not released yet",
            ProcessState::Stopped => "is stopped by a signal or a debugger: `kill -CONT` continues it",
            _ if process.waits.is_empty() => "is in no call of multiproc that waits",
            _ => "",
        };
        if !state.is_empty() {
            return vec![format!("{}{state}", text_of(process)).into()];
        }
        let is_single = process.waits.len() == 1 && !title.is_empty();
        let waits = process.waits.iter();
        waits.map(|wait| self.of_wait(process, wait, &title, is_single)).collect()
    }

    fn of_wait(&mut self, process: &ProcessSnapshot, wait: &WaitSnapshot, title: &str, short: bool) -> Node {
        self.of_waits(process, wait, (title, short), &[])
    }

    /// Describes a wait that a process and the processes `more` have in common.
    fn of_waits(
        &mut self,
        process: &ProcessSnapshot,
        wait: &WaitSnapshot,
        (title, short): (&str, bool),
        more: &[u32],
    ) -> Node {
        let thread = match &wait.thread {
            _ if short => String::new(),
            thread if thread.id == process.pid => "thread main: ".into(),
            thread => format!("thread {} ({}): ", thread.name, thread.id),
        };
        let text = format!("{title}{thread}{} for {}", self.call(wait), duration(wait.waited_ms));
        let needs = self.needs(process.pid, wait, more);
        Node { text, place: wait.place.clone(), mark: String::new(), needs }
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

    /// Returns the names of processes, or only their number if there are many.
    fn list(&self, pids: &[u32]) -> String {
        match pids {
            [first, _, _, .., last] => {
                format!("{} processes, {} to {}", pids.len(), self.name_of(*first), self.name_of(*last))
            }
            few => few.iter().map(|pid| self.name_of(*pid)).collect::<Vec<_>>().join(", "),
        }
    }

    /// Describes the processes that this process waits for. Processes with the same wait are described
    /// together.
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
                    nodes.push(self.of_waits(process, &wait, (&title, true), &group[1..]));
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

    /// Describes the processes that can end the wait of a process and of the processes `more`.
    fn needs(&mut self, pid: u32, wait: &WaitSnapshot, more: &[u32]) -> Vec<Node> {
        let (mut needed, only) = needed(self.snapshot, pid, wait);
        if more.iter().any(|pid| needed.contains(pid)) {
            needed.push(pid);
            needed.sort_unstable();
        }
        let (above, new): (Vec<_>, Vec<_>) = needed.into_iter().partition(|pid| self.shown.contains(pid));
        // All new processes are recorded before the first is described, so that each is described once.
        self.shown.extend(&new);
        let mut nodes: Vec<Node> = self.of_shown(&above, wait, only).into_iter().collect();
        let mut others = self.of_others(&new);
        if wait.object.is_some() {
            let mark = format!("← {}", self.ended_by(wait));
            others
                .iter_mut()
                .filter(|node| node.mark.is_empty())
                .for_each(|node| node.mark.clone_from(&mark));
        }
        nodes.extend(others);
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

    /// Returns the action by which another process ends the wait.
    fn ended_by<'w>(&self, wait: &'w WaitSnapshot) -> &'w str {
        let is_owned = object_of(self.snapshot, wait).is_some_and(|object| object.owner.is_some());
        if is_owned { "holds it" } else { &wait.ended_by }
    }

    /// Returns a line that only names these processes, because another part of the text describes them in
    /// full. If `only` is `true`, the line ends with the remark [`ONLY`].
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
        let text = format!("{}: {}", self.ended_by(wait), names.join("; "));
        let mark = if only { ONLY } else { "" }.to_owned();
        (!pids.is_empty()).then(|| Node { mark, ..text.into() })
    }
}

const CIRCLE: &str = "These processes wait for each other: this can't end by itself.";
const OPEN: &str = "This may end: it isn't proved that all of these wait for each other.";
const ALONE: &str = "No other process can end this wait: it can't end by itself.";
/// Remark after a list of processes, if no other process can end the wait.
const ONLY: &str = "← no other process";

/// Returns the process ID and the name of a process.
fn named(process: &ProcessSnapshot) -> String {
    match &process.name {
        name if name.is_empty() => process.pid.to_string(),
        name => format!("{} {name}", process.pid),
    }
}

impl Explanation {
    /// Returns the text of the conclusion. It is valid only if the snapshot was confirmed.
    pub(crate) fn conclusion(&self) -> String {
        let lines = [self.reason].into_iter().chain(self.advice.iter().map(String::as_str));
        match self.hangs {
            true => lines.map(|line| format!("{line}\n")).collect(),
            false if self.waits => format!("{OPEN}\n"),
            false => String::new(),
        }
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
        let space = if place.is_empty() || self.mark.is_empty() { "" } else { " " };
        let after = format!("{place}{space}{}", self.mark);
        let text = if after.is_empty() { text } else { format!("{text:<COLUMN$} {after}") };
        writeln!(f, "{text}")?;
        self.needs.iter().try_for_each(|node| node.write(f, depth + 1))
    }
}

#[cfg(test)]
mod tests;
