//! The command and the programs of `examples/hangs.rs`, for all tests.
// Each test program uses a part.
#![allow(dead_code)]

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use mp_harness::DEADLINE;

/// A process that ends with the test.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    /// Starts a program of `examples/hangs.rs`, of the same profile as the test.
    pub(crate) fn start(name: &str, environment: &[(&str, &str)]) -> Self {
        let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
        let mut command = Command::new(folder.join("examples/hangs"));
        // The program's own reports would fill the output.
        command.arg(name).env("MP_STALL", "off").envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        Self(command.spawn().expect("the example `hangs`, which `cargo xtask test` builds"))
    }

    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Waits until the process ends, and returns its exit status.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "the program does not end");
            std::thread::sleep(std::time::Duration::from_millis(5)); // sleep: between two checks of a process
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Runs the command. Returns its outputs and its exit code.
pub(crate) fn mp(arguments: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_mp")).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (text, output.status.code())
}

/// Returns a command that runs `mp top` in a terminal, or `None` if this machine has no program `script`.
pub(crate) fn top(pid: &str) -> Option<Command> {
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        mp_harness::skip("there is no `script` of util-linux");
        return None;
    }
    let mp = format!("stty rows 24 cols 80; exec {} top {pid}", env!("CARGO_BIN_EXE_mp"));
    let mut command = Command::new("script");
    command.args(["-qec", &mp, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.env("TERM", "xterm").env("SHELL", "/bin/sh");
    Some(command)
}
