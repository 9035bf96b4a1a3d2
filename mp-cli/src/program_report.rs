//! Reports about programs: snapshots, and the kernel's data about processes.

use std::path::Path;

use mp_core::{Observer, Snapshot};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::programs::{self, Process, Program};

/// Program, its snapshot, and the kernel's data about its processes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) program: Program,
    pub(crate) snapshot: Snapshot,
    /// Data of the processes, in the order of the snapshot.
    pub(crate) processes: Vec<Process>,
}

impl Report {
    fn of(program: Program) -> Result<Self> {
        let snapshot = open(&program)?.snapshot();
        let of = |pid| Process::of(pid).unwrap_or_default();
        let processes = snapshot.processes.iter().map(|process| of(process.pid)).collect();
        Ok(Self { program, snapshot, processes })
    }
}

/// Opens the memory of a program, through one of its processes.
pub(crate) fn open(program: &Program) -> Result<Observer> {
    let mut why = String::from("it has just ended");
    for &pid in &program.pids {
        match Observer::of_process(pid) {
            Ok(observer) => return Ok(observer),
            Err(error) => why = format!("process {pid}: {error}"),
        }
    }
    Err(why)
}

/// Returns all programs of this user, and the reasons why some can't be read.
pub(crate) fn all() -> (Vec<Report>, Vec<String>) {
    let (mut reports, mut unreadable) = (Vec::new(), Vec::new());
    for program in programs::all() {
        match Report::of(program) {
            Ok(report) => reports.push(report),
            Err(why) => unreadable.push(why),
        }
    }
    (reports, unreadable)
}

/// Returns the program that a target names, and the processes: the named process, or all processes of a named
/// program.
pub(crate) fn of_target(target: &str) -> Result<(Report, Vec<u32>)> {
    if let Ok(pid) = target.parse::<u32>() {
        let program = programs::all().into_iter().find(|program| program.pids.contains(&pid));
        let program = program.ok_or_else(|| no_program_of(pid))?;
        return Ok((Report::of(program)?, vec![pid]));
    }
    let (reports, unreadable) = all();
    let mut named = Vec::new();
    for (i, report) in reports.iter().enumerate() {
        let processes = report.snapshot.processes.iter().filter(|process| process.name == target);
        named.extend(processes.map(|process| (i, vec![process.pid])));
    }
    if named.is_empty() {
        let programs = reports.iter().enumerate();
        let programs = programs.filter(|(_, report)| report.program.command.contains(target));
        named.extend(
            programs.map(|(i, report)| {
                (i, report.snapshot.processes.iter().map(|process| process.pid).collect())
            }),
        );
    }
    match named.as_slice() {
        [(i, pids)] => {
            let (i, pids) = (*i, pids.clone());
            Ok((reports.into_iter().nth(i).ok_or("it has just ended")?, pids))
        }
        [] => {
            let also = unreadable.iter().map(|why| format!("\nmp: not read: {why}")).collect::<String>();
            Err(format!("no process or program of this user is named `{target}`: `mp ls` lists them{also}"))
        }
        several => {
            let line =
                |(i, pids): &(usize, Vec<u32>)| format!("\n  {} {}", pids[0], reports[*i].program.command);
            let lines: String = several.iter().map(line).collect();
            Err(format!("`{target}` is the name of several: choose a process ID{lines}"))
        }
    }
}

fn no_program_of(pid: u32) -> String {
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return format!("there is no process {pid}");
    }
    format!(
        "process {pid} has no shared memory of multiproc, or is not yours: `mp ls` lists the programs. A \
         process that has used no queue, lock or tensor yet has none"
    )
}

/// Returns the program of a target. Without a target, returns the only program, or an error if several run.
pub(crate) fn of_program(target: Option<&str>) -> Result<Report> {
    if let Some(target) = target {
        return Ok(of_target(target)?.0);
    }
    let mut programs = programs::all();
    match programs.len() {
        1 => Report::of(programs.remove(0)),
        0 => Err("no program of this user uses multiproc".into()),
        _ => {
            let roots: Vec<_> = programs.iter().map(|program| program.root.to_string()).collect();
            Err(format!("several programs run: choose one of the processes {}", roots.join(", ")))
        }
    }
}

/// Returns the program that a file of `record` contains, or the program of a target.
pub(crate) fn of_file_or_target(target: Option<&str>) -> Result<Report> {
    let Some(path) = target.filter(|target| Path::new(target).is_file()) else {
        return of_program(target);
    };
    let text = std::fs::read(path).map_err(|e| format!("{path}: {e}"))?;
    let read = || {
        let mut value: serde_json::Value = serde_json::from_slice(&text)?;
        make_printable(&mut value);
        serde_json::from_value(value)
    };
    read().map_err(|e| format!("{path} was not written by `mp record`: {e}"))
}

/// Replaces control characters, which a file of another user may have.
fn make_printable(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) => *text = mp_core::printable(text),
        serde_json::Value::Array(values) => values.iter_mut().for_each(make_printable),
        serde_json::Value::Object(values) => values.values_mut().for_each(make_printable),
        _ => {}
    }
}
