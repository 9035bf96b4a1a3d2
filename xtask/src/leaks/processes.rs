//! Leaked processes, and descriptors that a program inherits.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, WaitOptions, kill_process, wait};

use super::{Leak, pid};

/// Time after the end of the program within which its other processes must end.
const DEADLINE: Duration = Duration::from_secs(10);

/// Environment variable that overrides [`DEADLINE`], in seconds, for tests that leak processes on purpose.
const SECONDS: &str = "MP_LEAKS_SECONDS";

/// Waits until all descendants of the program have ended. After the deadline, kills and returns the
/// descendants that still exist.
pub(super) fn left() -> Vec<Leak> {
    let wanted = std::env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok());
    let until = Instant::now() + wanted.map_or(DEADLINE, Duration::from_secs);
    let (mut leaks, mut named) = (Vec::new(), BTreeSet::new());
    let mut pause = Duration::from_millis(1);
    loop {
        reap();
        let there = descendants(std::process::id());
        if there.is_empty() {
            return leaks;
        }
        if Instant::now() > until {
            for number in there {
                if named.insert(number) {
                    leaks.push(Leak::certain(describe(number)));
                }
            }
            // Only this process's children are killed: no other process reaps them, so their ids can't have
            // been reused. Their children become orphans, and so children of this process. A process that
            // can't be killed belongs to another user.
            for number in children(std::process::id()) {
                pid(number).map(|pid| kill_process(pid, Signal::KILL));
            }
            if Instant::now() > until + DEADLINE {
                return leaks;
            }
        }
        // sleep: no system call waits for one process of many until a deadline.
        thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(100));
    }
}

/// Reaps all children that have ended.
fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// Returns the children of a process, and their descendants.
fn descendants(of: u32) -> Vec<u32> {
    children(of).into_iter().flat_map(|child| std::iter::once(child).chain(descendants(child))).collect()
}

fn children(of: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let Ok(threads) = fs::read_dir(format!("/proc/{of}/task")) else { return all };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
    }
    all
}

fn describe(pid: u32) -> String {
    let read = |what| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
    let line = read("cmdline");
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let (name, words) = (String::from_utf8_lossy(&read("comm")).trim().to_owned(), words.join(" "));
    format!("process {pid} ({name}) lives: {}", words.trim())
}

/// Returns the descriptors that a child of this process inherits.
pub(super) fn inherited() -> Vec<u32> {
    const CLOEXEC: u32 = 0o2_000_000;
    let closes = |fd: &u32| {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
        let flags =
            info.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
        flags.is_none_or(|flags| flags & CLOEXEC != 0)
    };
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return vec![0, 1, 2] };
    let all: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The three standard descriptors may differ at the end.
    all.into_iter().filter(|fd| *fd < 3 || !closes(fd)).chain(0..3).collect()
}
