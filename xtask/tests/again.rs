//! Tests that fail while all tests of their program run. If `MP_RUN_AGAIN` is set, `xtask leaks` runs each of
//! them a second time by itself. The tested program is this program, whose tests `subject_…` fail as the
//! environment specifies.

use std::fs::OpenOptions;
use std::process::{Command, Stdio};

/// Variable with the folder in which a test leaves a file at its first run.
const RUNS: &str = "MP_TEST_RUNS";
/// Variable with the behaviour of the tests, as `NAME=WORD` separated by commas. A test with `always` fails
/// at each run, and with `once` at its first run. A test with `leaves` leaves a file at each run. With
/// `once and leaves`, it fails and leaves a file at its first run. With `once then foreign`, it fails at its
/// first run, and at other runs leaves a file in `/dev/shm`, as another program may do meanwhile. With
/// `killed`, it kills the program.
const FAIL: &str = "MP_TEST_FAIL";

/// Variable with the path of a file that could belong to any program.
const FOREIGN: &str = "MP_TEST_FOREIGN";

/// Body of a test: fails as the environment specifies.
fn subject(name: &str) {
    let (Ok(folder), Ok(fail)) = (std::env::var(RUNS), std::env::var(FAIL)) else { return };
    let first = OpenOptions::new().write(true).create_new(true).open(format!("{folder}/{name}")).is_ok();
    for (subject, when) in fail.split(',').filter_map(|part| part.split_once('=')) {
        let once = first && when.starts_with("once");
        if subject == name && (when == "leaves" || once && when.ends_with("leaves")) {
            std::fs::write(std::env::temp_dir().join(format!("left-by-{name}")), "").unwrap();
        }
        if subject == name && !first && when == "once then foreign" {
            std::fs::write(std::env::var(FOREIGN).unwrap(), "").unwrap();
        }
        let fails = subject == name && (when == "always" || once);
        assert!(!fails, "{name} had bad luck");
        if subject == name && when == "killed" {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
    }
}

macro_rules! subjects {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            subject(stringify!($name));
        })*
    };
}
subjects!(subject_a subject_b subject_c subject_d);

fn foreign() -> String {
    format!("/dev/shm/test-of-another-program-of-{}", std::process::id())
}

/// Runs the tests of this program by `xtask leaks`. Returns `true` if the run passed, and its output.
fn run(again: bool, fail: &str) -> (bool, String) {
    let folder = std::env::temp_dir().join(format!("runs-{again}-{fail}"));
    std::fs::create_dir(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("leaks").arg(std::env::current_exe().unwrap()).arg("subject_");
    command.env(RUNS, &folder).env(FAIL, fail).env_remove("MP_RUN_AGAIN").stdin(Stdio::null());
    command.env(FOREIGN, foreign());
    if again {
        command.env("MP_RUN_AGAIN", "1");
    }
    let output = command.output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

const PASSED: &str = "passed when run again by itself: ";

#[test]
fn test_failing_once_passes_on_rerun() {
    let (green, text) = run(true, "subject_b=once");
    assert!(green && text.contains(&format!("{PASSED}subject_b\n")), "{text}");
    assert!(text.contains("3 passed; 1 failed") && text.contains("subject_b had bad luck"), "{text}");
    assert_eq!(text.matches(PASSED).count(), 1, "{text}");
}

#[test]
fn failure_without_the_rerun_option_fails_the_run() {
    let (green, text) = run(false, "subject_b=once");
    assert!(!green && !text.contains(PASSED), "{text}");
}

#[test]
fn test_failing_each_time_fails_the_run() {
    let (green, text) = run(true, "subject_a=always,subject_c=once");
    assert!(!green && text.contains(&format!("{PASSED}subject_c\n")), "{text}");
    assert!(!text.contains(&format!("{PASSED}subject_a")), "{text}");
}

#[test]
fn leak_of_another_test_fails_despite_a_rerun() {
    let (green, text) = run(true, "subject_a=leaves,subject_b=once");
    assert!(text.contains(&format!("{PASSED}subject_b\n")), "{text}");
    assert!(!green, "{text}");
}

#[test]
fn leak_of_an_excused_test_fails_the_run() {
    let (green, text) = run(true, "subject_b=once and leaves");
    assert!(text.contains(&format!("{PASSED}subject_b\n")), "{text}");
    assert!(!green, "{text}");
}

#[test]
fn file_of_another_program_is_no_leak_of_a_rerun() {
    let (green, text) = run(true, "subject_c=once then foreign");
    std::fs::remove_file(foreign()).unwrap();
    assert!(green && text.contains(&format!("{PASSED}subject_c\n")), "{text}");
}

#[test]
fn many_failures_are_not_rerun() {
    let (green, text) = run(true, "subject_a=once,subject_b=once,subject_c=once,subject_d=once");
    assert!(!green && !text.contains(PASSED), "{text}");
}

#[test]
fn killed_program_fails_the_run() {
    let (green, text) = run(true, "subject_d=killed");
    assert!(!green && !text.contains(PASSED), "{text}");
}
