//! `mp top` for a program that hangs, in a terminal that `script` creates.
#![cfg(not(miri))]

mod common;

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use common::Program;
use mp_harness::DEADLINE;

fn hangs() -> Program {
    let program = Program::start("join", &[]);
    mp_harness::eventually("the program can be read", || {
        let mut show = Command::new(env!("CARGO_BIN_EXE_mp"));
        let output = show.args(["show", &program.0.id().to_string()]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).contains("64/64")
    });
    program
}

/// `mp top` in a terminal of 24 lines, and its output.
struct Top {
    script: Program,
    output: Receiver<Vec<u8>>,
    text: String,
}

impl Top {
    /// Starts `mp top`. Returns `None` if this machine has no terminal.
    fn start(program: &Program) -> Option<Self> {
        let mut child = common::top(&program.pid())?.spawn().unwrap();
        let (sender, output) = mpsc::channel();
        let mut stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = stdout.read(&mut bytes) {
                _ = sender.send(bytes[..len].to_vec());
            }
        });
        Some(Self { script: Program(child), output, text: String::new() })
    }

    /// Waits until the output contains `word`, which must be one word: `top` skips spaces and unchanged text
    /// until Ctrl-L.
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
        // The command may have ended.
        _ = stdin.write_all(keys.as_bytes()).and_then(|()| stdin.flush());
    }

    /// Waits for the end of the process. Returns its exit code.
    fn end(mut self) -> Option<i32> {
        self.expect(RESTORED);
        self.script.0.wait().unwrap().code()
    }
}

/// Time without output after which the test makes `top` redraw the screen.
const REDRAWN: Duration = Duration::from_millis(200);
/// Escape sequence that leaves the alternate screen of a terminal.
const RESTORED: &str = "\x1b[?1049l";

#[test]
fn top_shows_a_hang_until_q_is_pressed() {
    let program = hangs();
    let Some(mut top) = Top::start(&program) else { return };
    top.expect("Queue::put");
    top.keys("w");
    top.expect("join(),");
    top.keys("xq");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn top_keeps_the_last_state_of_an_ended_program() {
    let program = hangs();
    let Some(mut top) = Top::start(&program) else { return };
    top.expect("Queue::put");
    drop(program);
    top.expect("ended.");
    top.keys("q");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn top_restores_the_terminal_after_sigterm() {
    let program = hangs();
    let Some(mut top) = Top::start(&program) else { return };
    top.expect("Queue::put");
    let script = top.script.0.id();
    let children = std::fs::read_to_string(format!("/proc/{script}/task/{script}/children")).unwrap();
    assert!(Command::new("kill").args(children.split_whitespace()).status().unwrap().success());
    assert_eq!(top.end(), Some(0));
}

#[test]
fn top_restores_the_terminal_on_ctrl_z() {
    let program = hangs();
    let Some(mut top) = Top::start(&program) else { return };
    top.expect("Queue::put");
    // No shell could continue the command, so the kernel doesn't stop it.
    top.keys("\x1a");
    top.expect(RESTORED);
    top.text.clear();
    top.expect("Queue::put");
    top.keys("q");
    assert_eq!(top.end(), Some(0));
}

#[test]
fn top_without_a_terminal_suggests_show() {
    let output = Command::new(env!("CARGO_BIN_EXE_mp")).arg("top").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("`mp show --watch`"));
}
