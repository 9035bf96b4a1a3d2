//! The tables of `top`: their columns, and the text and order of each cell.

use std::cmp::Ordering;

use mp_core::{
    ObjectSnapshot, PoolSnapshot, ProcessSnapshot, ProcessState, QueueSnapshot, WaitSnapshot, WaitTimes,
    quantity,
};

use super::sample::TopSample;
use crate::tables::{bytes, duration, fill, holders, short};

/// Maximum number of waits shown for a process.
const WAITS: usize = 6;
/// Marker of a column that takes the remaining width.
pub(super) const REST: u16 = u16::MAX;
/// Minimum width of a screen on which the columns have their wide form.
pub(super) const WIDE: u16 = 110;

/// A table of `top`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TopTable {
    Processes,
    Queues,
    Objects,
    Pools,
}

/// A column of a table.
pub(super) struct TopColumn {
    pub(super) title: &'static str,
    /// Widths of the column on a screen of 80 columns, and on a wide screen. With width 0, the column is not
    /// shown.
    pub(super) widths: (u16, u16),
    /// `true` for numbers: they are aligned to the right.
    pub(super) right: bool,
    /// `true` if rows sorted by this column begin with the largest value, unless the user reverses the order.
    pub(super) falling: bool,
}

const fn text(title: &'static str, narrow: u16, wide: u16) -> TopColumn {
    TopColumn { title, widths: (narrow, wide), right: false, falling: false }
}

const fn number(title: &'static str, narrow: u16, wide: u16) -> TopColumn {
    TopColumn { title, widths: (narrow, wide), right: true, falling: true }
}

const PROCESSES: &[TopColumn] = &[
    TopColumn { falling: false, ..number("PID", 7, 8) },
    text("NAME", 12, 24),
    number("CPU %", 6, 6),
    number("RES", 8, 9),
    number("HOLDS", 8, 9),
    text("STATE", 7, 8),
    TopColumn { falling: true, ..text("WAITS FOR", REST, REST) },
];
const QUEUES: &[TopColumn] = &[
    TopColumn { falling: false, ..number("#", 5, 7) },
    text("QUEUE", REST, 28),
    text("KIND", 0, 8),
    TopColumn { falling: true, ..text("FILL", 6, 12) },
    number("MESSAGES", 10, 14),
    number("PUTS/S", 7, 8),
    number("GETS/S", 7, 8),
    number("PUT WAIT", 11, 13),
    number("GET WAIT", 11, 13),
    number("WAIT", 4, 4),
    text("HELD BY", 0, REST),
];
const POOLS: &[TopColumn] = &[
    TopColumn { falling: false, ..number("#", 5, 7) },
    text("POOL", REST, 28),
    number("BUSY", 7, 12),
    number("LONGEST", 7, 8),
    number("PENDING", 7, 12),
    number("DONE", 9, 14),
    number("DONE/S", 8, 10),
    number("FAILED", 6, 10),
    number("LOST", 5, 8),
    number("REPLACED", 8, 10),
    text("", 0, REST),
];
const OBJECTS: &[TopColumn] = &[
    TopColumn { falling: false, ..number("#", 5, 7) },
    text("OBJECT", 14, 28),
    text("KIND", 10, 12),
    text("OWNER", 14, 24),
    number("WAIT", 5, 5),
    text("WAITED FOR BY", REST, REST),
    text("HELD BY", 0, 50),
];

/// Value that rows are sorted by.
#[derive(PartialEq, Debug)]
pub(super) enum SortKey {
    Number(f64),
    Text(String),
}

impl SortKey {
    pub(super) fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
        }
    }
}

