//! Files about workers that failed, if `MP_REPORT` names a directory for them.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use mp_core::user_code::catch_panic;
use mp_core::{Arena, HoldersSnapshot, Snapshot, quantity};

use crate::error::{ProcessName, SpawnError};

const VARIABLE: &str = "MP_REPORT";

/// State of the shared memory at the end of a process, before its resources are released.
#[derive(Debug)]
pub(super) struct CrashReport {
    directory: PathBuf,
    snapshot: Option<Snapshot>,
}

impl CrashReport {
    /// Reads the state, if crash reports are enabled.
    pub(super) fn begin() -> Option<Self> {
        let directory = std::env::var_os(VARIABLE).filter(|text| !text.is_empty())?;
        if mp_core::gained_privileges() {
            return None;
        }
        let snapshot = catch_panic(|| Arena::get().map(Snapshot::of)).flatten();
        Some(Self { directory: directory.into(), snapshot })
    }

    /// Writes the file of a process that failed. The file is new, and only this user can read it, because it
    /// contains output of the process.
    pub(super) fn write(&self, who: &ProcessName, error: &SpawnError) {
        let name: String =
            who.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let path = self.directory.join(format!("{name}-{}-{time}.txt", who.pid));
        let text = catch_panic(|| self.text(who, error)).unwrap_or_default();
        let mut new = OpenOptions::new();
        let written = std::fs::create_dir_all(&self.directory)
            .and_then(|()| new.write(true).create_new(true).mode(0o600).open(&path))
            .and_then(|mut file| file.write_all(text.as_bytes()));
        let line = match written {
            Ok(()) => format!("mp: {} failed: {}\n", who.name, path.display()),
            Err(e) => format!("mp: no report about {}: {}: {e} ({VARIABLE})\n", who.name, path.display()),
        };
        // The write fails if the reader has closed the pipe. The supervisor continues.
        _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn text(&self, who: &ProcessName, error: &SpawnError) -> String {
        let program = std::env::args_os().next().unwrap_or_default();
        let mut text = format!(
            "{} (pid {}), started by pid {} ({})\n\n{error}\n",
            who.name,
            who.pid,
            std::process::id(),
            Path::new(&program).display()
        );
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            _ = writeln!(text, "caused by: {cause}");
            source = cause.source();
        }
        match &self.snapshot {
            Some(snapshot) => describe(&mut text, snapshot, who.pid),
            None => text.push_str("\nThe program used no shared memory.\n"),
        }
        text
    }
}

/// Appends the objects that a process held and waited for, and the states of the other processes.
fn describe(text: &mut String, snapshot: &Snapshot, pid: u32) {
    let object = |block: u32, name: &str| match name {
        "" => format!("#{block}"),
        name => format!("{name:?} (#{block})"),
    };
    text.push_str("\nAt its end:\n");
    match snapshot.processes.iter().find(|process| process.pid == pid) {
        None => text.push_str("  it had no shared memory, or another process has already released it\n"),
        Some(process) => {
            let blocks = quantity(process.blocks, "block");
            _ = writeln!(text, "  it held {} bytes in {blocks}", process.bytes);
            for wait in &process.waits {
                let on = wait.object.map_or(String::new(), |block| format!(" of #{block}"));
                let place = wait.place.as_ref().map_or(String::new(), |place| format!(" at {place}"));
                _ = writeln!(text, "  thread {} was in {}{on}{place}", wait.thread.id, wait.call);
            }
        }
    }
    let has = |holders: &HoldersSnapshot| holders.processes.contains(&pid);
    for lock in snapshot.objects.iter().filter(|found| found.owner.is_some_and(|owner| owner.pid == pid)) {
        _ = writeln!(text, "  it held the lock {}", object(lock.block, &lock.name));
    }
    for queue in snapshot.queues.iter().filter(|queue| has(&queue.holders)) {
        let name = object(queue.block, &queue.name);
        _ = match &queue.ring {
            Some(ring) => {
                let messages = quantity(ring.len, "message");
                writeln!(text, "  it had the {} {name}, with {messages}", ring.kind)
            }
            None => writeln!(text, "  it had the queue {name}"),
        };
    }
    for pool in &snapshot.pools {
        for worker in pool.workers.iter().filter(|worker| worker.pid == pid) {
            let name = object(pool.block, &pool.name);
            let note = worker.note.map_or(String::new(), |note| format!(", at note {note}"));
            let tasks = if worker.chunks > 0 { "with a task" } else { "without a task" };
            _ = writeln!(text, "  it was worker {} of the pool {name}, {tasks}{note}", worker.number);
        }
    }
    text.push_str("\nThe other processes:\n");
    for process in snapshot.processes.iter().filter(|process| process.pid != pid) {
        let waits: Vec<_> = process.waits.iter().map(|wait| &*wait.call).collect();
        let does = if waits.is_empty() { String::new() } else { format!(", in {}", waits.join(", ")) };
        let state = format!("{:?}", process.state).to_lowercase();
        _ = writeln!(text, "  {} {} ({state}{does})", process.pid, process.name);
    }
}
