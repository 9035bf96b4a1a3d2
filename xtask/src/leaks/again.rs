//! Runs failed tests of a program again, each by itself.
//!
//! A test that passes when run again is not an error. The summary lists the test separately, with the output
//! of its failure. Possible causes are a time limit that is too short for a busy machine, a disturbance by
//! another test, and a rare fault. The output is printed because it may be the only trace of a rare fault.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::{Run, watched};
use crate::libtest::{Counter, PASSED_AGAIN};

/// Environment variable that enables the repetition of failed tests.
pub(crate) const RUN_AGAIN: &str = "MP_RUN_AGAIN";

/// Maximum number of failed tests that are run again. If more fail, something is broken.
const MOST: usize = 3;

/// Time for which the output may stay open after the program and its orphans have ended.
const DRAIN: Duration = Duration::from_secs(10);

/// Runs a test program, copies its output to stdout, and returns the run and its failed tests.
pub(super) fn run_and_read(mut command: Command) -> (Result<Run, String>, Vec<String>) {
    let Ok((reader, writer)) = std::io::pipe() else { return (watched(&mut command), Vec::new()) };
    let (sender, failed) = mpsc::channel();
    thread::spawn(move || sender.send(copy(reader)));
    let run = watched(command.stdout(writer));
    // The command holds the writing end of the pipe.
    drop(command);
    (run, failed.recv_timeout(DRAIN).unwrap_or_default())
}

fn copy(reader: PipeReader) -> Vec<String> {
    let (mut reader, mut counter, mut line) = (BufReader::new(reader), Counter::default(), Vec::new());
    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        counter.line(&String::from_utf8_lossy(&line));
        let mut out = std::io::stdout().lock();
        _ = out.write_all(&line).and_then(|()| out.flush());
        line.clear();
    }
    let tally = counter.finish();
    // If the program was killed during a test, the failed test has no name.
    let names = tally.failures.into_iter().map(|failure| failure.name).collect::<Vec<_>>();
    if names.len() as u64 == tally.failed { names } else { Vec::new() }
}

/// Returns `true` if each of these tests passes by itself without a certain leak: files in `/dev/shm` may
/// belong to another program. Returns `false` for an empty list.
pub(super) fn all_pass(program: &OsString, failed: &[String]) -> bool {
    if failed.is_empty() || failed.len() > MOST {
        return false;
    }
    failed.iter().fold(true, |all, test| {
        println!("`{test}` failed: again, by itself");
        let mut command = Command::new(program);
        // The output goes to stderr, so that its result isn't counted as another test's.
        command.args([test, "--exact", "--nocapture"]).stdin(Stdio::null()).stdout(std::io::stderr());
        let is_clean = |run: Run| run.passed() && !run.leaks.iter().any(|leak| leak.certain);
        let passed = watched(&mut command).is_ok_and(is_clean);
        if passed {
            println!("{PASSED_AGAIN}{test}");
        }
        all && passed
    })
}
