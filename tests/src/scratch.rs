//! Directories for tests of named files, and separate programs that use them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};

use mp::memory::{SharingStrategy, set_sharing_directory, set_sharing_strategy};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::DEADLINE;

const SCENARIO: &str = "MP_TESTS_SCENARIO";
const DIRECTORY: &str = "MP_TESTS_DIRECTORY";

/// Returns the scenario of this program if [`Scratch::run`] has started it: a word, a number, and a path.
pub fn scenario() -> Option<(String, u64, PathBuf)> {
    let scenario = std::env::var(SCENARIO).ok()?;
    let (what, at) = scenario.split_once(' ').unwrap_or((&scenario, "0"));
    Some((what.to_owned(), at.parse().unwrap(), std::env::var(DIRECTORY).unwrap().into()))
}

/// Directory below /dev/shm, which is removed on drop.
#[derive(Debug)]
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Creates a directory whose name consists of `name` and the id of this process.
    pub fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/mp-test-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Returns the directory of the library's files.
    pub fn ours(&self) -> PathBuf {
        self.0.join(format!("mp-{}", rustix::process::getuid().as_raw()))
    }

    /// Returns the paths of the library's files.
    pub fn files(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.ours()) else { return Vec::new() };
        entries.map(|e| e.unwrap().path()).collect()
    }

    /// Returns the command of a separate program, which has no shared memory yet. [`helper`] runs the
    /// scenario in that program.
    pub fn program(&self, scenario: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["helper", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(SCENARIO, scenario).env(DIRECTORY, &self.0);
        command
    }

    /// Runs [`program`](Self::program) to its successful end, and returns its output.
    #[track_caller]
    pub fn run(&self, scenario: &str) -> String {
        self.run_with(scenario, |_| ())
    }

    /// Runs [`program`](Self::program) to its successful end, with a command that `change` has adapted.
    /// Returns its output.
    #[track_caller]
    pub fn run_with(&self, scenario: &str, change: impl FnOnce(&mut Command)) -> String {
        let mut program = self.program(scenario);
        change(&mut program);
        said(output(&mut program))
    }

    /// Runs the program with a tmpfs mounted over the directory, for this program only. Returns `None` if
    /// mounting isn't permitted.
    #[track_caller]
    pub fn run_mounted(&self, options: &str, scenario: &str) -> Option<String> {
        let mount = format!("-t tmpfs -o {options}");
        self.run_in_namespace("-rm", &mount, &self.program(scenario))
    }

    /// Runs the program with a hugetlbfs mounted over the directory, for this program only. Returns `None` if
    /// the program may not mount there. The mount requires root.
    #[track_caller]
    pub fn run_on_huge_pages(&self, options: &str, program: &Command) -> Option<String> {
        self.run_in_namespace("-m", &format!("-t hugetlbfs -o {options}"), program)
    }

    #[track_caller]
    fn run_in_namespace(&self, unshare: &str, mount: &str, program: &Command) -> Option<String> {
        let script = format!("mount {mount} mp-test \"$0\" && exec \"$@\"");
        let probe = [unshare, "sh", "-c", &script].map(str::to_owned);
        if !Command::new("unshare")
            .args(&probe)
            .arg(&self.0)
            .arg("true")
            .output()
            .is_ok_and(|o| o.status.success())
        {
            mp_harness::skip("no mounts in namespaces of one's own here");
            return None;
        }
        let mut command = Command::new("unshare");
        command.args(&probe).arg(&self.0).arg(program.get_program()).args(program.get_args());
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Some(said(command.output().unwrap()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a program to its end. A program that exceeds the deadline is killed, and counts as failed.
fn output(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    let (ended, has_ended) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if has_ended.recv_timeout(DEADLINE) == Err(RecvTimeoutError::Timeout) {
            _ = pidfd_send_signal(process, Signal::KILL);
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watchdog.join().unwrap();
    output
}

#[track_caller]
fn said(output: Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    assert!(text.contains("test result: ok") && !text.contains(" 0 passed"), "{text}\n{errors}");
    text
}

/// Huge pages that the kernel reserves for a test, released on drop.
#[derive(Debug)]
pub struct HugePages(u64);

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

fn pages(what: &str) -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap();
    let value =
        info.lines().find_map(|l| l.strip_prefix(what)?.split_ascii_whitespace().next()?.parse().ok());
    value.unwrap_or(0)
}

impl HugePages {
    /// Reserves at least `wanted` free pages. Returns `None`, and prints the reason, if that isn't permitted
    /// or there are too few pages.
    #[track_caller]
    pub fn reserve(wanted: u64) -> Option<Self> {
        let before = pages("HugePages_Total:");
        let guard = Self(before);
        let missing = wanted.saturating_sub(pages("HugePages_Free:"));
        let written = missing == 0 || fs::write(RESERVED, (before + missing).to_string()).is_ok();
        if written && pages("HugePages_Free:") >= wanted {
            return Some(guard);
        }
        mp_harness::skip(format_args!("{wanted} huge pages can't be had here (they are root's to reserve)"));
        None
    }

    /// Returns the number of free pages.
    pub fn free(&self) -> u64 {
        pages("HugePages_Free:")
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if pages("HugePages_Total:") != self.0 {
            _ = fs::write(RESERVED, self.0.to_string());
        }
    }
}

/// Configures this process to put tensors into files below a directory.
pub fn files_in(directory: &Path) {
    set_sharing_directory(directory).unwrap();
    set_sharing_strategy(SharingStrategy::FileSystem).unwrap();
}
