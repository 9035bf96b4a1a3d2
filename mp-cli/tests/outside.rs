//! `mp` does not change programs and files, even if it is killed.
#![cfg(not(miri))]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use common::{Program, mp};
use mp_harness::{DEADLINE, eventually, signal};
use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::process::Signal;
use serde_json::Value;

/// A program that moves numbers through a queue and checks them, in a folder of its own.
struct Target {
    program: Program,
    folder: PathBuf,
    /// All processes of the program.
    pids: Vec<u32>,
}

impl Target {
    fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("mp-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("shared")).unwrap();
        let program = Program::start("counts", &[("TMPDIR", folder.to_str().unwrap())]);
        let mut target = Self { program, folder, pids: Vec::new() };
        // The command is not used here, because its first use could be the use that changes something.
        eventually("the worker runs", || {
            let root = target.program.0.id();
            let children = children_of(root).into_iter();
            let workers = children.filter(|pid| {
                let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                name == "rank-0\n" && arena_of(*pid).is_some()
            });
            target.pids = [root].into_iter().chain(workers).collect();
            target.pids.len() == 2
        });
        target
    }

    /// Returns all commands that read a program. Commands that write a file write into the target's folder.
    fn commands(&self) -> Vec<Command> {
        let (pid, file) = (self.program.pid(), self.folder.join("record.json"));
        let (file, shared) = (file.to_str().unwrap(), self.folder.join("shared"));
        let all: &[&[&str]] = &[
            &["ls"],
            &["why", &pid],
            &["show", &pid],
            &["queue", "numbers", "--program", &pid],
            &["lock", "stop", "--program", &pid],
            &["pool", "--program", &pid],
            &["tensor", "--program", &pid],
            &["record", file, "--program", &pid],
            &["gc", "--dry-run", "--directory", shared.to_str().unwrap()],
        ];
        let command = |arguments: &&[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_mp"));
            command.args(*arguments).stdin(Stdio::null()).stdout(Stdio::piped());
            command
        };
        let all = all.iter().map(command).chain(common::top(&pid));
        all.map(|mut command| {
            command.env("TMPDIR", &self.folder).stderr(Stdio::null());
            command
        })
        .collect()
    }

    /// Returns the open files of each process.
    fn open_files(&self) -> Vec<Vec<PathBuf>> {
        let of = |pid: &u32| {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
            let mut paths: Vec<_> = files.filter_map(|file| fs::read_link(file.path()).ok()).collect();
            paths.sort();
            paths
        };
        self.pids.iter().map(of).collect()
    }

    /// Returns the number of messages that were put into the queue.
    fn puts(&self) -> u64 {
        let (text, _) = mp(&["queue", "numbers", "--json", "--program", &self.program.pid()]);
        let queues: Value = serde_json::from_str(&text).unwrap();
        queues[0]["puts"].as_u64().unwrap()
    }

    /// Ends the program's input, and waits until the program ends. Panics if the program reports a wrong
    /// number.
    fn finish(mut self) {
        drop(self.program.0.stdin.take());
        assert!(self.program.end().success());
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        for pid in &self.pids {
            // A stopped process doesn't notice the end of its parent.
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            _ = rustix::process::kill_process(pid, Signal::CONT);
        }
        _ = fs::remove_dir_all(&self.folder);
    }
}

/// Memory and processes of a program whose processes are stopped.
#[derive(PartialEq, Debug)]
struct State {
    /// Hashes of the non-zero pages of the arena, by offset.
    pages: BTreeMap<u64, u64>,
    /// Number of blocks of the arena's file, and its times of modification and change.
    file: [i64; 5],
    /// State, tracer, signals and context switches of each thread.
    threads: Vec<String>,
    maps: Vec<String>,
    open_files: Vec<Vec<PathBuf>>,
}

