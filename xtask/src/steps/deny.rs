//! Step `deny`: licences, sources and duplicate versions of all dependencies, and known vulnerabilities in
//! them (`deny.toml`). Also limits the number of crates that the feature `net` adds.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use crate::layers::FACADE;
use crate::session::{Outcome, Session};

/// Checks that need only the packages.
const CHECKS: [&str; 3] = ["bans", "licenses", "sources"];
/// Maximum number of crates that the feature `net` adds to a program.
const MOST_NET_CRATES: usize = 80;

pub(crate) fn run(session: &mut Session) -> Outcome {
    match crates(&[]).and_then(|without| Ok((without, crates(&["--features", "net"])?))) {
        Ok((without, with)) => check_added(&without, &with, session),
        Err(why) => session.fail(why),
    }
    if let Some(reason) = super::missing("deny", "cargo install cargo-deny --locked") {
        return match session.outcome() {
            Outcome::Ok => Outcome::Skipped(reason),
            failed => failed,
        };
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

/// Returns the lines of `cargo tree`, one for each crate that the facade depends on with these features.
fn crates(features: &[&str]) -> Result<BTreeSet<String>, String> {
    let mut command = Command::new("cargo");
    command.args(["tree", "--package", FACADE, "--edges", "normal,build", "--prefix", "none"]);
    let output = command.args(["--format", "{p}", "--no-dedupe"]).args(features).output();
    let output = output.map_err(|error| format!("cargo tree could not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn check_added(without: &BTreeSet<String>, with: &BTreeSet<String>, session: &mut Session) {
    let added = with.difference(without).count();
    println!("the feature net adds {added} crates, of at most {MOST_NET_CRATES}");
    if added == 0 || added > MOST_NET_CRATES {
        session.fail(format!("the feature net adds {added} crates, and {MOST_NET_CRATES} are allowed"));
    }
}

/// Returns `true` if cargo-deny has fetched a database of advisories.
fn database() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let databases = home.and_then(|home| home.join("advisory-dbs").read_dir().ok());
    databases.is_some_and(|mut databases| databases.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_added_by_the_net_feature_are_limited() {
        let crates = |count: usize| (0..count).map(|number| number.to_string()).collect::<BTreeSet<_>>();
        let is_allowed = |with: usize| {
            let mut session = Session::new();
            check_added(&crates(3), &crates(with), &mut session);
            session.outcome() == Outcome::Ok
        };
        assert!(is_allowed(3 + MOST_NET_CRATES) && !is_allowed(4 + MOST_NET_CRATES));
        assert!(!is_allowed(3), "the feature was not found");
    }
}
