//! Real Python interpreter for tests, if this machine has one: `$MP_PYTHON`, or `python3`.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};

/// Python process that runs a script, controlled line by line. Killed on drop.
#[derive(Debug)]
pub struct Python {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

fn command() -> Command {
    Command::new(std::env::var_os("MP_PYTHON").unwrap_or_else(|| "python3".into()))
}

/// Returns `true` if Python can import this module. Otherwise the calling test is reported as skipped.
#[track_caller]
pub fn has(module: &str) -> bool {
    let mut command = command();
    command.args(["-c", &format!("import {module}")]).stderr(Stdio::null());
    let there = command.status().is_ok_and(|s| s.success());
    if !there {
        mp_harness::skip(format_args!("no python3 with {module} here (MP_PYTHON can name one)"));
    }
    there
}

impl Python {
    /// Runs a script after a common prologue, with these arguments.
    pub fn run(script: &str, args: &[&str]) -> Self {
        Self::with_fd(script, args, None::<std::io::Stdin>)
    }

    /// Does the same as [`run`](Self::run). The child inherits the descriptor `fd` under the same number.
    pub fn with_fd(script: &str, args: &[&str], fd: Option<impl AsFd>) -> Self {
        let script = format!("import sys\ndef say(x): print(x, flush=True)\n{script}");
        if let Some(fd) = &fd {
            fcntl_setfd(fd, FdFlags::empty()).unwrap();
        }
        let mut child = command()
            .args(["-c", &script])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        if let Some(fd) = &fd {
            fcntl_setfd(fd, FdFlags::CLOEXEC).unwrap();
        }
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, to, from: BufReader::new(from) }
    }

    /// Returns the next line of the script's output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the script ended early, see its error above");
        line.trim_end().to_owned()
    }

    /// Sends a line to the script, which reads it by `input()`.
    pub fn report(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    /// Returns the process id of the interpreter.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of the interpreter. Panics if it has failed.
    pub fn end(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Returns the number of a descriptor as a text, for a script's arguments.
pub fn number(fd: impl AsFd) -> String {
    fd.as_fd().as_raw_fd().to_string()
}
