//! Tests that the torture detects mutations (planted bugs). The mutations exist only in the copy of the
//! sources that `cargo xtask mutate` makes, and that command runs these tests.

use std::path::PathBuf;
use std::process::{Command, Output};

/// Processes that have the bug.
#[derive(Clone, Copy)]
enum Where {
    /// Only the workers. The program that starts and kills workers is correct.
    Workers,
    /// Workers and the program that starts them. Used for bugs in the code by which a parent handles its dead
    /// workers, which workers hardly ever run.
    Everywhere,
}

/// Texts of findings about messages that differ from the put messages. They include errors of a queue about a
/// message that was put twice: that the message is in another place, or that its memory was reused.
const WRONG: [&str; 5] =
    ["Torn: ", "Duplicated: ", "Lost: ", "which is not in it", "a message is shorter than its type"];

/// Folder for temporary files. Dropping the value removes the folder and its contents.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mp-planted-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder can be made");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the torture with a bug until the first finding, for at most `seconds`. Uses the kind of structure
/// `only`, or all kinds. Returns the output.
fn torture(bug: &str, place: Where, seconds: u64, only: Option<&str>) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mp-torture"));
    command.args([format!("--seconds={seconds}"), "--seed=5".to_owned()]);
    if let Some(kind) = only {
        command.args(["--only", kind, "--processes=8"]);
    }
    match place {
        Where::Workers => command.arg(format!("--env=MP_MUTANT={bug}")),
        Where::Everywhere => command.env("MP_MUTANT", bug),
    };
    // A torture with a finding exits at once, and its files remain for analysis.
    let folder = Folder::new(bug);
    let output = command.env("TMPDIR", &folder.0).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    (output, text)
}

/// Checks that the torture reports the bug as one of the violations `as_what`, and that the output contains
/// the information for an analysis.
fn is_found(bug: &str, place: Where, as_what: &[&str]) {
    is_found_among(None, bug, place, as_what);
}

/// Checks like [`is_found`], with one kind of structure. Used for code that rarely runs if all kinds of
/// structures are used.
fn is_found_in(kind: &str, bug: &str, place: Where, as_what: &[&str]) {
    is_found_among(Some(kind), bug, place, as_what);
}

fn is_found_among(only: Option<&str>, bug: &str, place: Where, as_what: &[&str]) {
    let (output, text) = torture(bug, place, 120, only);
    assert_eq!(output.status.code(), Some(1), "{bug} was not found");
    for needed in ["FOUND in round", "seed 5", "operations:", "worker 0, pid"] {
        assert!(text.contains(needed), "`{needed}` is missing in the output");
    }
    let found = text.lines().find(|line| line.starts_with("FOUND in round")).unwrap_or_default();
    let (_, finding) = found.split_once("seed 5: ").unwrap_or_default();
    assert!(as_what.iter().any(|what| finding.contains(what)), "{finding}: none of {as_what:?}");
    // The output has the state of each group's structure, which names its block of memory, and the group's
    // ledger.
    let groups: Vec<&str> = text.lines().filter(|line| line.contains("; Account {")).collect();
    let with_memory = |group: &&str| group.contains("(") && group.contains(" block ");
    assert!(only.is_some() || groups.iter().any(with_memory), "{groups:?}");
    assert!(
        groups.iter().all(|group| !group.contains(": ; Account")),
        "a group without its state: {groups:?}"
    );
}

#[test]
fn torture_of_the_unmodified_library_finds_nothing() {
    let (output, text) = torture("", Where::Everywhere, 4, None);
    assert!(output.status.success() && !text.contains("FOUND"), "{text}");
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_a_skipped_recovery() {
    // A waiter for a dead process's resources waits forever.
    is_found("planted.skipped-recovery", Where::Everywhere, &["Leaked: ", "Hang: "]);
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_a_lost_wake_up() {
    is_found("planted.lost-wake-up", Where::Workers, &["Hang: "]);
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_a_missing_fence() {
    is_found("planted.missing-fence", Where::Workers, &[&WRONG[..], &["Leaked: ", "Hang: "]].concat());
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_future_forgetting_a_taken_message() {
    is_found("planted.forgotten-poll", Where::Workers, &WRONG);
}

/// With the bug, the next message in the same compartment gets a wrong file, or too few files.
#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_descriptor_left_after_its_message() {
    is_found("locker.empty.descriptors-kept", Where::Workers, &["Torn: ", "Leaked: ", "Failed: "]);
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_descriptor_of_another_message() {
    // The process that should have received the packet may detect the error first.
    let missing = "of the locker of descriptors is missing";
    is_found("locker.look.number-not-compared", Where::Workers, &["Torn: ", missing]);
}

/// The bug is in the server process of the manager, which isn't a worker. So it is planted everywhere.
#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_answer_to_another_caller() {
    is_found_in("objects", "planted.answer-to-another", Where::Everywhere, &["Torn: ", "Hang: ", "Failed: "]);
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_object_freed_with_its_caller() {
    is_found_in("objects", "planted.object-freed-with-its-caller", Where::Everywhere, &["Failed: "]);
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_a_false_deadlock() {
    is_found("lock-cycle.any-chain-closed", Where::Workers, &["Torn: "]);
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_an_undetected_deadlock() {
    is_found("deadlock.not-detected", Where::Workers, &["Hang: "]);
}

/// With the bug, a resumed trainer continues after batches that it never received.
#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_loader_state_with_prefetched_batches() {
    is_found_in("loader", "loader.state.counts-prefetched", Where::Workers, &["Torn: ", "Lost: "]);
}

/// With the bug, a batch depends on the worker that made it.
#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_batches_that_depend_on_their_worker() {
    is_found_in("loader", "loader.rng.by-worker", Where::Workers, &["Torn: "]);
}

/// With the bug, a worker continues with a reader that is at another position.
#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_stream_reader_at_wrong_position() {
    is_found_in("loader", "stream.open.wherever-it-is", Where::Workers, &["Torn: ", "Lost: ", "Failed: "]);
}

#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_lane_position_of_another_reply() {
    // The loader itself reports that a shard has changed.
    is_found_in("loader", "stream.place.of-another-reply", Where::Workers, &["Torn: ", "Lost: ", "Failed: "]);
}

/// The simulated GPU, which `cargo build -p mp-cuda-sim` builds, detects the conflicting writes.
#[test]
#[ignore = "needs planted mistakes: cargo xtask mutate"]
fn torture_finds_reused_gpu_memory_of_killed_writer() {
    is_found_in("cuda", "cuda.given.open-use-ignored", Where::Workers, &["Torn: "]);
}
