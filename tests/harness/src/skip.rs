//! Reports of tests that can't run on a machine. This file has no dependencies, because the compile-fail
//! tests include it by its path.

use std::fmt::Display;
use std::io::Write as _;
use std::panic::Location;

/// Variable with the path of the file that [`skip`] appends to. `cargo xtask leaks` sets it.
const SKIPS: &str = "MP_SKIPS";

/// Reports that the calling test, or a part of it, can't run on this machine. `cargo xtask ci` counts the
/// test as skipped, and `--strict` as failed.
///
/// # Panics
/// If the report can't be written.
#[track_caller]
pub fn skip(reason: impl Display) {
    println!("SKIPPED: {reason}");
    let Some(path) = std::env::var_os(SKIPS) else { return };
    let line = format!("{}: {reason}\n", Location::caller());
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the report of a skipped test");
}