impl TopTable {
    pub(super) const ALL: [Self; 4] = [Self::Processes, Self::Queues, Self::Objects, Self::Pools];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Processes => "Processes",
            Self::Queues => "Queues",
            Self::Objects => "Locks and objects",
            Self::Pools => "Pools",
        }
    }

    pub(super) fn columns(self) -> &'static [TopColumn] {
        match self {
            Self::Processes => PROCESSES,
            Self::Queues => QUEUES,
            Self::Objects => OBJECTS,
            Self::Pools => POOLS,
        }
    }

    /// Returns the number of rows of this table in a sample.
    pub(super) fn len(self, sample: &TopSample) -> usize {
        match self {
            Self::Processes => sample.snapshot.processes.len(),
            Self::Queues => sample.snapshot.queues.len(),
            Self::Objects => sample.objects.len(),
            Self::Pools => sample.snapshot.pools.len(),
        }
    }

    /// Returns the identifier of a row: the process ID in the table of processes, and the number of the block
    /// in all other tables.
    pub(super) fn id(self, sample: &TopSample, row: usize) -> u32 {
        match self {
            Self::Processes => sample.snapshot.processes[row].pid,
            Self::Queues => sample.snapshot.queues[row].block,
            Self::Objects => object(sample, row).block,
            Self::Pools => sample.snapshot.pools[row].block,
        }
    }

    /// Returns the lines of a cell.
    pub(super) fn cell(self, sample: &TopSample, row: usize, column: usize, width: u16) -> Vec<String> {
        let one = match self {
            Self::Processes if column == 6 => return waits(sample, &sample.snapshot.processes[row]),
            Self::Processes => process_cell(sample, row, column),
            Self::Queues => queue_cell(sample, row, column, width),
            Self::Objects => object_cell(sample, object(sample, row), column),
            Self::Pools => pool_cell(sample, row, column),
        };
        vec![one]
    }

    /// Returns the number of lines of a row.
    pub(super) fn height(self, sample: &TopSample, row: usize) -> u16 {
        match self {
            Self::Processes => sample.snapshot.processes[row].waits.len().clamp(1, WAITS + 1) as u16,
            _ => 1,
        }
    }

    pub(super) fn key(self, sample: &TopSample, row: usize, column: usize) -> SortKey {
        let number = match self {
            Self::Processes => {
                let process = &sample.snapshot.processes[row];
                match column {
                    0 => u64::from(process.pid) as f64,
                    2 => sample.cpu[row].unwrap_or(0.0),
                    3 => sample.resident[row] as f64,
                    4 => process.bytes as f64,
                    6 => process.waits.iter().map(|wait| wait.waited_ms).max().unwrap_or(0) as f64,
                    _ => return SortKey::Text(process_cell(sample, row, column)),
                }
            }
            Self::Queues => {
                let queue = &sample.snapshot.queues[row];
                match column {
                    0 => f64::from(queue.block),
                    3 => share(queue).unwrap_or(-1.0),
                    4 => queue.ring.as_ref().map_or(-1.0, |ring| ring.len as f64),
                    5 => sample.rates[row].map_or(-1.0, |(puts, _)| puts),
                    6 => sample.rates[row].map_or(-1.0, |(_, gets)| gets),
                    7 => p99(sample.waits[row].as_ref().map(|[put, _]| put)),
                    8 => p99(sample.waits[row].as_ref().map(|[_, get]| get)),
                    9 => sample.waits_for(queue.block).len() as f64,
                    _ => return SortKey::Text(queue_cell(sample, row, column, 0)),
                }
            }
            Self::Objects => {
                let object = object(sample, row);
                match column {
                    0 => f64::from(object.block),
                    4 => sample.waits_for(object.block).len() as f64,
                    _ => return SortKey::Text(object_cell(sample, object, column)),
                }
            }
            Self::Pools => {
                let pool = &sample.snapshot.pools[row];
                match column {
                    0 => f64::from(pool.block),
                    1 => return SortKey::Text(pool.name.clone()),
                    2 => pool.busy_workers() as f64,
                    3 => longest(pool).unwrap_or(0) as f64,
                    4 => pool.pending as f64,
                    5 => pool.done as f64,
                    6 => sample.done_rates[row].unwrap_or(-1.0),
                    7 => pool.failed as f64,
                    8 => pool.lost as f64,
                    _ => pool.restarts as f64,
                }
            }
        };
        SortKey::Number(number)
    }

    /// Returns `true` if a cell of the row contains `text`, which is in lower case.
    pub(super) fn matches(self, sample: &TopSample, row: usize, text: &str) -> bool {
        let cells = (0..self.columns().len()).flat_map(|column| self.cell(sample, row, column, 0));
        text.is_empty() || cells.into_iter().any(|cell| cell.to_lowercase().contains(text))
    }
}

