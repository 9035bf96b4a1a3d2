//! `mp` for programs that hang, each for another reason: `examples/hangs.rs`.
#![cfg(not(miri))]

mod common;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Program, mp};
use mp_harness::DEADLINE;

const CANT_END: &str = "can't end by itself.";

/// Checks that the wait in `part`, such as `rank-0: Queue::put of`, ends with the location of a call of that
/// method.
fn check_place(part: &str, text: &str) {
    let Some((before, _)) = part.split_once(" of ").filter(|_| !part.contains(" is ")) else { return };
    let method = before.split([' ', ':']).next_back().unwrap();
    let line = text.lines().find(|line| line.contains(part)).unwrap();
    let (_, place) = line.rsplit_once('[').unwrap_or_else(|| panic!("{line:?} has no place"));
    let (file, number) = place.split_once(']').unwrap().0.rsplit_once(':').unwrap();
    let source = include_str!("../examples/hangs.rs");
    let call = source.lines().nth(number.parse::<usize>().unwrap() - 1).unwrap();
    assert!(file.ends_with("mp-cli/examples/hangs.rs"), "{line}");
    // `mp::spawn` joins the processes that it starts.
    let calls = [format!(".{method}()"), format!(".{method}(number)"), "mp::spawn(".to_owned()];
    assert!(calls.iter().any(|name| call.contains(name)), "{line} is not in {call:?}");
}

