//! Tests that failed among all others of their program are run again, each by itself. One that passes then is told apart in the
//! summary, with what it said when it failed, and is no error: its author gave it too little time for a machine as busy, or
//! it was disturbed by another test; or there is a fault that comes up one time in many, which is why it is printed.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::{Run, watched};
use crate::libtest::{Counter, PASSED_AGAIN};

/// The variable that asks for it.
pub(crate) const RUN_AGAIN: &str = "MP_RUN_AGAIN";

/// If more fail, something is broken.
const MOST: usize = 3;

/// How long the output may stay open when the program and all that it had left have ended.
const DRAIN: Duration = Duration::from_secs(10);

/// Runs a test program, and reads what it prints to its standard output, which is copied to this process's: the tests that failed.
pub(super) fn heard(mut command: Command) -> (Result<Run, String>, Vec<String>) {
    let Ok((reader, writer)) = std::io::pipe() else { return (watched(&mut command), Vec::new()) };
    let (sender, failed) = mpsc::channel();
    thread::spawn(move || sender.send(copy(reader)));
    let run = watched(command.stdout(writer));
    // It has the pipe's writing end.
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
    // A program that was killed in a test has failed in none that has a name.
    let names = tally.failures.into_iter().map(|failure| failure.name).collect::<Vec<_>>();
    if names.len() as u64 == tally.failed { names } else { Vec::new() }
}

/// Whether each of these passes by itself and leaves nothing behind. None is not all.
pub(super) fn all_pass(program: &OsString, failed: &[String]) -> bool {
    if failed.is_empty() || failed.len() > MOST {
        return false;
    }
    failed.iter().fold(true, |all, test| {
        println!("`{test}` failed: again, by itself");
        let mut command = Command::new(program);
        // What it says now is to its standard error, lest its result be counted as another test's.
        command.args([test, "--exact", "--nocapture"]).stdin(Stdio::null()).stdout(std::io::stderr());
        let passed = watched(&mut command).is_ok_and(|run| run.passed() && run.leaks.is_empty());
        if passed {
            println!("{PASSED_AGAIN}{test}");
        }
        all && passed
    })
}
