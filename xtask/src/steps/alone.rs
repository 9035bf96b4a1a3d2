//! Step `alone`: builds each library crate by itself, and the main sets of features. A build without a
//! sharing strategy must fail, with a message that names the missing features.
//!
//! The step `one-strategy` of `ci --long` builds all sets that any code depends on, each crate with its
//! tests, and runs the tests with one sharing strategy alone. The step `test` runs some of them with
//! `file_system` chosen at run time (`MP_STRATEGY`), in programs that it has already built. All other tests
//! run with the default, `file_descriptor`.

use std::process::Command;

use crate::layers::{self, FACADE, LAYERS, Package};
use crate::session::{Outcome, Session};

/// Sharing strategies, each of which must suffice alone. The default comes first.
const STRATEGIES: [&str; 2] = ["file_descriptor", "file_system"];
/// Crates whose unit tests run with each strategy alone: those with structures in shared memory.
const UNITS: [&str; 3] = ["mp-core", "mp-tensor", "mp-sync"];
/// Tests that run with each strategy alone.
const BOTH: [&str; 4] = ["conformance", "queues", "sockets", "tensors"];
/// Tests of [`BOTH`] that the step `test` runs with the second strategy, within seconds.
const QUICK: [&str; 2] = ["conformance", "tensors"];
/// Tests of named files, which only the strategy `file_system` has.
const NAMES: [&str; 1] = ["file_system"];

/// Features without effect on each other: no code depends on two of them. All are built together with all
/// other features. `ci --long` builds each of them with one strategy alone, and with all other features.
const ADDED: [&str; 12] = [
    "ndarray",
    "bytes",
    "pool",
    "manager",
    "data",
    "indicatif",
    "authkey",
    "futures",
    "tokio",
    "log",
    "tracing",
    "cuda",
];

pub(crate) fn run(session: &mut Session) -> Outcome {
    let packages = match layers::packages(None) {
        Ok(packages) => packages,
        Err(message) => return Outcome::Failed(message),
    };
    each_crate(session, &packages, &[]);
    match features(&packages) {
        Some(features) => {
            short_sets(&features).iter().for_each(|set| check(session, set));
            for set in without_strategy(&features) {
                refused(session, &set);
            }
        }
        None => session.fail(format!("there is no package {FACADE}")),
    }
    session.outcome()
}

/// Runs the step of `ci --long`: each crate by itself with its tests, tests with one strategy alone, and all
/// sets of features.
pub(crate) fn long(session: &mut Session) -> Outcome {
    let packages = match layers::packages(None) {
        Ok(packages) => packages,
        Err(message) => return Outcome::Failed(message),
    };
    // The test results don't depend on the other crates, so the step `test` runs the tests once.
    each_crate(session, &packages, &["--all-targets"]);
    for strategy in STRATEGIES {
        let mut tests = session.cargo(&["test", "--no-fail-fast"]);
        session.run(one_strategy(&mut tests, strategy));
    }
    match features(&packages) {
        Some(features) => {
            let short = short_sets(&features);
            let more = sets(&features).into_iter().chain(long_sets(&features));
            more.filter(|set| !short.contains(set)).for_each(|set| check(session, &set));
        }
        None => session.fail(format!("there is no package {FACADE}")),
    }
    session.outcome()
}

/// Checks each library crate with its default features.
fn each_crate(session: &mut Session, packages: &[Package], targets: &[&str]) {
    for (name, _) in LAYERS.iter().filter(|(name, _)| *name != FACADE) {
        match packages.iter().find(|package| package.name == *name) {
            Some(package) => {
                let mut check = session.cargo(&["check", "--quiet"]);
                session.run(check.args(targets).args(package.by_default()));
            }
            None => session.fail(format!("there is no package {name}")),
        }
    }
}

/// Selects one sharing strategy alone, and deselects the feature `tokio`, with which tests usually run.
fn one_strategy<'c>(command: &'c mut Command, strategy: &str) -> &'c mut Command {
    with_one_strategy(command, strategy).args(["--no-default-features", "--features", strategy])
}

/// Returns the command that runs tests with the second strategy in the step `test`. It selects the whole
/// workspace: with `-p`, the libraries would have other features and be compiled again. `run-program` skips
/// the other tests. `ci --long` runs all of [`BOTH`] with each strategy.
pub(super) fn second_strategy(session: &Session) -> Command {
    let mut command = session.cargo(&["test", "--no-fail-fast", "--workspace", "--lib"]);
    command.args(QUICK.iter().flat_map(|test| ["--test", test]));
    let units = UNITS.iter().map(|name| name.replace('-', "_"));
    let programs: Vec<_> = units.chain(QUICK.iter().map(|test| (*test).to_owned())).collect();
    command.env("MP_STRATEGY", STRATEGIES[1]).env("MP_ONLY", programs.join(" "));
    command
}

/// Adds to `command` the unit tests and the tests that run with one strategy alone.
fn with_one_strategy<'c>(command: &'c mut Command, strategy: &str) -> &'c mut Command {
    let names = if strategy == STRATEGIES[1] { NAMES.as_slice() } else { &[] };
    command.args(UNITS.iter().chain(&["mp-tests"]).flat_map(|package| ["-p", package])).arg("--lib");
    command.args(BOTH.iter().chain(names).flat_map(|test| ["--test", test]))
}

