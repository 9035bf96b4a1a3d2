//! Step `clippy`.

use std::path::Path;

use super::{missing, wheel};
use crate::session::{Outcome, Session};

pub(crate) fn run(session: &mut Session) -> Outcome {
    if let Some(reason) = missing("clippy", "rustup component add clippy") {
        return Outcome::Skipped(reason);
    }
    let words = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    session.run(&mut session.cargo(&words));
    // Uses the build folder of the wheels, which need the same build scripts and macros.
    let words = ["clippy", "--manifest-path", wheel::CRATE, "--workspace", "--all-targets"];
    let mut clippy = session.cargo(&words);
    clippy.args(["--", "-D", "warnings"]).env("CARGO_TARGET_DIR", wheel::build_folder());
    session.run(&mut clippy);
    session.outcome()
}

/// Runs the step of `ci --long`: separate workspaces, whose dependencies are compiled for them alone.
pub(crate) fn tools(session: &mut Session) -> Outcome {
    if let Some(reason) = missing("clippy", "rustup component add clippy") {
        return Outcome::Skipped(reason);
    }
    if Path::new("benches/Cargo.toml").exists() {
        // With each feature that a program requires, but without `peers`, whose dependencies take minutes to
        // build.
        let words = ["clippy", "--manifest-path", "benches/Cargo.toml", "--all-targets"];
        let mut clippy = session.cargo(&words);
        session.run(clippy.args(["--features", "codecs,cuda,data", "--", "-D", "warnings"]));
    }
    if Path::new("tools/fuzz/Cargo.toml").exists() {
        // Without the feature `libfuzzer`, which requires a nightly compiler.
        let words = ["clippy", "--manifest-path", "tools/fuzz/Cargo.toml", "--all-targets"];
        session.run(session.cargo(&words).args(["--", "-D", "warnings"]));
    }
    session.outcome()
}
