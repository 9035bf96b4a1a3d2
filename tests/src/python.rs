//! A real Python beside the tests, if this machine has one: `MP_PYTHON` says which, else `python3`.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};

/// A Python that runs a script, line by line with the test. Killed on drop.
#[derive(Debug)]
pub struct Python {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

fn command() -> Command {
    Command::new(std::env::var_os("MP_PYTHON").unwrap_or_else(|| "python3".into()))
}

/// Returns `true` if there is a Python that can import this module. Otherwise the calling test is reported as skipped.
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
    /// Runs a script, which begins with what tests need, and may use these arguments.
    pub fn run(script: &str, args: &[&str]) -> Self {
        Self::with_fd(script, args, None::<std::io::Stdin>)
    }

    /// As [`run`](Self::run); the child inherits the descriptor under its number.
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

    /// The next line that it says.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "it ended early, see its error above");
        line.trim_end().to_owned()
    }

    /// A line for its `input()`.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended, well.
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

/// The number of a descriptor, as an argument.
pub fn number(fd: impl AsFd) -> String {
    fd.as_fd().as_raw_fd().to_string()
}
