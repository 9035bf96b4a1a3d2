//! Hostile bytes for every parser: `cargo xtask fuzz`, and a short form of it as a step of `ci --long`.

use std::path::Path;
use std::process::Command;

use crate::args::Args;
use crate::session::{Outcome, Session};

/// Duration of the step, in seconds.
const SHORT: &str = "20";
const MANIFEST: &str = "tools/fuzz/Cargo.toml";
/// Limits for one input: bytes, seconds, MiB in total and in one allocation.
const LIMITS: [&str; 4] = ["-max_len=65536", "-timeout=10", "-rss_limit_mb=2048", "-malloc_limit_mb=64"];

/// Returns the command of a program of `fuzz`, which is a separate workspace. It is optimised, with debug
/// assertions.
fn fuzzer(session: &Session) -> Command {
    let mut command = session.cargo(&["run", "--quiet", "--release", "--manifest-path", MANIFEST]);
    command.args(["--bin", "mp-fuzz", "--"]);
    command
}

/// Runs the task.
pub(crate) fn run(args: &mut Args) -> Result<bool, String> {
    let mut session = Session::new();
    let mut words = Vec::new();
    let (seconds, only) = (args.value("--seconds")?, args.value("--target")?);
    for (name, value) in [("--seed", args.value("--seed")?), ("--input", args.value("--input")?)] {
        words.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    }
    args.flag("--strict");
    args.finish()?;
    let one = words.iter().any(|word| word == "--input");
    words.extend(only.iter().flat_map(|name| ["--target".to_owned(), name.clone()]));
    if one {
        return Ok(session.run(fuzzer(&session).args(words)).ok);
    }
    let seconds = seconds.as_deref().unwrap_or("60");
    let ok = session.run(fuzzer(&session).args(words).args(["--seconds", seconds])).ok;
    Ok(coverage_guided(&mut session, only.as_deref(), seconds)? && ok)
}

/// Runs the targets under libFuzzer, each for `seconds`, if a nightly compiler and cargo-fuzz are installed.
fn coverage_guided(session: &mut Session, only: Option<&str>, seconds: &str) -> Result<bool, String> {
    let mut all = named(session)?;
    let has = Command::new("cargo").args(["+nightly", "fuzz", "--version"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!(
            "libFuzzer: SKIPPED: no `cargo +nightly fuzz` here (rustup toolchain install nightly; \
             cargo install cargo-fuzz)"
        );
        return Ok(true);
    }
    let mut ok = session.run(fuzzer(session).args(["--corpora", "tools/fuzz/corpus"])).ok;
    all.retain(|name| only.is_none_or(|only| only == name));
    let seconds = seconds.parse::<u64>().map_err(|e| format!("--seconds {seconds}: {e}"))?;
    let each = (seconds / all.len().max(1) as u64).max(1);
    for name in all {
        let mut command = Command::new("cargo");
        command.args([
            "+nightly",
            "fuzz",
            "run",
            "--fuzz-dir",
            "tools/fuzz",
            "--features",
            "libfuzzer",
            &name,
            "--",
        ]);
        command.args(LIMITS).arg(format!("-max_total_time={each}"));
        ok &= session.run(&mut command).ok;
    }
    Ok(ok)
}

/// Returns the names of all targets. Each has a program for libFuzzer.
fn named(session: &Session) -> Result<Vec<String>, String> {
    let listed = fuzzer(session).arg("--list").output().map_err(|e| format!("mp-fuzz: {e}"))?;
    let names: Vec<String> = String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect();
    let lacks = |name: &&String| !Path::new("tools/fuzz/fuzz_targets").join(format!("{name}.rs")).exists();
    match names.iter().find(lacks) {
        Some(name) => {
            Err(format!("tools/fuzz/fuzz_targets/{name}.rs is missing, and its [[bin]] in {MANIFEST}"))
        }
        None => Ok(names),
    }
}

/// Runs the step of `ci --long`: each target for some seconds.
pub(crate) fn step(session: &mut Session) -> Outcome {
    session.run(fuzzer(session).args(["--seconds", SHORT]));
    session.outcome()
}
