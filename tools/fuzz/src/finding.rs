//! Handling of an input that causes a fault: the input is run again, and shortened.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for shortening an input.
const TIME: Duration = Duration::from_secs(30);
/// Number of last lines of a child's output that are shown.
const LINES: usize = 12;

/// Runs an input in a separate process. Returns the reason of a failure, or `None` if the input does not
/// fail.
pub(crate) fn fails(name: &str, input: &[u8]) -> Option<String> {
    let me = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(me);
    command
        .args(["child", name, "one"])
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("a child starts");
    // The child may end before it has read all bytes.
    _ = child.stdin.take().map(|mut stdin| stdin.write_all(input));
    let output = child.wait_with_output().expect("a child ends");
    if output.status.success() {
        return None;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    Some(format!("{}: {last}", output.status))
}

/// Shortens a failing input. Returns the shortest failing input that was found within the time limit.
pub(crate) fn shortest(name: &str, input: Vec<u8>) -> Vec<u8> {
    let (mut best, start) = (input, Instant::now());
    let is_over = || start.elapsed() > TIME;
    let mut step = best.len().div_ceil(2);
    while step > 0 && !is_over() {
        let mut at = 0;
        while at < best.len() && !is_over() {
            let mut shorter = best.clone();
            shorter.drain(at..(at + step).min(best.len()));
            if fails(name, &shorter).is_some() {
                best = shorter;
            } else {
                at += step;
            }
        }
        step /= 2;
    }
    for at in 0..best.len() {
        if best[at] != 0 && !is_over() {
            let mut plainer = best.clone();
            plainer[at] = 0;
            if fails(name, &plainer).is_some() {
                best = plainer;
            }
        }
    }
    best
}
