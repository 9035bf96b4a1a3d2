//! Reports about test programs that leak: the program fails, and the report names the leak and the test. The
//! tested program is this program, whose test `helper_leaks_a_resource` leaks as the environment specifies.

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::process::{Command, Stdio};

use mp::{Queue, SharedMemory, Tensor};

/// Variable with the resource that a run leaks. The tests that check the report set it.
const WHAT: &str = "MP_LEAVE";

/// Leaks the resource that the environment names.
#[test]
#[allow(clippy::zombie_processes, reason = "it is to be left")]
fn helper_leaks_a_resource() {
    match std::env::var(WHAT).unwrap_or_default().as_str() {
        "descriptor" => std::mem::forget(File::open("/dev/zero").unwrap()),
        "kept descriptor" => {
            // A descriptor that the library keeps must not hide a leaked descriptor.
            drop(mp::Process::builder().spawn(|(): ()| (), ()).unwrap().join());
            std::mem::forget(std::io::pipe().unwrap());
        }
        "shared memory" => std::mem::forget(SharedMemory::new(64).unwrap()),
        "named file" => drop(File::create(named()).unwrap()),
        "strategy" => {
            let folder = format!("/dev/shm/mp-{}", rustix::process::geteuid().as_raw());
            let file = format!("{folder}/mp-leak-{}", std::process::id());
            // Created like the library's files. Other programs of this user do not remove a file with such a
            // name, but one of them may remove the folder while it is empty.
            while let Err(e) = File::create(&file) {
                assert_eq!(e.kind(), std::io::ErrorKind::NotFound, "{file}: {e}");
                _ = fs::DirBuilder::new().mode(0o700).create(&folder);
            }
        }
        "temporary file" => drop(File::create(std::env::temp_dir().join("left-over")).unwrap()),
        "block" => std::mem::forget(Tensor::<u8>::zeros([100_000]).unwrap()),
        "message" => {
            let queue = Queue::bounded(4).unwrap();
            queue.put("a text that is too long for a slot".to_owned()).unwrap();
            std::mem::forget(queue);
        }
        "process" => _ = Command::new("sleep").arg("321").spawn().unwrap(),
        "orphan" => {
            // The shell ends before the test. The child has closed descriptors, and its own session.
            let script = "setsid sleep 322 > /dev/null 2>&1 < /dev/null &";
            assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
        }
        "orphan program" => {
            // Starts this program again. It begins when its parent has ended, and outlives this process. (In
            // a background process of a shell, `$$` is still the shell's id.)
            let script =
                "(while kill -0 $$ || kill -0 $1; do sleep 0.01; done; exec \"$0\" \"$2\" --exact) &";
            let mut shell = Command::new("sh");
            shell
                .args(["-c", script])
                .arg(std::env::current_exe().unwrap())
                .arg(std::process::id().to_string());
            shell.arg("helper_leaks_a_resource").env(WHAT, "block");
            let silent = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            assert!(silent.status().unwrap().success());
        }
        "skip" => {
            mp_harness::skip("first reason");
            mp_harness::skip("second reason");
        }
        other => {
            let Some(path) = other.strip_prefix("now and then: ") else { return };
            let times = fs::read_to_string(path).unwrap_or_default() + "x";
            fs::write(path, &times).unwrap();
            if times.len() <= 2 {
                drop(File::create(now_and_then(path, times.len())).unwrap());
            }
        }
    }
}

/// Returns the path of the file that `helper_leaks_a_resource` leaves at its n-th run. The name does not
/// contain the process id.
fn now_and_then(path: &str, time: usize) -> String {
    format!("/dev/shm/mp-now-{}-{time}", path.rsplit('/').next().unwrap())
}

#[test]
fn helper_leaks_nothing() {
    let queue = Queue::bounded(4).unwrap();
    queue.put("a text that is too long for a slot".to_owned()).unwrap();
    assert!(queue.get().unwrap().is_some());
    drop(File::open("/dev/zero").unwrap());
}

fn named() -> String {
    format!("/dev/shm/mp-left-{}", std::process::id())
}

/// Runs the tests `helper_leaks_…` by `xtask leaks`. Returns `true` if the run passed, and its output.
fn run(what: &str) -> (bool, String) {
    run_for("1", what)
}

/// Does the same as `run`, with another number of seconds in which leaks may disappear.
fn run_for(seconds: &str, what: &str) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("leaks").arg(std::env::current_exe().unwrap()).arg("helper_leaks_");
    let command = command.env(WHAT, what).env("MP_LEAKS_SECONDS", seconds).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("test result: ok. 2 passed"), "{text}");
    (output.status.success(), text)
}

