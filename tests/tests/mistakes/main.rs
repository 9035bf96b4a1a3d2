//! Typical mistakes of new users that the compiler lets pass, and what the library answers: each answer says what was asked, what
//! was found, and what to do. docs/guide/mistakes.md lists them, with those that the compiler refuses
//! (`tests/compile_fail`).

mod memory;
mod processes;
mod queues;
mod sockets;
mod sync;

use std::fmt::Display;

/// The answer has each of these parts: what is wrong, and what to do.
#[track_caller]
fn says(answer: impl Display, parts: &[&str]) {
    let answer = answer.to_string();
    println!("{answer}");
    for part in parts {
        assert!(answer.contains(part), "{part:?} is not in: {answer}");
    }
}
