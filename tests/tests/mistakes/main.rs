//! Typical mistakes of new users that the compiler accepts, and the library's errors for them. Each error
//! names the request, the finding and the remedy. docs/guide/mistakes.md lists them with the mistakes that
//! the compiler rejects (`tests/compile_fail`).

mod memory;
mod processes;
mod queues;
mod sockets;
mod sync;

use std::fmt::Display;

/// Checks that the error contains each of these parts: the problem and the remedy.
#[track_caller]
fn says(answer: impl Display, parts: &[&str]) {
    let answer = answer.to_string();
    println!("{answer}");
    for part in parts {
        assert!(answer.contains(part), "{part:?} is not in: {answer}");
    }
}
