//! Processes that are killed and stopped at random: `cargo xtask torture`, and a short form of it as a step
//! of `ci`.

use std::path::PathBuf;
use std::process::Command;

use crate::args::Args;
use crate::session::{Outcome, Session};
use crate::steps;

/// Duration of the short form, in seconds.
const SHORT: &str = "15";
/// Duration of the form of `ci --long`, in seconds.
const LONG: &str = "300";

fn torture(session: &mut Session, words: &[String]) -> bool {
    let mut simulator = session.cargo(&["build", "--quiet", "--release", "-p", "mp-cuda-sim"]);
    if !session.run(&mut simulator).ok {
        return false;
    }
    let mut command = session.cargo(&["run", "--quiet", "--release", "-p", "mp-torture", "--"]);
    session.run(command.args(words)).ok
}

/// Runs the task for the requested time.
pub(crate) fn run(args: &mut Args) -> Result<bool, String> {
    let mut words = Vec::new();
    for name in ["--seconds", "--seed", "--processes"] {
        if let Some(value) = args.value(name)? {
            words.extend([name.to_owned(), value]);
        }
    }
    // Every step accepts this option. It has no effect here, because nothing can be skipped.
    args.flag("--strict");
    args.finish()?;
    Ok(torture(&mut Session::new(), &words))
}

/// Runs the step of `ci --long`.
pub(crate) fn long(session: &mut Session) -> Outcome {
    torture(session, &["--seconds", LONG].map(str::to_owned));
    session.outcome()
}

/// Runs the step. The step `test` has built the program, with debug assertions.
pub(crate) fn short(session: &mut Session) -> Outcome {
    if session.run(&mut steps::programs(session)).ok {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        session.run(Command::new(target.join("debug/mp-torture")).args(["--seconds", SHORT]));
    }
    session.outcome()
}
