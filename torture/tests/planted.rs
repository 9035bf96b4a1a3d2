//! The torture finds what it is there for: bugs that somebody could have made, planted in copies of the code that exist in
//! this build alone (feature `inject`).

use std::process::{Command, Output};

/// The torture with a bug, until it has found it, at most for so long.
fn torture(bug: &str, seconds: u64) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_mp-torture"))
        .args([format!("--seconds={seconds}"), "--seed=5".to_owned(), format!("--env=MP_PLANTED={bug}")])
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{text}");
    (output, text)
}

/// It is found, and what is printed says what somebody needs who looks for it.
fn is_found(bug: &str) {
    let (output, text) = torture(bug, 120);
    assert_eq!(output.status.code(), Some(1), "{bug} was not found");
    for needed in ["FOUND in round", "seed 5", "operations:", "worker 0, pid"] {
        assert!(text.contains(needed), "it does not say `{needed}`");
    }
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let (output, text) = torture("", 4);
    assert!(output.status.success() && !text.contains("FOUND"), "{text}");
}

#[test]
fn a_skipped_sweep_is_found() {
    is_found("skipped_sweep");
}

#[test]
fn a_lost_wake_up_is_found() {
    is_found("lost_wake_up");
}

#[test]
fn a_missing_fence_is_found() {
    is_found("missing_fence");
}
