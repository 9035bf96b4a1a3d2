//! Step `static`: processes of programs that are linked statically (static-pie, with glibc).

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::session::{Outcome, Session};

/// Tests of mp-spawn that cover every way to start workers.
const TESTS: [&str; 6] = ["outcomes", "crashes", "process", "forkserver", "preload", "launching"];

pub(crate) fn run(session: &mut Session) -> Outcome {
    let Some(target) = target() else {
        return Outcome::Skipped("the compiler does not make programs for Linux with glibc".to_owned());
    };
    if !has_static_libc() {
        return Outcome::Skipped("no static C library here: apt install libc6-dev".to_owned());
    }
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let flags = format!("{flags} -C target-feature=+crt-static -C relocation-model=pie");
    let folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    // With an explicit target, the flags don't apply to proc macros, which can't be static.
    let mut command = session.cargo(&["test", "--no-fail-fast", "-p", "mp-spawn", "--target", &target]);
    command.args(TESTS.iter().flat_map(|test| ["--test", test]));
    let ran =
        session.run(command.env("RUSTFLAGS", flags.trim()).env("CARGO_TARGET_DIR", folder.join("static")));
    if ran.ok && ran.tally.passed == 0 {
        session.fail("no test ran".to_owned());
    }
    session.outcome()
}

/// Returns the host platform if it has glibc.
fn target() -> Option<String> {
    let output = Command::new("rustc").arg("-vV").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "))?;
    host.ends_with("-linux-gnu").then(|| host.to_owned())
}

fn has_static_libc() -> bool {
    let answer = Command::new("cc").arg("-print-file-name=libc.a").stderr(Stdio::null()).output();
    // A bare name means that the file was not found.
    answer.is_ok_and(|answer| String::from_utf8_lossy(&answer.stdout).trim().contains('/'))
}
