//! The torture finds what it is there for: bugs that somebody could have made, planted in copies of the code that exist in
//! this build alone (feature `inject`).

use std::process::{Command, Output};

/// Who has the bug.
#[derive(Clone, Copy)]
enum Where {
    /// The workers; the one that starts and kills them is sound.
    Workers,
    /// The whole program. Where a bug is in what the parent does for its dead, workers have little left to do wrong.
    Everywhere,
}

/// The torture with a bug, until it has found it, at most for so long.
fn torture(bug: &str, place: Where, seconds: u64) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mp-torture"));
    command.args([format!("--seconds={seconds}"), "--seed=5".to_owned()]);
    match place {
        Where::Workers => command.arg(format!("--env=MP_PLANTED={bug}")),
        Where::Everywhere => command.env("MP_PLANTED", bug),
    };
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    (output, text)
}

/// It is found, and what is printed says what somebody needs who looks for it.
fn is_found(bug: &str, place: Where) {
    let (output, text) = torture(bug, place, 120);
    assert_eq!(output.status.code(), Some(1), "{bug} was not found");
    for needed in ["FOUND in round", "seed 5", "operations:", "worker 0, pid"] {
        assert!(text.contains(needed), "it does not say `{needed}`");
    }
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let (output, text) = torture("", Where::Everywhere, 4);
    assert!(output.status.success() && !text.contains("FOUND"), "{text}");
}

#[test]
fn a_skipped_sweep_is_found() {
    is_found("skipped_sweep", Where::Everywhere);
}

#[test]
fn a_lost_wake_up_is_found() {
    is_found("lost_wake_up", Where::Workers);
}

#[test]
fn a_missing_fence_is_found() {
    is_found("missing_fence", Where::Workers);
}

#[test]
fn a_future_that_forgets_what_it_has_taken_is_found() {
    is_found("forgotten_look", Where::Workers);
}