fn object(sample: &TopSample, row: usize) -> &ObjectSnapshot {
    &sample.snapshot.objects[sample.objects[row]]
}

/// Returns the fill level of a queue, from 0 to 1, if the queue has a capacity.
pub(super) fn share(queue: &QueueSnapshot) -> Option<f64> {
    let ring = queue.ring.as_ref()?;
    Some((ring.len as f64 / ring.capacity?.max(1) as f64).min(1.0))
}

/// Returns a command line without the folder of the program.
pub(super) fn short_command(line: &str) -> &str {
    let program = line.split(' ').next().unwrap_or_default();
    &line[program.rfind('/').map_or(0, |at| at + 1)..]
}

/// Returns the state of a process in one word.
pub(super) fn state(sample: &TopSample, process: &ProcessSnapshot) -> &'static str {
    match process.state {
        ProcessState::Stopped => "stopped",
        ProcessState::Running if sample.hanging.contains(&process.pid) => "hangs",
        ProcessState::Running
            if !process.waits.is_empty() && process.other_threads.as_ref().is_none_or(Vec::is_empty) =>
        {
            "waits"
        }
        ProcessState::Running => "running",
        _ => "dead",
    }
}

fn process_cell(sample: &TopSample, row: usize, column: usize) -> String {
    let process = &sample.snapshot.processes[row];
    match column {
        0 => process.pid.to_string(),
        1 => process.name.clone(),
        2 => sample.cpu[row].map_or_else(|| "–".into(), |percent| format!("{percent:.1}")),
        3 => bytes(sample.resident[row]),
        4 => bytes(process.bytes),
        _ => state(sample, process).into(),
    }
}

/// Returns a line for each waiting thread of a process, with the object that the thread waits for.
fn waits(sample: &TopSample, process: &ProcessSnapshot) -> Vec<String> {
    let mut lines: Vec<_> = process.waits.iter().take(WAITS).map(|w| wait(sample, process, w)).collect();
    if process.waits.len() > WAITS {
        lines.push(format!("and {}", quantity(process.waits.len() - WAITS, "more thread")));
    }
    lines
}

/// Returns the duration of a wait, the call and its object.
fn wait(sample: &TopSample, process: &ProcessSnapshot, wait: &WaitSnapshot) -> String {
    let object = match wait.object {
        Some(block) => format!(" {}", sample.block_name(block)),
        None => wait.processes.first().map_or(String::new(), |pid| format!(" {}", sample.name_of(*pid))),
    };
    let more = match wait.processes.len() {
        2.. if wait.object.is_none() => format!(" +{}", wait.processes.len() - 1),
        _ => String::new(),
    };
    let thread = match &wait.thread {
        thread if thread.id == process.pid => String::new(),
        thread => format!(" ({})", thread.name),
    };
    format!("{} {}{object}{more}{thread}", duration(wait.waited_ms), wait.call)
}

