//! Outputs for people, as tables.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use mp_core::{ObjectSnapshot, ProcessState, QueueSnapshot, RingState, Snapshot};

use crate::report::Report;

/// Formats a number of bytes.
pub(crate) fn bytes(bytes: u64) -> String {
    let (mut value, mut units) = (bytes as f64, ["KiB", "MiB", "GiB", "TiB"].into_iter());
    let mut unit = "B";
    while value >= 1024.0
        && let Some(next) = units.next()
    {
        (value, unit) = (value / 1024.0, next);
    }
    let decimals = usize::from(unit != "B" && value < 100.0);
    format!("{value:.decimals$} {unit}")
}

/// Formats a duration in milliseconds.
pub(crate) fn duration(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{:.1} s", ms as f64 / 1000.0),
        10_000..600_000 => format!("{} s", ms / 1000),
        600_000..36_000_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

/// Returns the number of messages, and how many fit: `3/64`.
pub(crate) fn fill(ring: &RingState) -> String {
    let closed = if ring.closed { ", closed" } else { "" };
    match ring.capacity {
        Some(most) => format!("{}/{most}{closed}", ring.len),
        None => format!("{}{closed}", ring.len),
    }
}

/// Aligns the columns of rows. Numbers are aligned to the right.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|i| width(i).unwrap_or(0)).collect();
    let is_number = |i: usize| {
        let mut cells = rows.iter().skip(1).filter_map(|row| row.get(i)).peekable();
        cells.peek().is_some() && cells.all(|cell| cell.starts_with(|first: char| first.is_ascii_digit()))
    };
    let right: Vec<_> = (0..columns).map(is_number).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let width = widths[i];
            _ = match right[i] {
                true => write!(line, "{cell:>width$}  "),
                false => write!(line, "{cell:<width$}  "),
            };
        }
        _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Shortens a text to a number of characters.
pub(crate) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

/// Output of `ls`.
pub(crate) fn programs(reports: &[Report]) -> String {
    if reports.is_empty() {
        return "no program of this user uses multiproc\n".into();
    }
    let mut rows = vec![row(["PID", "PROCESSES", "WAITING", "QUEUES", "MEMORY", "AGE", "COMMAND"])];
    for Report { program, snapshot, .. } in reports {
        let waiting = snapshot.processes.iter().filter(|process| !process.waits.is_empty()).count();
        rows.push(vec![
            program.root.to_string(),
            snapshot.processes.len().to_string(),
            waiting.to_string(),
            snapshot.queues.len().to_string(),
            bytes(snapshot.memory.reserved),
            duration(program.age * 1000),
            cut(&program.command, 60),
        ]);
    }
    table(&rows)
}

/// Output of `gc`.
pub(crate) fn leftovers(directory: &Path, left: &[(PathBuf, u64)], dry_run: bool) -> String {
    let verb = if dry_run { "would be removed" } else { "removed" };
    let mut text = String::new();
    for (path, size) in left {
        _ = writeln!(text, "{} ({}) {verb}", path.display(), bytes(*size));
    }
    if left.is_empty() {
        _ = writeln!(text, "no crashed program left a file below {}", directory.display());
    }
    text
}

/// Output of `show`.
pub(crate) fn program(report: &Report) -> String {
    let Report { program, snapshot, .. } = report;
    let memory = &snapshot.memory;
    let mut text = format!(
        "{} · {} old · {} processes\n{} of memory, {} in use, blocks: {}, queued: {} in {} messages\n",
        cut(&program.command, 60),
        duration(program.age * 1000),
        snapshot.processes.len(),
        bytes(memory.reserved),
        bytes(memory.allocated),
        memory.blocks,
        bytes(memory.queued_bytes),
        memory.queued,
    );
    if snapshot.changed > 0 {
        _ = writeln!(text, "{} objects changed while this was read, and are missing", snapshot.changed);
    }
    _ = write!(text, "\n{}", processes(report));
    if !snapshot.queues.is_empty() {
        _ = write!(text, "\n{}", queues(snapshot, &snapshot.queues.iter().collect::<Vec<_>>()));
    }
    let shown = snapshot.objects.iter().filter(|object| object.kind != "object" || !object.name.is_empty());
    let shown: Vec<_> = shown.collect();
    if !shown.is_empty() {
        _ = write!(text, "\n{}", objects(snapshot, &shown));
    }
    text
}

