//! Programs of this user: the processes that have the same arena open, as `/proc` shows them.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A program: all processes that share one arena.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    /// Process that started the other processes.
    pub(crate) root: u32,
    /// Processes that have the arena open.
    pub(crate) pids: Vec<u32>,
    /// Command line of the root process.
    pub(crate) command: String,
    /// Age of the root process in seconds.
    pub(crate) age: u64,
}

/// Prefix of the path to which the link `/proc/PID/fd/N` of an arena's descriptor points.
const ARENA: &str = "/memfd:mp-arena";

/// Returns the programs of this user, by process ID.
pub(crate) fn all() -> Vec<Program> {
    let me = rustix::process::getuid().as_raw();
    let mut arenas: BTreeMap<(u64, u64), Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if entry.metadata().is_ok_and(|process| process.uid() == me)
            && let Some(arena) = arena_of(&entry.path())
        {
            arenas.entry(arena).or_default().push(pid);
        }
    }
    let mut programs: Vec<_> = arenas.into_values().map(Program::of).collect();
    programs.sort_by_key(|program| program.root);
    programs
}

/// Returns the device and inode of the arena that a process has open. Ignores processes that can't write to
/// the arena: these are other observers.
fn arena_of(process: &Path) -> Option<(u64, u64)> {
    let files = std::fs::read_dir(process.join("fd")).ok()?;
    files.flatten().find_map(|file| {
        let target = std::fs::read_link(file.path()).ok()?;
        // The permissions of the link show the access mode of the descriptor.
        let is_writable = || file.metadata().is_ok_and(|link| link.mode() & 0o200 != 0);
        if !target.to_str()?.starts_with(ARENA) || !is_writable() {
            return None;
        }
        let file = std::fs::metadata(file.path()).ok()?;
        Some((file.dev(), file.ino()))
    })
}

impl Program {
    fn of(mut pids: Vec<u32>) -> Self {
        pids.sort_unstable();
        let times: Vec<_> = pids.iter().map(|pid| Process::of(*pid).unwrap_or_default()).collect();
        let is_first = |(_, process): &(&u32, &Process)| !pids.contains(&process.parent);
        let first = pids.iter().zip(&times).filter(is_first).min_by_key(|(_, process)| process.started);
        let root = first.map_or(pids.first().copied().unwrap_or(0), |(pid, _)| *pid);
        let age = Process::of(root).map_or(0, |process| process.age);
        Self { root, command: command_line(root), age, pids }
    }
}

/// Returns the command line of a process, or its name in brackets.
pub(crate) fn command_line(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    mp_core::printable(words.join(" ").trim_end())
}

/// State of a process, from the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) parent: u32,
    /// Processor time in clock ticks.
    pub(crate) cpu: u64,
    /// Start in clock ticks since boot.
    pub(crate) started: u64,
    /// Age in seconds.
    pub(crate) age: u64,
    /// Resident memory of the process in bytes, including shared memory.
    pub(crate) resident: u64,
}

impl Process {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
        Self::at(pid, uptime.split(' ').next()?.parse::<f64>().ok()? as u64)
    }

    /// Returns the state of a process. `uptime` is the time in seconds since the machine was booted.
    pub(crate) fn at(pid: u32, uptime: u64) -> Option<Self> {
        // The file is read by one call, because `top` reads the files of all processes repeatedly.
        let file = std::fs::File::open(format!("/proc/{pid}/stat")).ok()?;
        let mut bytes = [0; 1024];
        let len = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut bytes)).ok()?;
        let stat = String::from_utf8_lossy(bytes.get(..len)?);
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |i: usize| fields.get(i).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        let started = number(19);
        Some(Self {
            parent: number(1) as u32,
            cpu: number(11) + number(12),
            started,
            age: uptime.saturating_sub(started / rustix::param::clock_ticks_per_second().max(1)),
            resident: number(21) * rustix::param::page_size() as u64,
        })
    }
}