/// Returns the facade's features without `default` and [`ADDED`].
fn features(packages: &[Package]) -> Option<Vec<String>> {
    let facade = packages.iter().find(|package| package.name == FACADE)?;
    let is_base = |name: &&String| *name != "default" && !ADDED.contains(&name.as_str());
    Some(facade.features.iter().filter(is_base).cloned().collect())
}

/// Returns the sets that must not build, since they can't share memory: the empty set, and all features
/// except strategies. Other sets need no check, because `mp-core` itself refuses to build without a strategy.
fn without_strategy(features: &[String]) -> [String; 2] {
    [String::new(), rest(features).join(",")]
}

/// Returns the features that aren't sharing strategies.
fn rest(features: &[String]) -> Vec<String> {
    features.iter().filter(|name| !STRATEGIES.contains(&name.as_str())).cloned().collect()
}

/// Checks that a set of features builds.
fn check(session: &mut Session, set: &str) {
    let words = ["check", "--quiet", "-p", FACADE, "--no-default-features", "--features", set];
    session.run(&mut session.cargo(&words));
}

/// Checks that a set of features does not build, and that the message names the features that are missing.
fn refused(session: &mut Session, set: &str) {
    let words = ["check", "--quiet", "-p", FACADE, "--no-default-features", "--features", set];
    let said = session
        .cargo(&words)
        .output()
        .map(|output| (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()));
    match said {
        Ok((false, said)) if STRATEGIES.iter().all(|name| said.contains(&format!("`{name}`"))) => {
            println!("refused, as it has to be: features {set:?}");
        }
        Ok((builds, said)) => {
            session.fail(format!(
                "features {set:?} can't share memory; built: {builds}; the compiler said: {said}"
            ));
        }
        Err(error) => session.fail(format!("cargo did not run: {error}")),
    }
}

/// Returns the main sets in the form that `--features` takes: each strategy alone, each strategy with all
/// other features, and all features.
fn short_sets(features: &[String]) -> Vec<String> {
    let rest = rest(features).join(",");
    let mut sets: Vec<_> = STRATEGIES
        .iter()
        .flat_map(|strategy| [(*strategy).to_owned(), format!("{strategy},{rest}")])
        .collect();
    sets.push(format!("{},{}", features.join(","), ADDED.join(",")));
    sets
}

/// Returns the sets of features that `ci --long` builds. They contain the first sharing strategy with every
/// subset of the other features. The second strategy, and both strategies together, are built with each of
/// the other features alone, and with all of them. This is enough, because a strategy affects only crates
/// below the crates that the other features affect. In addition, there are the sets of [`ADDED`].
fn sets(features: &[String]) -> Vec<String> {
    let (base, rest) = (features.join(","), rest(features));
    let [first, second] = STRATEGIES.map(str::to_owned);
    let with = |strategies: &str, set: &str| format!("{strategies},{set}").trim_end_matches(',').to_owned();
    let mut sets: Vec<_> = powerset(&rest).iter().map(|set| with(&first, set)).collect();
    for strategies in [second.clone(), format!("{first},{second}")] {
        sets.push(strategies.clone());
        sets.extend(rest.iter().map(|one| with(&strategies, one)));
        sets.push(with(&strategies, &rest.join(",")));
    }
    sets.extend(ADDED.iter().map(|added| format!("{first},{added}")));
    sets.push(format!("{base},{}", ADDED.join(",")));
    sets
}

/// Returns each of [`ADDED`] with all other features.
fn long_sets(features: &[String]) -> Vec<String> {
    let base = features.join(",");
    ADDED.iter().map(|added| format!("{base},{added}")).collect()
}

/// Returns every subset, as `--features` takes it.
fn powerset(features: &[String]) -> Vec<String> {
    let subset = |bits: usize| {
        let chosen = features.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1);
        chosen.map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(",")
    };
    (0..1 << features.len()).map(subset).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_subset_is_listed_once() {
        let names = ["a".to_owned(), "b".to_owned()];
        assert_eq!(powerset(&names), ["", "a", "b", "a,b"]);
        assert_eq!(powerset(&[]), [""]);
    }

    #[test]
    fn feature_sets_have_a_strategy_and_added_features() {
        let names = ["file_descriptor", "file_system", "a", "b"].map(str::to_owned);
        let sets = sets(&names);
        assert_eq!(sets.len(), 4 + 2 * (1 + 2 + 1) + ADDED.len() + 1);
        assert_eq!(without_strategy(&names), ["", "a,b"]);
        for set in [
            "file_descriptor",
            "file_descriptor,b",
            "file_descriptor,a,b",
            "file_system",
            "file_system,b",
            "file_descriptor,file_system,a",
            "file_descriptor,file_system,a,b",
            "file_descriptor,futures",
        ] {
            assert_eq!(sets.iter().filter(|s| *s == set).count(), 1, "{set}");
        }
        assert!(sets.iter().all(|set| set.starts_with("file_")));
        let short = short_sets(&names);
        assert_eq!(short[..4], ["file_descriptor", "file_descriptor,a,b", "file_system", "file_system,a,b"]);
        assert!(short.len() == 5 && short.iter().all(|set| sets.contains(set)));
        let long = long_sets(&names);
        assert!(long.len() == ADDED.len() && long[0] == "file_descriptor,file_system,a,b,ndarray");
        assert!(sets.last().is_some_and(|all| ADDED.iter().all(|name| all.contains(name))));
    }
}
