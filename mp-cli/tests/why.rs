//! `mp` beside programs that hang, each for another reason: `examples/hangs.rs`.
#![cfg(not(miri))]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mp_harness::DEADLINE;

/// A program that hangs, which ends with the test.
struct Program(Child);

impl Program {
    fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    fn start_with(name: &str, environment: &[(&str, &str)]) -> Self {
        // Of the same profile as this test, beside its folder.
        let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
        let mut command = Command::new(folder.join("examples/hangs"));
        // Its own reports would fill the output.
        command
            .arg(name)
            .env("MP_STALL", "off")
            .envs(environment.iter().copied())
            .stderr(Stdio::null())
            .stdout(Stdio::null());
        Self(command.spawn().expect("the example `hangs`, which `cargo test` builds"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn mp(arguments: &[&str]) -> (String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_mp")).args(arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (text, output.status.code())
}

const CANT_END: &str = "can't end by itself.";

/// Checks that the wait in `part`, such as `rank-0: Queue::put of`, ends with the place of such a call.
fn check_place(part: &str, text: &str) {
    let Some((before, _)) = part.split_once(" of ").filter(|_| !part.contains(" is ")) else { return };
    let method = before.split([' ', ':']).next_back().unwrap();
    let line = text.lines().find(|line| line.contains(part)).unwrap();
    let (_, place) = line.rsplit_once('[').unwrap_or_else(|| panic!("{line:?} has no place"));
    let (file, number) = place.trim_end_matches(']').rsplit_once(':').unwrap();
    let source = include_str!("../examples/hangs.rs");
    let call = source.lines().nth(number.parse::<usize>().unwrap() - 1).unwrap();
    assert!(file.ends_with("mp-cli/examples/hangs.rs"), "{line}");
    // `mp::spawn` joins what it starts.
    let calls = [format!(".{method}()"), format!(".{method}(number)"), "mp::spawn(".to_owned()];
    assert!(calls.iter().any(|name| call.contains(name)), "{line} is not in {call:?}");
}

/// Asks until the output has all parts, and the exit code that belongs to them.
#[track_caller]
fn why(name: &str, parts: &[&str]) {
    let program = Program::start(name);
    let code = if parts.contains(&CANT_END) { 3 } else { 0 };
    let until = Instant::now() + DEADLINE;
    loop {
        let (text, got) = mp(&["why", &program.pid()]);
        let missing = parts.iter().find(|part| !text.contains(*part));
        if missing.is_none() && got == Some(code) {
            parts.iter().for_each(|part| check_place(part, &text));
            return;
        }
        assert!(Instant::now() < until, "{name}, {got:?}: {missing:?} is not in this:\n{text}");
        std::thread::sleep(Duration::from_millis(20)); // sleep: between two looks at what another process did
    }
}

#[test]
fn join_before_results_are_taken_is_explained() {
    why("join", &["thread main: join of", "rank-0: Queue::put of queue \"results\" (#0, 64/64)", CANT_END]);
}

#[test]
fn queue_that_is_never_closed_is_explained() {
    why("close", &["rank-1: Queue::get of queue \"jobs\" (#0, 0/8)", "close()", CANT_END]);
}

#[test]
fn wait_for_a_killed_producer_is_explained() {
    why("killed", &["Queue::get of queue \"results\"", "logger: Event::wait of event \"stop\"", CANT_END]);
}

#[test]
fn cycle_of_locks_is_explained() {
    why("locks", &["lock of lock \"weights\"", "lock of lock \"stats\"", CANT_END]);
}

#[test]
fn stopped_owner_of_a_lock_is_named() {
    why(
        "stopped",
        &["thread main: lock of lock \"weights\"", "rank-0: is stopped by a signal or a debugger"],
    );
}

#[test]
fn barrier_with_too_many_parties_is_explained() {
    why("barrier", &["rank-1: Barrier::wait of barrier \"epoch\"", "more parties", CANT_END]);
}

#[test]
fn permit_that_is_kept_is_explained() {
    why("permit", &["rank-0: Semaphore::acquire of semaphore \"slots\"", "Was a permit kept?", CANT_END]);
}

#[test]
fn worker_that_computes_is_no_hang() {
    why("computes", &["thread main: join of", ": is in no call of multiproc that waits"]);
}

#[test]
fn ls_and_show_list_a_program() {
    let program = Program::start("join");
    mp_harness::eventually("`show` lists the queue and its waiting process", || {
        let (text, _) = mp(&["show", &program.pid()]);
        text.contains("results") && text.contains("64/64") && text.contains("Queue::put #0")
    });
    let (text, code) = mp(&["ls"]);
    assert!(code == Some(0) && text.contains(&program.pid()) && text.contains("hangs join"), "{text}");
}

#[test]
fn file_of_record_is_shown_after_the_end() {
    let folder = std::env::temp_dir().join(format!("mp-record-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("hang.json");
    let path = file.to_str().unwrap();
    let program = Program::start("barrier");
    mp_harness::eventually("the program has its barrier", || {
        let (_, code) = mp(&["record", path, "--program", &program.pid()]);
        code == Some(0) && mp(&["show", path]).0.contains("epoch")
    });
    drop(program);
    let (text, code) = mp(&["show", path]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(code == Some(0) && text.contains("hangs barrier"), "{text}");
}

/// A program with the strategy `file_system` is killed with all its processes.
#[test]
fn gc_removes_files_of_killed_programs() {
    let folder = std::env::temp_dir().join(format!("mp-gc-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let directory = folder.to_str().unwrap();
    let program = Program::start_with("files", &[("MP_SHARING_DIRECTORY", directory)]);
    let files = || std::fs::read_dir(&folder).unwrap().flatten().map(|user| std::fs::read_dir(user.path()));
    let count = || files().flatten().flatten().count();
    mp_harness::eventually("the program has a file", || count() > 0);
    let gc = |more: &[&str]| mp(&[&["gc", "--directory", directory], more].concat());
    assert!(gc(&[]).0.contains("no crashed program"), "while it lives");
    drop(program);
    let (text, code) = gc(&["--dry-run"]);
    assert!(code == Some(0) && text.contains("would be removed") && count() > 0, "{text}");
    let (text, code) = gc(&[]);
    assert!(code == Some(0) && text.contains(" removed"), "{text}");
    assert_eq!(count(), 0);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn unknown_targets_are_errors_with_advice() {
    for (target, part) in [("4194304", "there is no process"), ("1", "`mp ls`"), ("no-such", "`mp ls`")] {
        let (text, code) = mp(&["why", target]);
        assert!(code == Some(1) && text.starts_with("mp: ") && text.contains(part), "{target}: {text}");
    }
    assert_eq!(mp(&["whx"]).1, Some(2));
}
