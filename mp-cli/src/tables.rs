//! Tables that the commands print.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mp_core::{
    ObjectSnapshot, PoolSnapshot, PoolWorkerSnapshot, ProcessSnapshot, ProcessState, QueueSnapshot,
    RingState, Snapshot, StorageSnapshot, WaitTimes, quantity,
};

use crate::program_report::Report;

/// Formats a number of bytes with a unit, such as `1.5 MiB`.
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

/// Returns the number of messages and the capacity: `3/64`.
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

/// Returns the output of `ls`.
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
            duration(program.age.saturating_mul(1000)),
            cut(&program.command, 60),
        ]);
    }
    table(&rows)
}

/// Returns the output of `gc`.
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

/// Returns the output of `show`.
pub(crate) fn program(report: &Report) -> String {
    let Report { program, snapshot, .. } = report;
    let memory = &snapshot.memory;
    let mut text = format!(
        "{} · {} old · {}\n{} of memory, {} held in {}, queued: {} in {}\n",
        cut(&program.command, 60),
        duration(program.age.saturating_mul(1000)),
        quantity(snapshot.processes.len(), "process"),
        bytes(memory.reserved),
        bytes(memory.allocated),
        quantity(memory.blocks, "block"),
        bytes(memory.queued_bytes),
        quantity(memory.queued, "message"),
    );
    if snapshot.changed > 0 {
        _ = writeln!(text, "objects missing because they changed during the read: {}", snapshot.changed);
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
    if !snapshot.pools.is_empty() {
        _ = write!(text, "\n{}", pools(&snapshot.pools.iter().collect::<Vec<_>>()));
    }
    if !snapshot.failures.is_empty() {
        _ = writeln!(text, "\nlast failures:");
        failures(snapshot).for_each(|failure| _ = writeln!(text, "{failure}"));
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
        rows.push(vec![
            process.pid.to_string(),
            process.name.clone(),
            state.into(),
            bytes(process.bytes),
            bytes(kernel.resident),
            waits_of(&report.snapshot, process),
        ]);
    }
    table(&rows)
}

/// Returns one line with all waits of a process.
fn waits_of(snapshot: &Snapshot, process: &ProcessSnapshot) -> String {
    let name = |block: u32| {
        let queues = snapshot.queues.iter().map(|queue| (queue.block, &queue.name));
        let mut all = queues.chain(snapshot.objects.iter().map(|object| (object.block, &object.name)));
        all.find(|(number, _)| *number == block).map_or("", |(_, name)| name)
    };
    let waits = process.waits.iter().map(|wait| {
        let object = wait.object.map_or(String::new(), |block| format!(" {}", labeled(name(block), block)));
        format!("{}{object} {}", wait.call, duration(wait.waited_ms))
    });
    waits.collect::<Vec<_>>().join("; ")
}

/// Returns a line for each of the last failures, the oldest first, with its age and its error.
pub(crate) fn failures(snapshot: &Snapshot) -> impl DoubleEndedIterator<Item = String> {
    snapshot.failures.iter().map(|failure| {
        let ago = duration(snapshot.taken_ms.saturating_sub(failure.at_ms));
        format!("{ago} ago: {}", failure.error)
    })
}

/// Returns a list of an object's holders: names of up to six processes, and the number of messages.
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
        names.push(quantity(holders.messages, "message"));
    }
    names.join(", ")
}

/// Returns the number of threads that wait for an object.
fn waiters(snapshot: &Snapshot, block: u32) -> String {
    let waits = snapshot.processes.iter().flat_map(|process| &process.waits);
    waits.filter(|wait| wait.object == Some(block)).count().to_string()
}

/// Returns the table of queues, for `queue` and `show`.
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