/// Runs `mp why`. Returns the output and exit code, the part of the output that was written first, and the
/// time until that part was written.
fn ask(pid: &str) -> (String, Option<i32>, String, Duration) {
    let begun = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_mp"));
    command.args(["why", pid]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut bytes = vec![0; 1 << 16];
    let len = child.stdout.as_mut().unwrap().read(&mut bytes).unwrap();
    let took = begun.elapsed();
    let first = String::from_utf8(bytes[..len].to_vec()).unwrap();
    let output = child.wait_with_output().unwrap();
    let rest = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (first.clone() + &rest, output.status.code(), first, took)
}

/// Maximum time until the first output of an unoptimized build on a busy machine. A release build needs 100
/// ms.
const FIRST_OUTPUT: Duration = Duration::from_secs(1);

/// Runs `mp why` until the output has all parts and the expected exit code. Checks that the chain was written
/// in time, before the proof.
#[track_caller]
fn why(name: &str, parts: &[&str]) {
    let program = Program::start(name, &[]);
    let code = if parts.contains(&CANT_END) { 3 } else { 0 };
    let until = Instant::now() + DEADLINE;
    loop {
        let (text, got, first, took) = ask(&program.pid());
        let missing = parts.iter().find(|part| !text.contains(*part));
        if missing.is_none() && got == Some(code) && took < FIRST_OUTPUT {
            assert!(first.contains(parts[0]) && !first.contains(CANT_END), "{first}");
            parts.iter().for_each(|part| check_place(part, &text));
            return;
        }
        assert!(Instant::now() < until, "{name}, {got:?}: {missing:?} is not in this ({took:?}):\n{text}");
        std::thread::sleep(Duration::from_millis(20)); // sleep: between two checks of another process
    }
}

/// Runs a program of `examples/hangs.rs` to its end, and checks that its output contains `part`.
#[track_caller]
fn ends(name: &str, part: &str) {
    let mut program = Program::start(name, &[]);
    let status = program.end();
    let mut text = String::new();
    program.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(status.success() && text.contains(part), "{name}, {status}: {part:?} is not in this:\n{text}");
}

#[test]
fn why_explains_a_join_before_results_are_taken() {
    why(
        "join",
        &[
            "thread main: join of",
            "rank-0: Queue::put of queue \"results\" (#0, 64/64)",
            "could take from it: ",
            CANT_END,
        ],
    );
}

#[test]
fn why_explains_a_queue_that_is_never_closed() {
    // There are more workers than a wait in shared memory can name.
    why("close", &["rank-8: Queue::get of queue \"jobs\" (#0, 0/8)", "close()", CANT_END]);
}

#[test]
fn why_explains_a_wait_for_a_killed_producer() {
    why(
        "killed",
        &[
            "Queue::get of queue \"results\"",
            "logger: Event::wait of event \"stop\"",
            "could set it: ",
            "ago: maker (pid",
            CANT_END,
        ],
    );
}

#[test]
fn get_from_a_dead_producer_returns_an_error() {
    ends("deserted", "no other process has it any more: the last process that had it");
}

#[test]
fn lock_of_a_killed_owner_returns_an_error() {
    ends("owner", "OwnerDied: ");
}

#[test]
fn killed_worker_of_a_pool_is_replaced() {
    ends("worker", "was replaced: true");
}

#[test]
fn killed_workers_of_a_loader_cost_no_batch() {
    ends("loader", "sum 4950");
}

#[test]
fn why_names_the_endless_worker_of_a_loader() {
    let parts = [
        "thread main: a wait for tasks",
        "[mp-cli/examples/hangs.rs:",
        ": is in no call of multiproc that waits",
    ];
    why("fetch", &parts);
}

#[test]
fn deleter_that_takes_a_held_lock_gets_an_error() {
    ends("deleter", "this thread holds the lock already");
}

#[test]
fn why_names_a_lock_held_over_starmap() {
    why("starmap", &["thread main: a wait for tasks", "pool-worker-1: lock of lock \"limbo\"", "holds it: "]);
}

#[test]
fn why_explains_permits_kept_by_waiting_workers() {
    why(
        "memory",
        &[
            "rank-1: Semaphore::acquire of semaphore \"memory\"",
            "rank-1 (in Semaphore::acquire)",
            "Was a permit kept?",
            CANT_END,
        ],
    );
}

#[test]
fn allocation_without_memory_returns_an_error() {
    ends("exhausted", "out of shared memory");
}

#[test]
fn split_tensor_sent_to_workers_arrives_whole() {
    ends("split", "40000 elements");
}

#[test]
fn why_explains_a_cycle_of_locks() {
    why("locks", &["lock of lock \"weights\"", "lock of lock \"stats\"", CANT_END]);
}

#[test]
fn why_names_the_stopped_owner_of_a_lock() {
    why(
        "stopped",
        &["thread main: lock of lock \"weights\"", "rank-0: is stopped by a signal or a debugger"],
    );
}

#[test]
fn why_explains_a_barrier_with_too_many_parties() {
    why("barrier", &["rank-1: Barrier::wait of barrier \"epoch\"", "more parties", CANT_END]);
}

#[test]
fn why_explains_a_permit_that_is_kept() {
    why("permit", &["rank-0: Semaphore::acquire of semaphore \"slots\"", "Was a permit kept?", CANT_END]);
}

#[test]
fn why_reports_no_hang_for_a_computing_worker() {
    why("computes", &["thread main: join of", ": is in no call of multiproc that waits"]);
}

#[test]
fn ls_and_show_list_a_program() {
    let program = Program::start("join", &[]);
    mp_harness::eventually("`show` lists the queue and its waiting process", || {
        let (text, _) = mp(&["show", &program.pid()]);
        text.contains("results") && text.contains("64/64") && text.contains("Queue::put \"results\" (#0)")
    });
    let (text, code) = mp(&["ls"]);
    assert!(code == Some(0) && text.contains(&program.pid()) && text.contains("hangs join"), "{text}");
}

#[test]
fn record_file_is_shown_after_the_program_has_ended() {
    let folder = std::env::temp_dir().join(format!("mp-record-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("hang.json");
    let path = file.to_str().unwrap();
    let program = Program::start("barrier", &[]);
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
    let program = Program::start("files", &[("MP_SHARING_DIRECTORY", directory)]);
    let files = || std::fs::read_dir(&folder).unwrap().flatten().map(|user| std::fs::read_dir(user.path()));
    let count = || files().flatten().flatten().count();
    mp_harness::eventually("the program has a file", || count() > 0);
    let gc = |more: &[&str]| mp(&[&["gc", "--directory", directory], more].concat());
    assert!(gc(&[]).0.contains("no crashed program"), "the program still runs");
    drop(program);
    let (text, code) = gc(&["--dry-run"]);
    assert!(code == Some(0) && text.contains("would be removed") && count() > 0, "{text}");
    let (text, code) = gc(&[]);
    assert!(code == Some(0) && text.contains(" removed"), "{text}");
    assert_eq!(count(), 0);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The next program removes the files of the killed program, so no other clean-up is needed.
#[test]
fn files_of_a_killed_program_block_no_next_program() {
    let folder = std::env::temp_dir().join(format!("mp-next-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let start = || Program::start("files", &[("MP_SHARING_DIRECTORY", folder.to_str().unwrap())]);
    let files = || {
        let users = std::fs::read_dir(&folder).unwrap().flatten();
        let files = users.flat_map(|user| std::fs::read_dir(user.path()).unwrap().flatten());
        files.map(|file| file.path()).collect::<BTreeSet<_>>()
    };
    let program = start();
    mp_harness::eventually("the program has a file", || !files().is_empty());
    drop(program);
    let left = files();
    assert!(!left.is_empty());
    let next = start();
    mp_harness::eventually("the next program has a file", || {
        let now = files();
        !now.is_empty() && now.is_disjoint(&left)
    });
    drop(next);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn unknown_targets_of_why_are_errors_with_advice() {
    for (target, part) in [("4194304", "there is no process"), ("1", "`mp ls`"), ("no-such", "`mp ls`")] {
        let (text, code) = mp(&["why", target]);
        assert!(code == Some(1) && text.starts_with("mp: ") && text.contains(part), "{target}: {text}");
    }
    assert_eq!(mp(&["whx"]).1, Some(2));
}