fn processes(report: &Report) -> String {
    let mut rows = vec![row(["PID", "NAME", "STATE", "HOLDS", "RESIDENT", "WAITS"])];
    for (process, kernel) in report.snapshot.processes.iter().zip(&report.processes) {
        let state = match process.state {
            ProcessState::Running => "running",
            ProcessState::Stopped => "stopped",
            _ => "dead",
        };
        let waits: Vec<_> = process
            .waits
            .iter()
            .map(|wait| {
                let object = wait.object.map_or(String::new(), |block| format!(" #{block}"));
                format!("{}{object} {}", wait.call, duration(wait.waited_ms))
            })
            .collect();
        rows.push(vec![
            process.pid.to_string(),
            process.name.clone(),
            state.into(),
            bytes(process.bytes),
            bytes(kernel.resident),
            waits.join("; "),
        ]);
    }
    table(&rows)
}

/// Returns the processes that have an object.
pub(crate) fn holders(snapshot: &Snapshot, holders: &mp_core::HoldersSnapshot) -> String {
    let name = |pid: &u32| {
        let process = snapshot.processes.iter().find(|process| process.pid == *pid);
        let name = process.map(|process| process.name.clone()).filter(|name| !name.is_empty());
        name.unwrap_or_else(|| pid.to_string())
    };
    let mut names: Vec<_> = holders.processes.iter().take(6).map(name).collect();
    if holders.processes.len() > 6 {
        names.push(format!("{} more", holders.processes.len() - 6));
    }
    if holders.messages > 0 {
        names.push(format!("{} messages", holders.messages));
    }
    names.join(", ")
}

/// Returns the number of threads that wait for an object.
fn waiters(snapshot: &Snapshot, block: u32) -> String {
    let waits = snapshot.processes.iter().flat_map(|process| &process.waits);
    waits.filter(|wait| wait.object == Some(block)).count().to_string()
}

/// Output of `queue`, and a part of `show`.
pub(crate) fn queues(snapshot: &Snapshot, queues: &[&QueueSnapshot]) -> String {
    let mut rows =
        vec![row(["#", "QUEUE", "KIND", "MESSAGES", "PUTS", "GETS", "WAITING", "TYPE", "HELD BY"])];
    for queue in queues {
        let text = |f: &dyn Fn(&RingState) -> String| queue.ring.as_ref().map_or_else(|| "?".into(), f);
        rows.push(vec![
            queue.block.to_string(),
            queue.name.clone(),
            text(&|ring| ring.kind.clone()),
            text(&fill),
            text(&|ring| ring.puts.to_string()),
            text(&|ring| ring.gets.to_string()),
            waiters(snapshot, queue.block),
            text(&|ring| cut(&ring.type_name, 40)),
            holders(snapshot, &queue.holders),
        ]);
    }
    table(&rows)
}

/// Output of `lock`, and a part of `show`.
pub(crate) fn objects(snapshot: &Snapshot, objects: &[&ObjectSnapshot]) -> String {
    let mut rows = vec![row(["#", "OBJECT", "KIND", "WAITING", "LOCKED BY", "HELD BY"])];
    for object in objects {
        let owner = object.owner.map_or(String::new(), |owner| match owner.pid == owner.thread {
            true => owner.pid.to_string(),
            false => format!("{} (thread {})", owner.pid, owner.thread),
        });
        rows.push(vec![
            object.block.to_string(),
            object.name.clone(),
            object.kind.clone(),
            waiters(snapshot, object.block),
            owner,
            holders(snapshot, &object.holders),
        ]);
    }
    table(&rows)
}
