//! Hostile bytes for every parser: `cargo xtask fuzz`, and a short form of it as a step of `ci --long`.

use std::process::Command;

use crate::args::Args;
use crate::session::{Outcome, Session};

/// How long the step takes, in seconds.
const SHORT: &str = "20";
const MANIFEST: &str = "fuzz/Cargo.toml";

/// A program of `fuzz`, which is a workspace of its own. Optimised, with the assertions of a debug build.
fn fuzzer(session: &Session, features: &[&str]) -> Command {
    let mut command = session.cargo(&["run", "--quiet", "--release", "--manifest-path", MANIFEST]);
    command.args(features).args(["--bin", "mp-fuzz", "--"]);
    command
}

/// The task.
pub(crate) fn run(args: &mut Args) -> Result<bool, String> {
    let mut session = Session::new();
    let planted = args.flag("--planted");
    let mut words = Vec::new();
    let (seconds, only) = (args.value("--seconds")?, args.value("--target")?);
    for (name, value) in [("--seed", args.value("--seed")?), ("--input", args.value("--input")?)] {
        words.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
    }
    args.flag("--strict");
    args.finish()?;
    let one = words.iter().any(|word| word == "--input");
    words.extend(only.iter().flat_map(|name| ["--target".to_owned(), name.clone()]));
    if planted {
        let features = ["--features", "inject"];
        return Ok(session.run(fuzzer(&session, &features).arg("--planted")).ok);
    }
    words.extend(seconds.iter().flat_map(|time| ["--seconds".to_owned(), time.clone()]));
    let ok = session.run(fuzzer(&session, &[]).args(words)).ok;
    if one {
        return Ok(ok);
    }
    let seconds = seconds.as_deref().unwrap_or(SHORT);
    Ok(coverage_guided(&mut session, only.as_deref(), seconds)? && ok)
}

/// The same targets under libFuzzer, where a nightly compiler and cargo-fuzz are; each for as long.
fn coverage_guided(session: &mut Session, only: Option<&str>, seconds: &str) -> Result<bool, String> {
    let has = Command::new("cargo").args(["+nightly", "fuzz", "--version"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!(
            "libFuzzer: SKIPPED: no `cargo +nightly fuzz` here (rustup toolchain install nightly; cargo install cargo-fuzz)"
        );
        return Ok(true);
    }
    let listed = fuzzer(session, &[]).arg("--list").output().map_err(|e| format!("mp-fuzz: {e}"))?;
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let all: Vec<&str> = names.lines().filter(|name| only.is_none_or(|only| only == *name)).collect();
    let each = (seconds.parse::<u64>().map_err(|e| format!("--seconds {seconds}: {e}"))?
        / all.len().max(1) as u64)
        .max(1);
    let mut ok = true;
    for name in all {
        let mut command = Command::new("cargo");
        command.args([
            "+nightly",
            "fuzz",
            "run",
            "--fuzz-dir",
            "fuzz",
            "--features",
            "libfuzzer",
            "libfuzzer",
            "--",
        ]);
        command
            .args([format!("-max_total_time={each}"), "-max_len=65536".to_owned()])
            .env("MP_FUZZ_TARGET", name);
        ok &= session.run(&mut command).ok;
    }
    Ok(ok)
}

/// The step of `ci --long`: each target for a moment, and each planted mistake.
pub(crate) fn step(session: &mut Session) -> Outcome {
    session.run(fuzzer(session, &[]).args(["--seconds", SHORT]));
    session.run(fuzzer(session, &["--features", "inject"]).arg("--planted"));
    session.outcome()
}
