//! Text of a report: one or more lines, printed by one call. For example:
//!
//! ```text
//! mp: thread `main` of pid 4711 has waited 10 s in Queue::get of queue "results" (#12, 0 of 64 messages)
//! [src/train.rs:88]
//!   could feed it: pid 4712 (running; itself waiting 9 s in lock of lock "weights" (#14) [src/train.rs:31])
//! ```

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::blocking::reports::own_hang::Suspicion;
use crate::blocking::reports::table::{self, ShownWait};
use crate::blocking::reports::{ActiveWait, BlockingCall, Subject, WaitObject, settings};
use crate::members::Members;
use crate::process::children;
use crate::sys::{identity, memory};
use crate::words::{BlockId, Member};

/// Maximum number of processes described in a report.
pub(super) const MOST: usize = 8;

/// Maximum number of failed children listed in a report of a hang.
const FAILURES: usize = 3;

/// Duration of a wait, formatted for people.
pub(super) struct Time(pub(super) Duration);

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_millis() {
            0..10_000 => write!(f, "{:.1} s", self.0.as_secs_f64()),
            10_000..600_000 => write!(f, "{} s", self.0.as_secs()),
            _ => write!(f, "{} min", self.0.as_secs() / 60),
        }
    }
}

/// Appends the object of a wait, for example ` of queue "results" (#12, 0 of 64 messages)`.
fn object(into: &mut String, call: BlockingCall, arena: Arena, block: BlockId, state: &str) {
    let name = table::name_in(arena, block);
    _ = write!(into, " of {}", call.text().object);
    if !name.is_empty() {
        _ = write!(into, " {name:?}");
    }
    _ = write!(into, " (#{block}");
    if !state.is_empty() {
        _ = write!(into, ", {state}");
    }
    into.push(')');
}