impl State {
    fn of(target: &Target) -> Self {
        let arena = arena_of(target.pids[0]).unwrap();
        let (mut pages, mut at, mut page) = (BTreeMap::new(), 0, [0; 4096]);
        while let Ok(data) = rustix::fs::seek(&arena, SeekFrom::Data(at)) {
            at = rustix::fs::seek(&arena, SeekFrom::Hole(data)).unwrap();
            for offset in (data..at).step_by(page.len()) {
                arena.read_exact_at(&mut page, offset).unwrap();
                pages.insert(offset, std::hash::BuildHasher::hash_one(&Fixed, page));
            }
        }
        let file = arena.metadata().unwrap();
        let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
        let of = |pid: &u32, name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
        let tasks = target.pids.iter().flat_map(|pid| {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
            tasks.map(move |task| format!("{pid}/task/{}", task.file_name().display()))
        });
        let mut threads: Vec<_> = tasks.map(|task| status_of(&task)).collect();
        threads.sort();
        Self {
            pages,
            file: [[file.blocks() as i64].as_slice(), &times].concat().try_into().unwrap(),
            threads,
            maps: target.pids.iter().map(|pid| of(pid, "maps")).collect(),
            open_files: target.open_files(),
        }
    }
}

/// Hasher that gives equal bytes equal hashes.
struct Fixed;

impl std::hash::BuildHasher for Fixed {
    type Hasher = std::hash::DefaultHasher;

    fn build_hasher(&self) -> Self::Hasher {
        Self::Hasher::new()
    }
}

/// Returns the child processes of all threads of a process.
fn children_of(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |task: fs::DirEntry| fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let children: Vec<_> = tasks.map(of).collect();
    children.iter().flat_map(|text| text.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

/// Opens the arena of a process, if it has one.
fn arena_of(pid: u32) -> Option<File> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let is_arena = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:mp-arena"))
    };
    File::open(files.map(|file| file.path()).find(is_arena)?).ok()
}

/// Returns the lines of `/proc/…/status` that change if a thread was traced, continued or sent a signal.
fn status_of(task: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{task}/status")).unwrap();
    let fields = ["State", "TracerPid", "SigPnd", "ShdPnd", "voluntary_ctxt", "nonvoluntary_ctxt"];
    let lines = status.lines().filter(|line| fields.iter().any(|field| line.starts_with(field)));
    lines.fold(task.to_owned(), |text, line| text + " " + line)
}

/// Event after which the command is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// The command has written its first byte of output.
    FirstByte,
    /// The test has read the command's `/proc/PID/stat` this number of times.
    Polls(u32),
    /// The command has created a file.
    File,
}

/// Starts a command and kills it at `moment`. For `top`, the started process is `script`, and the killed
/// process is its child.
fn kill(mut command: Command, moment: Moment, folder: &Path) -> u32 {
    let is_top = command.get_program() == "script";
    let mut child = command.spawn().unwrap();
    let mut pid = child.id();
    if is_top {
        eventually("`script` has started `mp top`", || {
            pid = children_of(child.id()).pop().unwrap_or(0);
            pid != 0
        });
    }
    match moment {
        Moment::FirstByte => _ = child.stdout.as_mut().unwrap().read(&mut [0]).unwrap(),
        Moment::Polls(count) => (0..count).for_each(|_| _ = fs::read(format!("/proc/{pid}/stat"))),
        Moment::File => {
            let until = Instant::now() + DEADLINE;
            // The first entry is the sharing directory.
            while fs::read_dir(folder).unwrap().nth(1).is_none() && Instant::now() < until {}
        }
    }
    _ = rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid.cast_signed()).unwrap(),
        Signal::KILL,
    );
    child.wait_with_output().unwrap();
    pid
}

/// Checks that a killed `record` has left a whole file or no file in its folder. Removes a whole file, and
/// returns `true` if there was one.
fn check_record(target: &Target) -> bool {
    let file = target.folder.join("record.json");
    let names = fs::read_dir(&target.folder).unwrap().flatten().map(|entry| entry.file_name());
    let mut names: Vec<_> = names.filter(|name| name != "shared").collect();
    names.retain(|name| name != "record.json");
    assert!(names.is_empty(), "{names:?}");
    let Ok(text) = fs::read_to_string(&file) else { return false };
    assert!(serde_json::from_str::<Value>(&text).is_ok(), "only {} bytes of it", text.len());
    fs::remove_file(&file).unwrap();
    true
}