/// Checks that the run fails, and that the line with the name of the test contains each of these words.
/// Returns the output.
#[track_caller]
fn red(what: &str, words: &[&str]) -> String {
    let (green, text) = run(what);
    assert!(!green, "{what} was not found: {text}");
    let blamed = "LEAK in test `helper_leaks_a_resource`: ";
    let said = |line: &str| line.starts_with(blamed) && words.iter().all(|word| line.contains(word));
    assert!(text.lines().any(said), "{what}: no line says {words:?}: {text}");
    assert!(!text.contains("`helper_leaks_nothing`:"), "{text}");
    text
}

#[test]
fn leak_check_passes_a_program_without_leaks() {
    let (green, text) = run("nothing");
    assert!(green && !text.contains("LEAK"), "{text}");
}

#[test]
fn skipped_tests_are_reported_with_place_and_reason() {
    let (green, text) = run("skip");
    let skips: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("skipped test: ")).collect();
    assert!(green && skips.len() == 2, "{text}");
    assert!(skips[0].contains("tests/leaks.rs:") && skips[0].ends_with(": first reason"), "{text}");
}

#[test]
fn leak_check_finds_an_open_descriptor() {
    red("descriptor", &["descriptor", "/dev/zero"]);
}

#[test]
fn leak_check_finds_descriptor_besides_the_librarys() {
    let text = red("kept descriptor", &["descriptor", "pipe:"]);
    // Both ends of one pipe, without the library's descriptors: twice, since the test is run again.
    assert_eq!(text.matches("descriptor ").count(), 4, "{text}");
}

#[test]
fn leak_check_finds_named_shared_memory() {
    let text = red("shared memory", &["file /dev/shm/mp_"]);
    remove(&text);
}

#[test]
fn leak_check_finds_files_with_the_process_name() {
    remove(&red("named file", &["file /dev/shm/mp-left-"]));
    remove(&red("strategy", &["file /dev/shm/mp-", "/mp-leak-"]));
}

/// Removes files of the leaking test below /dev/shm.
fn remove(text: &str) {
    let files = text.lines().filter_map(|line| line.split_once("file /dev/shm/"));
    files.for_each(|(_, name)| _ = fs::remove_file(format!("/dev/shm/{name}")));
    // Fails if the folder has another program's file.
    _ = fs::remove_dir(format!("/dev/shm/mp-{}", rustix::process::geteuid().as_raw()));
}

/// A file is left in the run of all tests, and in the first run of the test by itself. Files of other
/// programs may appear at both times by chance.
#[test]
fn leak_check_accepts_files_that_appear_by_chance() {
    let path = std::env::temp_dir().join(format!("p{}", std::process::id()));
    let path = path.to_str().unwrap();
    let (green, text) = run(&format!("now and then: {path}"));
    let times = fs::read_to_string(path).unwrap();
    fs::remove_file(path).unwrap();
    let left: Vec<_> = (1..4).map(|time| fs::remove_file(now_and_then(path, time)).is_ok()).collect();
    assert_eq!(left, [true, true, false]);
    assert!(times.len() > 2 && text.contains("may be another program's: no error"), "{text}");
    assert!(green && !text.contains("LEAK in test"), "{text}");
}

#[test]
fn orphaned_program_reports_nothing_of_its_parent() {
    let (green, text) = run_for("60", "orphan program");
    assert!(green && !text.contains("LEAK"), "{text}");
}

#[test]
fn leak_check_finds_temporary_files() {
    red("temporary file", &["temporary file", "left-over"]);
}

#[test]
fn leak_check_finds_a_live_block() {
    red("block", &["live: 1 block of 114688 bytes"]);
}

#[test]
fn leak_check_finds_a_queued_message() {
    red("message", &["in queues or leased: 1 message"]);
}

#[test]
fn leak_check_finds_and_ends_a_leaked_process() {
    let text = red("process", &["process", "(sleep) lives: sleep 321"]);
    assert!(gone(&text), "{text}");
}

#[test]
fn leak_check_finds_and_ends_orphan_in_own_session() {
    let text = red("orphan", &["process", "(sleep) lives: sleep 322"]);
    assert!(gone(&text), "{text}");
}

/// Returns `true` if all processes that the report names have ended.
fn gone(text: &str) -> bool {
    let named =
        text.lines().filter_map(|line| line.split_once("process ")?.1.split(' ').next()?.parse::<u32>().ok());
    named.into_iter().all(|pid| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().is_empty())
}
