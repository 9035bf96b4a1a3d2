//! Runs a test program until its first failure, with or without a mutation.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::programs::{Programs, Run};

/// Outcome of a run.
#[derive(Debug)]
pub(super) enum End {
    /// Number of tests that passed.
    Passed(usize),
    /// Name of the test that failed or ended the program.
    Failed(String),
    /// Name of the test that did not end.
    TimedOut(String),
}

/// Time at which a run counts as hanging.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit(Instant);

impl Limit {
    pub(super) fn of(time: Duration) -> Self {
        Self(Instant::now() + time)
    }
}

pub(super) fn run(
    programs: &Programs,
    run: &Run,
    mutation: Option<&str>,
    every: u32,
    limit: Limit,
) -> Result<End, String> {
    let mut command = programs.command(run)?;
    match mutation {
        Some(name) => command.env("MP_MUTANT", name),
        None => command.env_remove("MP_MUTANT"),
    };
    command.env("MP_EVERY", every.to_string());
    // A process group, so that child processes end with it.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(|e| format!("{run}: {e}"))?;
    let mut output = child.stdout.take().ok_or("its output is missing")?;
    let (send, parts) = mpsc::channel();
    thread::spawn(move || {
        let mut part = [0; 4096];
        while let Ok(n @ 1..) = output.read(&mut part) {
            if send.send(part[..n].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut text = Vec::new();
    let failed = loop {
        match parts.recv_timeout(limit.0.saturating_duration_since(Instant::now())) {
            Ok(part) => text.extend(part),
            Err(RecvTimeoutError::Timeout) => break Some(true),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
        if failed_test(&String::from_utf8_lossy(&text)).is_some() {
            break Some(false);
        }
    };
    // The group is also killed if the program has closed its output: remaining processes would disturb other
    // runs.
    let status = match failed {
        Some(_) => {
            end(child.id());
            child.wait()
        }
        None => wait(&mut child, limit),
    };
    end(child.id());
    let status = status.map_err(|e| format!("{run}: {e}"))?;
    let text = String::from_utf8_lossy(&text);
    let blamed = || failed_test(&text).unwrap_or_else(|| last_begun(&text, run));
    Ok(match failed {
        Some(true) => End::TimedOut(last_begun(&text, run)),
        None if status.success() => End::Passed(passed(&text).unwrap_or(usize::from(run.is_program()))),
        Some(false) | None => End::Failed(blamed()),
    })
}

/// Waits for a process that has closed its output. The process ends soon, or hangs in its exit.
fn wait(child: &mut std::process::Child, limit: Limit) -> std::io::Result<std::process::ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() >= limit.0 {
            end(child.id());
            return child.wait();
        }
        // sleep: the standard library has no wait with a deadline.
        thread::sleep(Duration::from_millis(5));
    }
}

/// Kills a process group if it still exists.
fn end(group: u32) {
    let all = format!("-{group}");
    _ = Command::new("kill").args(["-KILL", "--", &all]).stderr(Stdio::null()).status();
}

/// Returns the first failed test in the output of libtest.
fn failed_test(text: &str) -> Option<String> {
    let mut last = None;
    for line in text.lines() {
        if let Some((name, result)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ...")) {
            last = Some(name);
            if result.contains("FAILED") {
                return Some(plain(name));
            }
        } else if line == "FAILED" {
            return last.map(plain);
        }
    }
    None
}

/// Returns the test that was running at the end.
fn last_begun(text: &str, run: &Run) -> String {
    let begun = text.lines().rev().find_map(|line| line.strip_prefix("test ")?.split_once(" ..."));
    begun.map_or_else(|| run.filter.clone(), |(name, _)| plain(name))
}

/// Removes the suffixes that libtest adds to a name.
fn plain(name: &str) -> String {
    name.trim_end_matches(" - should panic").to_owned()
}

/// Returns the number of passed tests in the output of libtest.
fn passed(text: &str) -> Option<usize> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix("test result: ok. "))?;
    line.split_once(" passed").and_then(|(n, _)| n.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_test_is_parsed_from_the_output() {
        let run = Run::new("mp-x/x", "");
        let text = "running 3 tests\ntest a ... ok\ntest m::b - should panic ... FAILED\n";
        assert_eq!(failed_test(text).as_deref(), Some("m::b"));
        assert_eq!(failed_test("test a ... ok\ntest b ... said by a worker\nFAILED\n").as_deref(), Some("b"));
        assert_eq!(failed_test("test a ... ok\ntest b ... "), None);
        assert_eq!(last_begun("test a ... ok\ntest b ... ", &run), "b");
        assert_eq!(passed("test result: ok. 12 passed; 0 failed;\n"), Some(12));
    }
}
