//! `mp top` in a terminal that `script` makes, beside a program that hangs.
#![cfg(not(miri))]

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use mp_harness::DEADLINE;

/// A process that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn hangs() -> Program {
    let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let mut command = Command::new(folder.join("examples/hangs"));
    command.arg("join").env("MP_STALL", "off").stderr(Stdio::null()).stdout(Stdio::null());
    let program = Program(command.spawn().expect("the example `hangs`, which `cargo test` builds"));
    mp_harness::eventually("the program can be read", || {
        let mut show = Command::new(env!("CARGO_BIN_EXE_mp"));
        let output = show.args(["show", &program.0.id().to_string()]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("64/64")
    });
    program
}

/// `mp top` in a terminal of 24 lines, and what it has written.
struct Top {
    script: Program,
    output: Receiver<Vec<u8>>,
    text: String,
}

impl Top {
    fn start(program: &Program) -> Self {
        let mp = format!("stty rows 24 cols 80; exec {} top {}", env!("CARGO_BIN_EXE_mp"), program.0.id());
        let mut command = Command::new("script");
        command.args(["-qec", &mp, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.env("TERM", "xterm").env("SHELL", "/bin/sh").spawn().unwrap();
        let (sender, output) = mpsc::channel();
        let mut stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = stdout.read(&mut bytes) {
                _ = sender.send(bytes[..len].to_vec());
            }
        });
        Self { script: Program(child), output, text: String::new() }
    }

    /// Waits until it has written this, which must be one word: `top` skips spaces and what it has written
    /// before, until Ctrl-L.
    #[track_caller]
    fn expect(&mut self, word: &str) {
        let until = Instant::now() + DEADLINE;
        while !self.text.contains(word) {
            assert!(Instant::now() < until, "{word:?} is not in this: {:?}", self.text);
            match self.output.recv_timeout(REDRAWN) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(RecvTimeoutError::Timeout) => self.keys("\x0c"),
                Err(RecvTimeoutError::Disconnected) => panic!("{word:?} is not in this: {:?}", self.text),
            }
        }
    }

    fn keys(&mut self, keys: &str) {
        let stdin = self.script.0.stdin.as_mut().unwrap();
        // It may have ended.
        _ = stdin.write_all(keys.as_bytes()).and_then(|()| stdin.flush());
    }

    /// Waits for its end. Returns its exit code.
    fn end(mut self) -> Option<i32> {
        self.expect(RESTORED);
        self.script.0.wait().unwrap().code()
    }
}

/// Time without output after which `top` is asked to write all again.
const REDRAWN: Duration = Duration::from_millis(200);
/// Leaves the alternate screen.
const RESTORED: &str = "\x1b[?1049l";

fn has_script() -> bool {
    let found = Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        mp_harness::skip("there is no `script` of util-linux");
    }
    found
}

#[test]
fn top_shows_a_hang_until_q() {
    if !has_script() {
        return;
    }
    let program = hangs();
    let mut top = Top::start(&program);
    top.expect("Queue::put");
    top.keys("w");
    top.expect("join(),");
    top.keys("xq");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn top_keeps_the_last_state_of_a_program() {
    if !has_script() {
        return;
    }
    let program = hangs();
    let mut top = Top::start(&program);
    top.expect("Queue::put");
    drop(program);
    top.expect("ended.");
    top.keys("q");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn terminal_is_restored_after_sigterm() {
    if !has_script() {
        return;
    }
    let program = hangs();
    let mut top = Top::start(&program);
    top.expect("Queue::put");
    let script = top.script.0.id();
    let children = std::fs::read_to_string(format!("/proc/{script}/task/{script}/children")).unwrap();
    assert!(Command::new("kill").args(children.split_whitespace()).status().unwrap().success());
    assert_eq!(top.end(), Some(0));
}

#[test]
fn top_without_a_terminal_names_show() {
    let output = Command::new(env!("CARGO_BIN_EXE_mp")).arg("top").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("`mp show --watch`"));
}
