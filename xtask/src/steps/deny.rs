//! Step `deny`: licences, sources and duplicate versions of all dependencies, and known vulnerabilities in
//! them (`deny.toml`).

use std::path::PathBuf;
use std::process::Command;

use crate::session::{Outcome, Session};

/// Checks that need only the packages.
const CHECKS: [&str; 3] = ["bans", "licenses", "sources"];

pub(crate) fn run(session: &mut Session) -> Outcome {
    if let Some(reason) = super::missing("deny", "cargo install cargo-deny --locked") {
        return Outcome::Skipped(reason);
    }
    let mut deny = |checks: &[&str]| {
        let mut command = Command::new("cargo");
        command
            .args(["deny", "--workspace", "--all-features", "check", "--hide-inclusion-graph"])
            .args(checks);
        session.run(&mut command);
    };
    deny(&CHECKS);
    match database() {
        true => deny(&["--disable-fetch", "advisories"]),
        false => {
            println!("advisories: not checked, since there is no copy of the database: cargo deny fetch")
        }
    }
    session.outcome()
}

/// Returns `true` if cargo-deny has fetched a database of advisories.
fn database() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let databases = home.and_then(|home| home.join("advisory-dbs").read_dir().ok());
    databases.is_some_and(|mut databases| databases.next().is_some())
}