/// Returns the text about one thread's wait, and about the other processes involved.
pub(super) fn text(entry: &ActiveWait, now: Instant, subject: &Subject, hang: Option<&Suspicion>) -> String {
    let mut text = String::new();
    let waited = now.saturating_duration_since(entry.since);
    _ = write!(
        text,
        "mp: thread {} of pid {}",
        thread(entry.thread, &entry.thread_name),
        identity::process()
    );
    let own = table::own_name();
    if !own.is_empty() {
        _ = write!(text, " ({own})");
    }
    _ = write!(text, " has waited {} in {}", Time(waited), subject.call.text().name);
    if !subject.type_name.is_empty() {
        _ = write!(text, "::<{}>", subject.type_name);
    }
    match subject.on {
        WaitObject::Block(arena, block) => object(&mut text, subject.call, arena, block, &subject.state),
        WaitObject::Other if subject.state.is_empty() => {}
        WaitObject::Processes(_) | WaitObject::Other => _ = write!(text, " of {}", subject.state),
    }
    if let Some(place) = &subject.place {
        _ = write!(text, " [{place}]");
    }
    let mut described = Vec::new();
    match &subject.on {
        &WaitObject::Block(arena, block) => {
            described = peers(&mut text, subject.call, arena, block);
        }
        WaitObject::Processes(pids) => {
            if let Some(arena) = table::arena() {
                let members = Members(arena).members();
                let known = |pid: &u32| members.iter().find(|info| info.pid == *pid).map(|info| info.member);
                let ended_by = subject.call.text().ended_by;
                described = list(&mut text, arena, ended_by, pids.iter().map(|pid| (*pid, known(pid))));
            }
        }
        WaitObject::Other => {}
    }
    if let Some(hang) = hang {
        conclusion(&mut text, hang, &described);
        _ = write!(text, " {}", subject.call.text().advice);
        for failure in children::last_failures(FAILURES) {
            _ = write!(text, "\n  failed before: {failure}");
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Returns `` `main` ``, the name, or the number of a thread.
fn thread(number: u32, name: &str) -> String {
    match name {
        _ if number == identity::process() => "`main`".to_owned(),
        "" => number.to_string(),
        name => format!("`{name}`"),
    }
}

fn peers(text: &mut String, call: BlockingCall, arena: Arena, block: BlockId) -> Vec<u32> {
    let (mut members, messages) = super::holders_of(arena, block);
    members.retain(|member| arena.me().ok() != Some(*member));
    let others = members.into_iter().map(|member| (Members(arena).pid_of(member), Some(member)));
    let described = list(text, arena, call.text().ended_by, others);
    if messages > 0 {
        _ = write!(text, "\n  {messages} message(s) on the way carry a handle to it");
    }
    described
}

/// Appends descriptions of processes, and returns the processes described.
fn list(
    text: &mut String,
    arena: Arena,
    what: &str,
    processes: impl ExactSizeIterator<Item = (u32, Option<Member>)>,
) -> Vec<u32> {
    let n = processes.len();
    let mut described = Vec::new();
    for (i, (pid, member)) in processes.take(MOST).enumerate() {
        described.push(pid);
        let before = if i == 0 { format!("\n  {what}: ") } else { ", ".to_owned() };
        text.push_str(&before);
        process(text, arena, pid, member);
    }
    if n > MOST {
        _ = write!(text, ", and {} more", n - MOST);
    }
    described
}

/// Appends the description of a process, for example `pid 4712 (worker 1, running; thread 4712 has waited 9 s
/// in lock of lock "weights" (#14))`.
pub(super) fn process(text: &mut String, arena: Arena, pid: u32, member: Option<Member>) {
    _ = write!(text, "pid {pid} (");
    let name = member.map(|member| Members(arena).name_of(member)).unwrap_or_default();
    if !name.is_empty() {
        _ = write!(text, "{name}, ");
    }
    let dead = member.is_some_and(|member| Members(arena).is_dead(member));
    text.push_str(match () {
        () if dead => "dead",
        () if memory::is_stopped(pid) => "stopped by a signal or a debugger",
        () if memory::start_time_of(pid).is_none() => "ended",
        () => "running",
    });
    if let Some(member) = member.filter(|_| !dead) {
        table::each(arena, member, |seen| wait_of(text, arena, pid, &seen));
    }
    text.push(')');
}

/// Writes the conclusion, after the processes that were already `described`.
fn conclusion(text: &mut String, suspicion: &Suspicion, described: &[u32]) {
    let (mine, others) = suspicion.processes.split_at(1);
    let threads = mine.iter().map(|(.., rows)| rows.len()).sum::<usize>();
    let further = others.iter().filter(|(_, pid, _)| !described.contains(pid));
    for (member, pid, _) in further.take(MOST) {
        text.push_str("\n  that one needs: ");
        process(text, suspicion.arena, *pid, Some(*member));
    }
    text.push_str(match () {
        () if !others.is_empty() => {
            "\n  This can't end by itself: all of these processes wait, for \
        each other."
        }
        () if threads > 1 => {
            "\n  This can't end by itself: no other process has a handle, and all \
        threads of this one wait."
        }
        () => "\n  This can't end by itself: no other process or thread has a handle.",
    });
}

fn wait_of(text: &mut String, arena: Arena, pid: u32, seen: &ShownWait) {
    text.push_str(if seen.thread == pid { "; itself waiting " } else { "; a thread of it waiting " });
    _ = write!(text, "{} in {}", Time(seen.waited()), seen.call.text().name);
    if let Some(block) = seen.block {
        object(text, seen.call, arena, block, "");
    }
    if let Some(place) = seen.place(arena) {
        _ = write!(text, " [{place}]");
    }
}

/// Prints and logs a report, and passes it to the hook of tests.
pub(super) fn publish(text: &str, hang: bool) {
    print(text);
    log(text, hang);
    if let Some(hook) = settings::hook() {
        hook(text, hang);
    }
}

/// Passes a report to the `tracing` subscriber, or to the logger if the subscriber does not accept the
/// report. So a bridge from `log` to `tracing` delivers each report once.
fn log(_text: &str, _hang: bool) {
    #[cfg(feature = "tracing")]
    let _is_traced = super::trace::report(_text, _hang);
    #[cfg(not(feature = "tracing"))]
    let _is_traced = false;
    #[cfg(feature = "log")]
    if !_is_traced {
        let text = _text.trim_end();
        _ = crate::process::user_code::catch_panic(|| log::warn!(target: "mp::waits", "{text}"));
    }
}

/// Publishes a report about a wait of a higher layer. The wait may still end.
#[doc(hidden)]
pub fn publish_report(text: &str) {
    publish(text, false);
}

/// Returns `true` if a process is stopped by a signal or a debugger. Returns `false` if its state is not
/// readable.
#[doc(hidden)]
pub fn is_stopped(pid: u32) -> bool {
    memory::is_stopped(pid)
}

/// Prints the text with one call, so that lines of other processes are not printed in between.
pub(super) fn print(text: &str) {
    _ = std::io::stderr().lock().write_all(text.as_bytes());
}