fn queue_cell(sample: &TopSample, row: usize, column: usize, width: u16) -> String {
    let queue = &sample.snapshot.queues[row];
    let ring = queue.ring.as_ref();
    match column {
        0 => queue.block.to_string(),
        1 => queue.name.clone(),
        2 => ring.map_or("?", |ring| ring.kind.as_str()).into(),
        3 => share(queue).map_or(String::new(), |share| bar(share, width)),
        4 => ring.map_or_else(|| "?".into(), fill),
        5 => rate(sample.rates[row].map(|(puts, _)| puts)),
        6 => rate(sample.rates[row].map(|(_, gets)| gets)),
        7 => percentiles(sample.waits[row].as_ref().map(|[put, _]| put)),
        8 => percentiles(sample.waits[row].as_ref().map(|[_, get]| get)),
        9 => sample.waits_for(queue.block).len().to_string(),
        _ => holders(&sample.snapshot, &queue.holders),
    }
}

fn p99(waits: Option<&WaitTimes>) -> f64 {
    waits.and_then(|waits| waits.percentile(99)).map_or(-1.0, |p99| p99.as_secs_f64())
}

/// Returns the median and the 99th percentile of waits.
fn percentiles(waits: Option<&WaitTimes>) -> String {
    let Some(waits) = waits else { return "–".into() };
    match (waits.percentile(50), waits.percentile(99)) {
        (Some(median), Some(p99)) => format!("{}/{}", short(median), short(p99)).replace(' ', ""),
        _ => String::new(),
    }
}

fn pool_cell(sample: &TopSample, row: usize, column: usize) -> String {
    let pool = &sample.snapshot.pools[row];
    match column {
        0 => pool.block.to_string(),
        1 => pool.name.clone(),
        2 => format!("{}/{}", pool.busy_workers(), pool.wanted_workers),
        3 => longest(pool).map_or(String::new(), duration),
        4 => pool.pending.to_string(),
        5 => pool.done.to_string(),
        6 => rate(sample.done_rates[row]),
        7 => pool.failed.to_string(),
        8 => pool.lost.to_string(),
        9 => pool.restarts.to_string(),
        _ => String::new(),
    }
}

/// Returns the longest time for which a worker has had a task.
fn longest(pool: &PoolSnapshot) -> Option<u64> {
    pool.workers.iter().filter(|worker| worker.chunks > 0).map(|worker| worker.busy_ms).max()
}

/// Returns a bar of this width. The bar is full only if the queue is full, and empty only if the queue is
/// empty.
fn bar(share: f64, width: u16) -> String {
    let width = usize::from(width);
    let most = if share < 1.0 { width.saturating_sub(1) } else { width };
    let least = usize::from(share > 0.0).min(most);
    let full = ((share * width as f64).round() as usize).clamp(least, most);
    "█".repeat(full) + &"░".repeat(width - full)
}

fn rate(rate: Option<f64>) -> String {
    match rate {
        None => "–".into(),
        Some(0.0) => "0".into(),
        Some(rate) if rate < 10.0 => format!("{rate:.1}"),
        Some(rate) if rate < 100_000.0 => format!("{rate:.0}"),
        Some(rate) if rate < 1e7 => format!("{:.0} k", rate / 1e3),
        Some(rate) => format!("{:.1} M", rate / 1e6),
    }
}

fn object_cell(sample: &TopSample, object: &ObjectSnapshot, column: usize) -> String {
    let waits = sample.waits_for(object.block);
    match column {
        0 => object.block.to_string(),
        1 => object.name.clone(),
        2 => object.kind.clone(),
        3 => object.owner.map_or(String::new(), |owner| match owner.pid == owner.thread {
            true => sample.name_of(owner.pid),
            false => format!("{} ({})", sample.name_of(owner.pid), owner.thread),
        }),
        4 => waits.len().to_string(),
        5 => {
            let text = |(process, wait): &(usize, usize)| {
                let process = &sample.snapshot.processes[*process];
                format!("{} {}", sample.name_of(process.pid), duration(process.waits[*wait].waited_ms))
            };
            waits.iter().take(4).map(text).collect::<Vec<_>>().join(", ")
        }
        _ => holders(&sample.snapshot, &object.holders),
    }
}
