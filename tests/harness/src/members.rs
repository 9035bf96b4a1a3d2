//! Members of a cluster in separate processes, each with its own arena, like programs on other hosts. A
//! member runs the ignored test `started_member` of the test program that starts it.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Lines, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Environment variables of a member: the name of the role that it plays in the test, and an argument.
const PART: &str = "MP_TEST_MEMBER_PART";
const ARGUMENT: &str = "MP_TEST_MEMBER_ARGUMENT";
/// Prefix of the line that a member prints when it is ready.
const READY: &str = "member: ";

/// A started member, which is killed on drop.
#[derive(Debug)]
pub struct Member {
    child: Child,
    /// Output of the member, kept open so that the member can print.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Member {
    /// Starts a member. Blocks until the member has called [`ready`]. Returns the member, and the text that
    /// it has passed to `ready`. `argument` is most often the address of rank 0.
    ///
    /// # Panics
    /// If the member ends before it is ready.
    #[track_caller]
    pub fn start(part: &str, argument: &str) -> (Self, String) {
        Self::start_program(&std::env::current_exe().unwrap(), part, argument)
    }

    /// Starts a member like [`start`](Self::start), but runs the executable `program`, a copy of the test
    /// program.
    ///
    /// # Panics
    /// If the member ends before it is ready.
    #[track_caller]
    pub fn start_program(program: &Path, part: &str, argument: &str) -> (Self, String) {
        let mut child = Command::new(program)
            .args(["--exact", "started_member", "--ignored", "--nocapture"])
            .env(PART, part)
            .env(ARGUMENT, argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut member = Self { child, _output: output };
        let mut lines = member._output.by_ref().map_while(Result::ok);
        let text = lines.find_map(|line| line.strip_prefix(READY).map(str::to_owned));
        (member, text.expect("the member is ready"))
    }

    /// Returns the id of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the wait of [`wait_for_end`] in the member, and blocks until its process has ended.
    ///
    /// # Panics
    /// If the test in the member fails.
    #[track_caller]
    pub fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Returns the role of this process, or `None` if this process is not a member or a child of a member.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Returns the argument of this member.
///
/// # Panics
/// If this process is not a member.
pub fn argument() -> String {
    std::env::var(ARGUMENT).expect("a member is started with an argument")
}

/// Reports that this member is ready, with a text for the test that has started it.
pub fn ready(text: impl Display) {
    println!("\n{READY}{text}");
}

/// Blocks until the test calls [`Member::end`], or the process of the test has ended.
pub fn wait_for_end() {
    _ = std::io::stdin().read_to_end(&mut Vec::new());
}