/// Formats a duration of a wait: `66 µs`, `4.2 ms`, `33 s`.
pub(crate) fn short(time: Duration) -> String {
    let us = time.as_secs_f64() * 1e6;
    let (value, unit) = match us {
        ..1e3 => (us, "µs"),
        ..1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    let decimals = usize::from(value < 10.0 && unit != "µs");
    format!("{value:.decimals$} {unit}")
}

/// Returns the output of `queue`: the queues, and the durations of the waits at each queue.
pub(crate) fn queues_with_waits(snapshot: &Snapshot, shown: &[&QueueSnapshot]) -> String {
    let mut text = queues(snapshot, shown);
    for queue in shown {
        let Some(ring) = &queue.ring else { continue };
        for (call, waits) in [("get", &ring.get_waits), ("put", &ring.put_waits)] {
            _ = write!(text, "{}", histogram(call, queue, waits));
        }
    }
    text
}

/// Returns a histogram of the durations of waits. Returns an empty text if there were no waits.
fn histogram(call: &str, queue: &QueueSnapshot, waits: &WaitTimes) -> String {
    const WIDTH: usize = 40;
    let (Some(median), Some(p99)) = (waits.percentile(50), waits.percentile(99)) else {
        return String::new();
    };
    let mut text = format!(
        "\nwaits of {call} at {}: {}, {} in all, half of them below {}, 99 % below {}\n",
        labeled(&queue.name, queue.block),
        waits.count(),
        short(waits.total()),
        short(median),
        short(p99),
    );
    let most = waits.buckets().map(|(_, count)| count).max().unwrap_or(1);
    for (limit, count) in waits.buckets() {
        let bar = "█".repeat((count as usize * WIDTH).div_ceil(most as usize));
        _ = writeln!(text, "{:>9}  {bar:<WIDTH$}  {count}", format!("< {}", short(limit)));
    }
    text
}

/// Returns the name of an object with its number.
fn labeled(name: &str, block: u32) -> String {
    if name.is_empty() { format!("#{block}") } else { format!("\"{name}\" (#{block})") }
}

/// Returns the table of pools, for `pool` and `show`.
pub(crate) fn pools(pools: &[&PoolSnapshot]) -> String {
    let titles =
        ["#", "POOL", "WORKERS", "BUSY", "PENDING", "DONE", "FAILED", "LOST", "CANCELLED", "RETRIED"];
    let mut rows = vec![row(titles)];
    rows[0].push("REPLACED".into());
    for pool in pools {
        let mut cells = vec![pool.block.to_string(), pool.name.clone(), pool.wanted_workers.to_string()];
        let counts = [
            pool.busy_workers(),
            pool.pending,
            pool.done,
            pool.failed,
            pool.lost,
            pool.cancelled,
            pool.retried,
            pool.restarts,
        ];
        cells.extend(counts.map(|count| count.to_string()));
        rows.push(cells);
    }
    table(&rows)
}

/// Returns the output of `pool`: the pools, and the workers of each pool.
pub(crate) fn pools_with_workers(snapshot: &Snapshot, shown: &[&PoolSnapshot]) -> String {
    let workers = shown.iter().map(|pool| format!("\n{}", workers(snapshot, pool)));
    pools(shown) + &workers.collect::<String>()
}

/// Returns the table of a pool's workers.
pub(crate) fn workers(snapshot: &Snapshot, pool: &PoolSnapshot) -> String {
    let mut rows = vec![row(["WORKER", "PID", "STATE", "CHUNKS", "BUSY FOR", "NOTE", "WAITS"])];
    for worker in &pool.workers {
        let process = snapshot.processes.iter().find(|process| process.pid == worker.pid);
        rows.push(vec![
            worker.number.to_string(),
            if worker.pid == 0 { String::new() } else { worker.pid.to_string() },
            worker_state(worker, process).into(),
            worker.chunks.to_string(),
            if worker.chunks > 0 { duration(worker.busy_ms) } else { String::new() },
            worker.note.map_or(String::new(), |note| note.to_string()),
            process.map_or(String::new(), |process| waits_of(snapshot, process)),
        ]);
    }
    format!("workers of {}\n{}", labeled(&pool.name, pool.block), table(&rows))
}

/// Returns the state of a worker in one word.
fn worker_state(worker: &PoolWorkerSnapshot, process: Option<&ProcessSnapshot>) -> &'static str {
    match process.map(|process| process.state) {
        _ if worker.pid == 0 => "absent",
        Some(ProcessState::Stopped) => "stopped",
        Some(ProcessState::Dead) => "dead",
        _ if !worker.ready => "starts",
        _ if worker.chunks > 0 => "busy",
        _ => "idle",
    }
}

/// Returns the output of `tensor`.
pub(crate) fn tensors(snapshot: &Snapshot, tensors: &[&StorageSnapshot]) -> String {
    let mut rows = vec![row(["#", "SIZE", "KIND", "HELD BY"])];
    for tensor in tensors {
        rows.push(vec![
            tensor.block.to_string(),
            bytes(tensor.bytes),
            tensor.kind.clone(),
            holders(snapshot, &tensor.holders),
        ]);
    }
    table(&rows)
}

/// Returns the table of objects, for `lock` and `show`.
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