#[test]
fn killed_mp_command_leaves_no_files_open() {
    let target = Target::start("killed");
    let before = target.open_files();
    let polls = (0..12).map(|power| Moment::Polls((1 << power) - 1));
    for moment in [Moment::FirstByte].into_iter().chain(polls) {
        let puts = target.puts();
        for command in target.commands() {
            let pid = kill(command, moment, &target.folder);
            eventually("the program has the same files", || target.open_files() == before);
            check_record(&target);
            let shared = fs::read_dir(target.folder.join("shared")).unwrap();
            let named = fs::read_dir("/dev/shm").unwrap().flatten().map(|file| file.file_name());
            let mut named = named.filter(|name| name.to_string_lossy().contains(&pid.to_string()));
            assert_eq!((shared.count(), named.next()), (0, None));
        }
        eventually("numbers move", || target.puts() > puts);
    }
    target.finish();
}

#[test]
fn file_of_a_killed_mp_record_is_whole_or_missing() {
    let target = Target::start("record");
    let record =
        || target.commands().into_iter().find(|c| c.get_args().any(|word| word == "record")).unwrap();
    for _ in 0..50 {
        kill(record(), Moment::File, &target.folder);
        assert!(check_record(&target));
    }
    target.finish();
}

#[test]
fn mp_commands_change_nothing_of_a_stopped_program() {
    let target = Target::start("stopped");
    target.pids.iter().for_each(|pid| signal(*pid, Signal::STOP));
    eventually("all threads are stopped", || {
        target.pids.iter().all(|pid| mp_harness::threads_are(*pid, 'T'))
    });
    let before = State::of(&target);
    assert!(before.pages.len() > 10);
    let listed = mp(&["help"]).0;
    let listed = listed.lines().skip_while(|line| *line != "Commands:").skip(1);
    for name in listed.map_while(|line| line.split_whitespace().next()) {
        let is_here = |command: &Command| command.get_args().any(|word| word == name);
        // `top` is an argument of `script`, and the other three commands read no program.
        let others = ["top", "man", "completions", "help"];
        assert!(
            others.contains(&name) || target.commands().iter().any(is_here),
            "`mp {name}` is missing here"
        );
    }
    for mut command in (0..3).flat_map(|_| target.commands()) {
        let mut child = command.spawn().unwrap();
        if let Some(mut keys) = child.stdin.take() {
            // `top` ends when it has drawn the program and read this.
            let mut bytes = [0; 4096];
            assert!(child.stdout.as_mut().unwrap().read(&mut bytes).unwrap() > 0);
            keys.write_all(b"q").unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        assert_eq!(State::of(&target), before, "{command:?}");
    }
}

/// The arena of another build is simulated by the first page of a real arena, with another version and other
/// fields after it.
#[test]
fn mp_command_refuses_a_program_of_another_version() {
    const VERSION: usize = 64;
    let target = Target::start("version");
    let real = arena_of(target.pids[0]).unwrap();
    let mut page = vec![0; 4096];
    real.read_exact_at(&mut page, 0).unwrap();
    let ours = u64::from_ne_bytes(page[VERSION..VERSION + 8].try_into().unwrap());
    page[VERSION + 8..VERSION + 256].fill(0xff);
    page[VERSION..VERSION + 8].copy_from_slice(&(ours + 1).to_ne_bytes());
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let other = File::from(rustix::fs::memfd_create("mp-arena", flags).unwrap());
    other.write_all_at(&page, 0).unwrap();
    other.set_len(real.metadata().unwrap().len()).unwrap();
    rustix::fs::fcntl_add_seals(&other, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let (text, code) = mp(&["why", &std::process::id().to_string()]);
    let versions = format!("another version: layout version is {}, this build has {ours}", ours + 1);
    assert!(code == Some(1) && text.contains(&versions), "{code:?}: {text}");
}
